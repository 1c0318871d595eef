//! The thread of one queue: drains the ring, executes the requests and publishes the answers.
//!
//! Invariants: with a write-through disk a write is durable before its answer is published. Answers are published
//! in order of the available ring. All answers of one drain cause at most one notification.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use everbyte_device::BlockDevice;
use everbyte_device::request_queue::RequestQueue;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use crate::connection::Connection;
use crate::inflight::QueueLog;
use crate::memory::{self, GuestMap};
use crate::request::{Disk, GuestFace, MemoryLost, Table, Tag};

/// Requests in one drain.
const DRAIN_MAX: usize = 64;
/// Longest time to look for more requests before sleeping.
const SPIN_MAX: Duration = Duration::from_micros(50);
/// Shortest such time, and the first one.
const SPIN_MIN: Duration = Duration::from_micros(5);
/// Sleeps without a look after vain looks of the shortest time.
const SPINS_SKIPPED: u32 = 16;
/// The flag of a driver that wants no notifications (`VRING_AVAIL_F_NO_INTERRUPT`).
const NO_INTERRUPT: u16 = 1;

/// The reason for the end of a queue.
#[derive(Debug)]
enum RingFailure {
    MemoryLost,
    Ring(virtio_queue::Error),
    /// A head beyond the end of the table.
    Head(u16),
    Io(io::Error),
}

impl From<MemoryLost> for RingFailure {
    fn from(_: MemoryLost) -> Self {
        Self::MemoryLost
    }
}

impl From<virtio_queue::Error> for RingFailure {
    fn from(error: virtio_queue::Error) -> Self {
        Self::Ring(error)
    }
}

impl std::fmt::Display for RingFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::MemoryLost => f.write_str("the guest's memory was truncated"),
            Self::Ring(error) => write!(f, "invalid ring: {error}"),
            Self::Head(head) => write!(f, "invalid ring: descriptor {head} is outside the table"),
            Self::Io(error) => write!(f, "cannot wait for the guest: {error}"),
        }
    }
}

/// A descriptor with notifications to the guest. The virtual machine can replace it at any time.
pub(crate) type Call = Arc<Mutex<Option<File>>>;

/// A queue that is ready to run.
pub(crate) struct Ring {
    pub(crate) queue: Queue,
    pub(crate) map: Arc<GuestMap>,
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) disk: Disk,
    pub(crate) connection: Arc<Connection>,
    pub(crate) kick: File,
    pub(crate) call: Call,
    pub(crate) log: Option<QueueLog>,
    /// Heads of requests that an earlier server took and did not answer.
    pub(crate) unanswered: Vec<u16>,
}

/// The running thread of a queue. Dropping it ends the thread.
pub(crate) struct Worker {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<u16>>,
}

struct Stop {
    is_wanted: AtomicBool,
    /// Readable once the end is wanted.
    event: OwnedFd,
}

impl Worker {
    /// Starts the thread. It ends the connection if the queue ends because of the guest.
    ///
    /// # Errors
    /// The system has no thread or no descriptor left.
    pub(crate) fn start(ring: Ring, name: String) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stop = Arc::new(Stop { is_wanted: AtomicBool::new(false), event });
        let theirs = Arc::clone(&stop);
        let run = move || {
            let mut ring = ring;
            if let Err(failure) = run(&mut ring, &theirs) {
                tracing::warn!(disk = ring.disk.name, "the guest's queue ended: {failure}");
                // The session notices the end of the connection, and ends the other queues.
                ring.connection.shut();
            }
            // The virtual machine continues the ring from here, in this or another server.
            ring.queue.next_avail()
        };
        let thread = thread::Builder::new().name(name).spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends the thread after its current drain, and returns the index of the next available request.
    pub(crate) fn end(mut self) -> Option<u16> {
        self.join()
    }

    fn join(&mut self) -> Option<u16> {
        self.stop.is_wanted.store(true, Ordering::SeqCst);
        // It fails only if it is readable already.
        let _ = rustix::io::write(&self.stop.event, &1_u64.to_ne_bytes());
        self.thread.take()?.join().ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.join();
    }
}

/// The parts of a running queue.
struct Drain<'m> {
    queue: &'m mut Queue,
    map: &'m GuestMap,
    requests: RequestQueue<Tag>,
    face: GuestFace<'m>,
    connection: &'m Connection,
    call: &'m Call,
    log: &'m mut Option<QueueLog>,
    table: Table,
}

