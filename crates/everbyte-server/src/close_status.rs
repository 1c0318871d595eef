//! The outcome of the end of a pool, for commands with mounts: their mounts end with the pool.
//!
//! Invariant: after a client has been notified of the end of the pool, it may ask for the outcome.
//! It gets an answer once everything is durable or lost, and before the process ends, unless it
//! asks too late.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Longest time to wait for clients notified of the end of their mount, until they ask for the
/// outcome.
const WAITERS_TIME_MAX: Duration = Duration::from_secs(2);

/// Outcome of the end of a pool.
#[derive(Default)]
pub(crate) struct CloseStatus {
    /// `Ok` if everything was made durable, else the reason.
    outcome: OnceLock<Result<(), String>>,
    /// Clients with a right to ask for the outcome. They have not asked yet.
    expected: Mutex<usize>,
    answered: Condvar,
}

/// A client with a possible question for the pool's outcome, as long as it lives.
pub(crate) struct CloseWaiter<'e>(&'e CloseStatus);

impl CloseWaiter<'_> {
    /// Records the coming question.
    pub(crate) fn register(self) {
        // The client stays expected until its question is answered.
        std::mem::forget(self);
    }
}

impl Drop for CloseWaiter<'_> {
    fn drop(&mut self) {
        self.0.answered();
    }
}

impl CloseStatus {
    /// Registers a client with a possible question for the pool's outcome. A client waiting for the
    /// end of a mount is asked to put this question if the pool ends first. The registration comes
    /// early, because the pool may end before the client is notified.
    pub(crate) fn register_waiter(&self) -> CloseWaiter<'_> {
        *self.expected.lock() += 1;
        CloseWaiter(self)
    }

    fn answered(&self) {
        let mut expected = self.expected.lock();
        // A client may also ask without a registration.
        *expected = expected.saturating_sub(1);
        self.answered.notify_all();
    }

    /// Waits until the pool has ended.
    ///
    /// # Errors
    /// The reason of a possible loss.
    pub(crate) fn wait(&self) -> Result<(), String> {
        let outcome = self.outcome.wait().clone();
        self.answered();
        outcome
    }

    /// Reports the outcome to all waiting clients, and waits a moment for registered clients.
    pub(crate) fn report(&self, outcome: Result<(), String>) {
        let deadline = Instant::now() + WAITERS_TIME_MAX;
        self.outcome.get_or_init(|| outcome);
        let mut expected = self.expected.lock();
        self.answered.wait_while_until(&mut expected, |expected| *expected > 0, deadline);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_waiters_count_until_answered() {
        let status = CloseStatus::default();
        let expected = || *status.expected.lock();
        let (first, second) = (status.register_waiter(), status.register_waiter());
        assert_eq!(expected(), 2);
        drop(first);
        assert_eq!(expected(), 1);
        second.register();
        assert_eq!(expected(), 1);
        status.outcome.set(Ok(())).unwrap();
        status.wait().unwrap();
        assert_eq!(expected(), 0);
        status.report(Ok(()));
    }
}
