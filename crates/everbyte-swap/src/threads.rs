//! The threads of a region: the background evictor, and those that resolve faults by messages.
//!
//! The evictor has a table of descriptors of its own with nothing in it but the userfaultfd. If
//! somebody closes that descriptor, the kernel still knows of it: accesses to missing pages fault,
//! and fail loudly, where they would otherwise read zeroes.
//!
//! Invariant: the threads end before the region's pages do.

#![allow(unsafe_code, reason = "a thread's own signal mask and table of descriptors")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::thread::futex;

use crate::error::RegionError;
use crate::pager::memory::Memory;
use crate::pager::{Access, Progress};
use crate::resolver::Shared;

const CLOSE_RANGE_UNSHARE: libc::c_uint = 2;
/// Batches without anything evicted, after which the evictor sleeps.
const IDLE_MAX: u32 = 4;
const IDLE_SLEEP: Duration = Duration::from_millis(5);

/// The threads of a region; they end when this is dropped.
pub(crate) struct Threads {
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    stop_event: OwnedFd,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts the evictor and `handlers` threads that resolve faults by messages.
    pub(crate) fn start(shared: &Arc<Shared>, handlers: usize) -> Result<Self, RegionError> {
        let event = eventfd(0, EventfdFlags::CLOEXEC);
        let stop_event = event.map_err(|error| RegionError::io("make an eventfd")(error.into()))?;
        let mut threads = Self {
            shared: Arc::clone(shared),
            stop: Arc::new(AtomicBool::new(false)),
            stop_event,
            handles: Vec::new(),
        };
        let (pager, stop) = (Arc::clone(shared), Arc::clone(&threads.stop));
        let (ready, is_ready) = std::sync::mpsc::channel();
        threads.spawn("evictor", move || {
            keep_only(pager.pager.memory.uffd.as_raw_fd());
            // Whoever started this thread waits for it, or has gone on without.
            let _told = ready.send(());
            run_evictor(&pager, &stop);
        })?;
        // Before the region is used, so that its descriptor is kept from the beginning.
        let _kept = is_ready.recv();
        for _ in 0..handlers {
            let (pager, stop) = (Arc::clone(shared), Arc::clone(&threads.stop));
            let event = threads.stop_event.try_clone();
            let event = event.map_err(RegionError::io("duplicate a descriptor"))?;
            threads.spawn("fault handler", move || run_handler(&pager, &stop, &event))?;
        }
        Ok(threads)
    }

    fn spawn(
        &mut self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), RegionError> {
        let named = std::thread::Builder::new().name(format!("everbyte {name}"));
        let handle = named.spawn(move || {
            block_signals();
            run();
        });
        self.handles.push(handle.map_err(RegionError::io("start a thread"))?);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let pager = &self.shared.pager;
        pager.wanted.store(1, SeqCst);
        // That nobody sleeps there is no error.
        let _woken = futex::wake(&pager.wanted, futex::Flags::PRIVATE, 1);
        // An eventfd that is not full takes a 1; if it was closed, handlers see that too.
        let _written = rustix::io::write(&self.stop_event, &1u64.to_ne_bytes());
        for handle in self.handles.drain(..) {
            // A thread that panicked has nothing more to say here.
            let _ended = handle.join();
        }
    }
}

/// Leaves the program's signals to the program's threads; faults cannot be blocked.
fn block_signals() {
    // SAFETY: all-zero bytes are a valid set, which `sigfillset` then fills in.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` may be written.
    unsafe { libc::sigfillset(&raw mut set) };
    for fault in [libc::SIGBUS, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP] {
        // SAFETY: as above; the number is a signal's.
        unsafe { libc::sigdelset(&raw mut set, fault) };
    }
    // SAFETY: `set` is valid; the old mask is not wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) };
}

/// Gives this thread a table of descriptors with the userfaultfd alone, where the kernel can
/// (Linux 5.9).
fn keep_only(fd: i32) {
    let Ok(fd) = libc::c_uint::try_from(fd) else { return };
    // SAFETY: the call takes numbers; afterwards this thread uses no descriptor but `fd`, and what
    // it closes is closed in its own table only.
    let unshared = unsafe {
        libc::syscall(libc::SYS_close_range, fd + 1, libc::c_uint::MAX, CLOSE_RANGE_UNSHARE)
    };
    if unshared == 0 && fd > 0 {
        // SAFETY: as above; the table is this thread's own.
        let _best_effort = unsafe { libc::syscall(libc::SYS_close_range, 0u32, fd - 1, 0u32) };
    }
}

fn run_evictor(shared: &Shared, stop: &AtomicBool) {
    let pager = &shared.pager;
    while !stop.load(SeqCst) {
        if pager.wants_eviction() {
            evict_until_room(shared, stop);
            continue;
        }
        pager.wanted.store(0, SeqCst);
        if !pager.wants_eviction() && !stop.load(SeqCst) {
            // However it returns, the conditions are looked at again.
            let _woken = futex::wait(&pager.wanted, futex::Flags::PRIVATE, 0, None);
        }
    }
}

fn evict_until_room(shared: &Shared, stop: &AtomicBool) {
    let pager = &shared.pager;
    let mut idle = 0;
    while !stop.load(SeqCst) && !pager.has_room() {
        match pager.try_evict() {
            Progress::Evicted(0) => idle += 1,
            Progress::Evicted(_) => idle = 0,
            Progress::Another => pager.memory.pause(8),
        }
        if idle == IDLE_MAX {
            std::thread::sleep(IDLE_SLEEP);
            return;
        }
    }
}

fn run_handler(shared: &Shared, stop: &AtomicBool, event: &OwnedFd) {
    let uffd = &shared.pager.memory.uffd;
    while !stop.load(SeqCst) {
        match uffd.read_fault() {
            Ok(Some(fault)) => {
                let access = Access { is_store: fault.is_store, is_present: fault.is_present };
                shared.resolve_message(fault.address, access);
            }
            Ok(None) => {
                if wait_for(uffd.as_fd(), event).is_err() {
                    return;
                }
            }
            Err(_closed) => return,
        }
    }
}

fn wait_for(uffd: std::os::fd::BorrowedFd<'_>, event: &OwnedFd) -> io::Result<()> {
    let mut both = [PollFd::new(&uffd, PollFlags::IN), PollFd::new(event, PollFlags::IN)];
    match poll(&mut both, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
