//! Threads of a paged region: the background evictor, and handlers of faults by messages.
//!
//! Only these threads have the descriptor that ends the handlers: in the program's table its number
//! may belong to another file. Invariant: the threads end before the region's pages are unmapped.

use std::io;
use std::mem::{Discriminant, discriminant};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::thread::futex;

use crate::error::RegionError;
use crate::region::paged::engine::{Access, Pager, Progress, Shortage};
use crate::region::paged::memory::Memory;
use crate::region::paged::resolver::FaultResolver;
use crate::region::paged::uffd_memory::UffdMemory;
use crate::region::threads::spawn;

/// Batches without an eviction before the evictor sleeps.
const IDLE_MAX: u32 = 4;
const IDLE_SLEEP: Duration = Duration::from_millis(5);
/// Sleeps after batches that found neither a slot nor a unit to evict without one.
const FULL_RESTS: u32 = 20;
/// Time from a refusal of slots to the next request without a waiting fault.
const REFUSAL_TIME: Duration = Duration::from_millis(100);
/// Time between two looks at whether a thread should stop.
const STOP_LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The threads of a region and their callbacks into the program.
#[derive(Clone, Copy)]
pub(crate) struct Workers {
    /// Threads resolving faults; 0 if the faulting thread does it.
    pub(crate) handlers: usize,
    /// Each thread calls this first.
    pub(crate) thread_start: fn(),
    /// The evictor calls this for each kind of trouble, once.
    pub(crate) on_failure: fn(&RegionError),
    /// The evictor calls this if slots are short.
    pub(crate) more_slots: Option<fn(u64, bool) -> bool>,
}

/// The threads of a region; they end when this is dropped.
pub(crate) struct Threads {
    shared: Arc<FaultResolver>,
    stop: Arc<AtomicBool>,
    handles: Vec<JoinHandle<()>>,
    thread_start: fn(),
}

