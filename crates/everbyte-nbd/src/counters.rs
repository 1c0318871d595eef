//! Counters of a server and of each of its connections.
//!
//! Invariant: counts only grow, except `connections`. A connection has its own counts. When it
//! ends, its counts are added to the server's totals.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use everbyte_device::connection::ConnectionInfo;
use parking_lot::Mutex;

/// A snapshot of a server's counts since it was bound. Taken while requests run, its members may
/// be of slightly different moments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ServerStats {
    /// Open connections, including handshakes.
    pub connections: u64,
    /// Accepted connections.
    pub connections_total: u64,
    /// Connections closed immediately because there were too many.
    pub connections_refused: u64,
    /// Connections ended by the server because of a peer's act or omission.
    pub connections_dropped: u64,
    /// Requests of all kinds, failed ones included.
    pub requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Flush requests.
    pub flushes: u64,
    /// Bytes read with success.
    pub read_bytes: u64,
    /// Bytes written with success.
    pub written_bytes: u64,
    /// Bytes trimmed with success.
    pub trimmed_bytes: u64,
    /// Bytes zeroed with success.
    pub zeroed_bytes: u64,
}

/// One count.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one connection. The members of [`ServerStats`] define each count.
pub(crate) struct Activity {
    since: Instant,
    /// Milliseconds from `since` to the last message of the peer.
    last_activity_ms: AtomicU64,
    export: Mutex<Option<String>>,
    pub(crate) requests: Count,
    pub(crate) errors: Count,
    pub(crate) flushes: Count,
    pub(crate) read_bytes: Count,
    pub(crate) written_bytes: Count,
    pub(crate) trimmed_bytes: Count,
    pub(crate) zeroed_bytes: Count,
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            last_activity_ms: AtomicU64::new(0),
            export: Mutex::default(),
            requests: Count::default(),
            errors: Count::default(),
            flushes: Count::default(),
            read_bytes: Count::default(),
            written_bytes: Count::default(),
            trimmed_bytes: Count::default(),
            zeroed_bytes: Count::default(),
        }
    }

    /// Notes a message of the peer.
    pub(crate) fn note_activity(&self) {
        let ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_activity_ms.store(ms, Ordering::Relaxed);
    }

    /// Time since the last message of the peer.
    pub(crate) fn idle(&self) -> Duration {
        let last_activity = Duration::from_millis(self.last_activity_ms.load(Ordering::Relaxed));
        self.since.elapsed().saturating_sub(last_activity)
    }

    /// Notes that the client opened an export. It replaces the former one.
    pub(crate) fn opened(&self, export: &str) {
        *self.export.lock() = Some(export.to_owned());
    }

    pub(crate) fn is_to(&self, export: &str) -> bool {
        self.export.lock().as_deref() == Some(export)
    }

    pub(crate) fn export(&self) -> Option<String> {
        self.export.lock().clone()
    }

    pub(crate) fn add_to(&self, totals: &mut ServerStats) {
        totals.requests += self.requests.get();
        totals.errors += self.errors.get();
        totals.flushes += self.flushes.get();
        totals.read_bytes += self.read_bytes.get();
        totals.written_bytes += self.written_bytes.get();
        totals.trimmed_bytes += self.trimmed_bytes.get();
        totals.zeroed_bytes += self.zeroed_bytes.get();
    }

    pub(crate) fn info(&self, id: u64, peer: &str) -> ConnectionInfo {
        let age = self.since.elapsed();
        ConnectionInfo {
            id,
            peer: peer.to_owned(),
            export: self.export(),
            age,
            // The two times are taken one after the other.
            idle: self.idle().min(age),
            requests: self.requests.get(),
            read_bytes: self.read_bytes.get(),
            written_bytes: self.written_bytes.get(),
        }
    }
}
