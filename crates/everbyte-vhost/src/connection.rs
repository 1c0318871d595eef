//! The connection of one virtual machine: its socket, its number and its counts.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use everbyte_device::connection::{self, ConnectionInfo};
use rustix::time::{ClockId, clock_gettime};

/// Requests and bytes that the queues of a connection have answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
}

/// A connection, shared by the thread of its messages, the threads of its queues and lists of clients.
pub(crate) struct Connection {
    id: u64,
    peer: String,
    socket: UnixStream,
    since: Instant,
    /// Milliseconds of the coarse clock at the last answer. Every drain reads the clock, and a list needs no finer one.
    last_ms: AtomicU64,
    requests: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

fn coarse_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    let now = Duration::try_from(now).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl Connection {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self {
            id: connection::next_id(),
            peer: connection::peer_of(&socket),
            socket,
            since: Instant::now(),
            last_ms: AtomicU64::new(coarse_ms()),
            requests: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn info(&self, disk: &str) -> ConnectionInfo {
        let idle_ms = coarse_ms().saturating_sub(self.last_ms.load(Ordering::Relaxed));
        let age = self.since.elapsed();
        ConnectionInfo {
            id: self.id,
            peer: self.peer.clone(),
            export: Some(disk.to_owned()),
            age,
            // The two clocks differ by a tick.
            idle: Duration::from_millis(idle_ms).min(age),
            requests: self.requests.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        }
    }

    /// Adds the counts of a drain.
    pub(crate) fn add(&self, counts: Counts) {
        self.last_ms.store(coarse_ms(), Ordering::Relaxed);
        self.requests.fetch_add(counts.requests, Ordering::Relaxed);
        self.read_bytes.fetch_add(counts.read_bytes, Ordering::Relaxed);
        self.written_bytes.fetch_add(counts.written_bytes, Ordering::Relaxed);
    }

    /// Ends the connection: the thread of its messages wakes up, and ends the queues.
    pub(crate) fn shut(&self) {
        // The peer may have closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