impl Threads {
    /// Starts the evictor and the threads resolving faults by messages.
    pub(crate) fn start(
        shared: &Arc<FaultResolver>,
        workers: Workers,
    ) -> Result<Self, RegionError> {
        let Workers { handlers, thread_start, on_failure, more_slots } = workers;
        // The evictor ends the handlers with this event. The descriptor in the caller's table is
        // closed below.
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|error| RegionError::io("make an eventfd")(error.into()))?;
        let mut threads = Self {
            shared: Arc::clone(shared),
            stop: Arc::new(AtomicBool::new(false)),
            handles: Vec::new(),
            thread_start,
        };
        let kept = [shared.pager.memory.uffd.as_raw_fd(), event.as_raw_fd()];
        let (pager, stop) = (Arc::clone(shared), Arc::clone(&threads.stop));
        threads.spawn("evictor", &kept, move |own| {
            let mut requests = SlotRequests { more_slots, refused: None };
            run_evictor(&pager, &stop, &mut FailureReporter::new(on_failure), &mut requests);
            if let Some(event) = own.get(1) {
                // An eventfd below its maximum accepts a 1.
                let _written = rustix::io::write(event, &1u64.to_ne_bytes());
            }
        })?;
        for _ in 0..handlers {
            let (pager, stop) = (Arc::clone(shared), Arc::clone(&threads.stop));
            threads.spawn("fault handler", &kept, move |own| {
                run_handler(&pager, &stop, own.get(1).copied());
            })?;
        }
        Ok(threads)
    }

    fn spawn(
        &mut self,
        name: &str,
        kept: &[RawFd],
        run: impl FnOnce(&[BorrowedFd<'_>]) + Send + 'static,
    ) -> Result<(), RegionError> {
        self.handles.push(spawn(name, kept, self.thread_start, run)?);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let pager = &self.shared.pager;
        // After `stop`, so the woken evictor reads it.
        pager.wanted.store(1, SeqCst);
        // A missing sleeper is not an error.
        let _woken = futex::wake(&pager.wanted, futex::Flags::PRIVATE, 1);
        // The evictor signals the handlers; without the signal they check once a second.
        for handle in self.handles.drain(..) {
            // The result of a panicked thread has no use here.
            let _ended = handle.join();
        }
    }
}

/// Reports each failure kind of a region to the program once.
struct FailureReporter {
    reported: Vec<Discriminant<RegionError>>,
    on_failure: fn(&RegionError),
}

impl FailureReporter {
    fn new(on_failure: fn(&RegionError)) -> Self {
        Self { reported: Vec::new(), on_failure }
    }

    fn report_new(&mut self, shared: &FaultResolver) {
        let Err(error) = shared.check() else { return };
        let kind = discriminant(&error);
        if !self.reported.contains(&kind) {
            self.reported.push(kind);
            (self.on_failure)(&error);
        }
    }
}

/// Requests for slots to the owner of the space.
struct SlotRequests {
    more_slots: Option<fn(u64, bool) -> bool>,
    /// Time of the last refusal.
    refused: Option<Instant>,
}

impl SlotRequests {
    /// Asks for slots if they are short, after `idle` batches without an eviction. Requires: the thread holds neither a lock nor a unit.
    fn ask(&mut self, shared: &FaultResolver, idle: u32) {
        let pager = &shared.pager;
        let Some((shortage, more_slots)) = pager.shortage(idle).zip(self.more_slots) else {
            return;
        };
        let is_urgent = shortage == Shortage::Now;
        // A refusal of slots for later is no reason to ask at each batch.
        let is_recent = self.refused.is_some_and(|refused| refused.elapsed() < REFUSAL_TIME);
        if !is_urgent && is_recent {
            return;
        }
        let wanted = Pager::<UffdMemory>::slots_wanted(pager.memory.slots());
        let has_grown = more_slots(wanted, is_urgent);
        self.refused = (!has_grown).then(Instant::now);
        pager.note_growth(shortage, has_grown);
    }
}

/// Makes room on demand. A thread that records a failure wakes this thread, which calls the
/// program's callback, because the callback may allocate.
fn run_evictor(
    shared: &FaultResolver,
    stop: &AtomicBool,
    reporter: &mut FailureReporter,
    requests: &mut SlotRequests,
) {
    let pager = &shared.pager;
    while !stop.load(SeqCst) {
        reporter.report_new(shared);
        if pager.wants_eviction() {
            evict_until_room(shared, stop, reporter, requests);
            continue;
        }
        // Before the last check: a later request sets it again, and the wait returns immediately.
        pager.wanted.store(0, SeqCst);
        // A failure recorded earlier woke no thread.
        reporter.report_new(shared);
        if !pager.wants_eviction() && !stop.load(SeqCst) {
            // However it returns, the conditions are looked at again.
            let _woken = futex::wait(&pager.wanted, futex::Flags::PRIVATE, 0, None);
        }
    }
}

fn evict_until_room(
    shared: &FaultResolver,
    stop: &AtomicBool,
    reporter: &mut FailureReporter,
    requests: &mut SlotRequests,
) {
    let pager = &shared.pager;
    let mut idle = 0;
    while !stop.load(SeqCst) && !pager.has_room() {
        reporter.report_new(shared);
        requests.ask(shared, idle);
        match pager.try_evict() {
            Progress::Evicted(0) => idle += 1,
            Progress::Evicted(_) => idle = 0,
            Progress::Another => pager.memory.pause(8),
        }
        // All units are in use. A short sleep avoids a busy loop.
        if idle == IDLE_MAX {
            // A full store stays full for long, and passes over all units cost time.
            let rests = if pager.is_full() { FULL_RESTS } else { 1 };
            (0..rests)
                .take_while(|_| !pager.is_starving())
                .for_each(|_| std::thread::sleep(IDLE_SLEEP));
            return;
        }
    }
}

/// Resolves faults until there is an event and it should stop.
fn run_handler(shared: &FaultResolver, stop: &AtomicBool, event: Option<BorrowedFd<'_>>) {
    let uffd = &shared.pager.memory.uffd;
    while !stop.load(SeqCst) {
        match uffd.read_fault() {
            Ok(Some(fault)) => {
                let access = Access { is_store: fault.is_store, is_present: fault.is_present };
                shared.resolve_message(fault.address, access);
            }
            Ok(None) => {
                if wait_for(uffd.as_fd(), event).is_err() {
                    std::process::abort();
                }
            }
            // Otherwise no thread could resolve the next fault, and its thread would wait forever.
            Err(_closed) => std::process::abort(),
        }
    }
}

fn wait_for(uffd: BorrowedFd<'_>, event: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let event = event.unwrap_or(uffd);
    let mut both = [PollFd::new(&uffd, PollFlags::IN), PollFd::new(&event, PollFlags::IN)];
    match poll(&mut both, Some(&STOP_LOOK)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
