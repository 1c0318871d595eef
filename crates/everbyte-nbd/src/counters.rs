//! What a server counts.
//!
//! Invariant: counts only grow, but for `connections`.

use std::sync::atomic::{AtomicU64, Ordering};

/// A snapshot of a server's counts since it was bound. Taken while requests run, its members may
/// be of slightly different moments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ServerStats {
    /// Connections that are open now, those in their handshake included.
    pub connections: u64,
    /// Connections that were accepted.
    pub connections_total: u64,
    /// Connections that were closed at once because there were too many.
    pub connections_refused: u64,
    /// Connections that the server ended because of what the peer did or failed to do.
    pub connections_dropped: u64,
    /// Requests of all kinds, failed ones included.
    pub requests: u64,
    /// Requests that were answered with an error.
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

/// The counts behind [`ServerStats`]; its members say what they are.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) connections_total: Count,
    pub(crate) connections_refused: Count,
    pub(crate) connections_dropped: Count,
    pub(crate) requests: Count,
    pub(crate) errors: Count,
    pub(crate) flushes: Count,
    pub(crate) read_bytes: Count,
    pub(crate) written_bytes: Count,
    pub(crate) trimmed_bytes: Count,
    pub(crate) zeroed_bytes: Count,
}

impl Counters {
    pub(crate) fn snapshot(&self, connections: u64) -> ServerStats {
        ServerStats {
            connections,
            connections_total: self.connections_total.get(),
            connections_refused: self.connections_refused.get(),
            connections_dropped: self.connections_dropped.get(),
            requests: self.requests.get(),
            errors: self.errors.get(),
            flushes: self.flushes.get(),
            read_bytes: self.read_bytes.get(),
            written_bytes: self.written_bytes.get(),
            trimmed_bytes: self.trimmed_bytes.get(),
            zeroed_bytes: self.zeroed_bytes.get(),
        }
    }
}
