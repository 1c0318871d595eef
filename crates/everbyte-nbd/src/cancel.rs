//! A handle that ends a client's waits from outside.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Ends the waits of every client with this handle: for names, connections, handshakes, replies,
/// and for a lost server's return. Clones are the same handle. Cancelling is final: later requests
/// fail immediately.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<Event>);

#[derive(Debug)]
struct Event {
    is_cancelled: AtomicBool,
    /// Readable once it is cancelled.
    readable: OwnedFd,
}

impl Cancel {
    /// Makes a handle without waiters.
    ///
    /// # Errors
    /// If the process or the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let readable = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Event { is_cancelled: AtomicBool::new(false), readable })))
    }

    /// Ends all waits, now and later. Returns immediately, and may be called from any thread.
    pub fn cancel(&self) {
        // Before the wake-up: a woken thread must find the flag set.
        self.0.is_cancelled.store(true, Ordering::SeqCst);
        // It fails only if it is readable already.
        let _ = rustix::io::write(&self.0.readable, &1_u64.to_ne_bytes());
    }

    /// Returns true once `cancel` was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::SeqCst)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.readable.as_fd()
    }
}

/// The error of a cancelled wait.
#[derive(Debug, thiserror::Error)]
#[error("cancelled")]
pub(crate) struct Cancelled;

impl From<Cancelled> for io::Error {
    fn from(cancelled: Cancelled) -> Self {
        Self::new(io::ErrorKind::Interrupted, cancelled)
    }
}

/// Returns true if `error` comes from a cancelled wait.
pub(crate) fn is_cancelled(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Cancelled>())
}