/// Serves the queue until the end is wanted.
fn run(ring: &mut Ring, stop: &Stop) -> Result<(), RingFailure> {
    let table = Table { address: GuestAddress(ring.queue.desc_table()), size: ring.queue.size() };
    let mut drain = Drain {
        queue: &mut ring.queue,
        map: &ring.map,
        requests: RequestQueue::new(Arc::clone(&ring.device)),
        face: GuestFace::new(&ring.map, ring.disk.clone()),
        connection: &ring.connection,
        call: &ring.call,
        log: &mut ring.log,
        table,
    };
    // Before new requests: the answers keep the order of the available ring.
    for heads in ring.unanswered.chunks(DRAIN_MAX) {
        drain.execute(heads)?;
    }
    let mut spin = Spin { time: SPIN_MIN, to_skip: 0 };
    drain.queue.disable_notification(drain.map)?;
    loop {
        let has_drained = drain.drain()?;
        // Between drains only: a taken request gets its answer from this thread.
        if stop.is_wanted.load(Ordering::SeqCst) {
            return Ok(());
        }
        if has_drained || spin.look(&drain)? {
            continue;
        }
        // True if a request came before the guest could see that it must notify.
        if !drain.queue.enable_notification(drain.map)? {
            wait(&ring.kick, stop).map_err(RingFailure::Io)?;
        }
        drain.queue.disable_notification(drain.map)?;
    }
}

/// Sleeps until the guest or the end wakes the thread.
fn wait(kick: &File, stop: &Stop) -> io::Result<()> {
    let mut polled = [
        PollFd::new(kick, PollFlags::IN),
        PollFd::from_borrowed_fd(stop.event.as_fd(), PollFlags::IN),
    ];
    match poll(&mut polled, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut count = [0; 8];
    // Empty if the end woke the thread.
    let _ = rustix::io::read(kick, &mut count);
    Ok(())
}

/// The adaptive look for more requests: a wake-up takes longer than a short look.
struct Spin {
    time: Duration,
    to_skip: u32,
}

impl Spin {
    fn look(&mut self, drain: &Drain<'_>) -> Result<bool, RingFailure> {
        if self.to_skip > 0 {
            self.to_skip -= 1;
            return Ok(false);
        }
        let started = Instant::now();
        let next = drain.queue.next_avail();
        loop {
            if drain.queue.avail_idx(drain.map, Ordering::Acquire)?.0 != next {
                self.time = (self.time * 2).min(SPIN_MAX);
                return Ok(true);
            }
            if started.elapsed() > self.time {
                break;
            }
            std::hint::spin_loop();
        }
        if self.time == SPIN_MIN {
            // The guest is idle: more looks would only take its processor time.
            self.to_skip = SPINS_SKIPPED;
        }
        self.time = (self.time / 2).max(SPIN_MIN);
        Ok(false)
    }
}

impl Drain<'_> {
    /// Executes the available requests, at most `DRAIN_MAX`. Returns false if there was none.
    fn drain(&mut self) -> Result<bool, RingFailure> {
        let mut heads = [0; DRAIN_MAX];
        let chains = self.queue.iter(self.map)?.take(DRAIN_MAX);
        let mut count = 0;
        for (slot, chain) in heads.iter_mut().zip(chains) {
            *slot = chain.head_index();
            count += 1;
        }
        // Of missing memory, or the index was not zero by chance.
        if memory::is_lost(self.map) {
            return Err(RingFailure::MemoryLost);
        }
        self.execute(&heads[..count])?;
        Ok(count > 0)
    }

    fn execute(&mut self, heads: &[u16]) -> Result<(), RingFailure> {
        for &head in heads {
            if head >= self.table.size {
                return Err(RingFailure::Head(head));
            }
            if let Some(log) = self.log {
                // Before the effect: a successor repeats a request that is noted and unanswered.
                log.take(head);
            }
            self.face.submit(&mut self.requests, self.table, head)?;
        }
        // Even a single write: the guest may send no more until it has the answer.
        self.requests.execute_writes(&mut self.face);
        // Before the answers: without notes a successor takes them for open requests.
        if self.log.as_ref().is_some_and(QueueLog::is_lost) {
            return Err(RingFailure::MemoryLost);
        }
        self.publish()
    }

    fn publish(&mut self) -> Result<(), RingFailure> {
        if self.face.answers().is_empty() {
            return Ok(());
        }
        // Before the answers: a client that has its answer finds it in the counts.
        self.connection.add(self.face.take_counts());
        let answers = self.face.answers();
        for answer in answers.drain(..) {
            if let Some(log) = self.log {
                // Before the used index moves: `recover` completes this step by that index.
                log.publish(answer.head);
            }
            self.queue.add_used(self.map, answer.head, answer.len)?;
            if let Some(log) = self.log {
                // After it: a request without a published answer must stay in flight.
                log.complete(answer.head, self.queue.next_used());
            }
        }
        if self.wants_notification()?
            && let Some(call) = &*self.call.lock()
        {
            // It fails only if the guest has not taken earlier notifications.
            let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
        Ok(())
    }

    fn wants_notification(&mut self) -> Result<bool, RingFailure> {
        if !self.queue.needs_notification(self.map)? {
            return Ok(false);
        }
        // With event indexes the flag of the driver has no meaning.
        if self.queue.event_idx_enabled() {
            return Ok(true);
        }
        let flags: u16 = self
            .map
            .load(GuestAddress(self.queue.avail_ring()), Ordering::Relaxed)
            .map_err(virtio_queue::Error::GuestMemory)?;
        Ok(u16::from_le(flags) & NO_INTERRUPT == 0)
    }
}
