//! The end of a pool, for commands with mounts: their mounts end with the pool.
//!
//! Invariant: after a client has been notified of the end of the pool, it may ask for the outcome.
//! It gets an answer once everything is durable or lost, and before the process ends, unless it
//! asks too late.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Longest time to wait for clients notified of the end of their mount, until they ask for the
/// outcome.
const WAITERS_TIME_MAX: Duration = Duration::from_secs(2);

/// End of a pool.
#[derive(Default)]
pub(crate) struct CloseStatus {
    state: Mutex<CloseState>,
    changed: Condvar,
}

#[derive(Default)]
struct CloseState {
    /// `Ok` if everything was made durable, else the reason; `None` before the outcome is known.
    outcome: Option<Result<(), String>>,
    /// Clients with a right to ask for the outcome. They have not asked yet.
    expected: usize,
}

/// A client with a possible question for the pool's outcome, as long as it lives.
pub(crate) struct CloseWaiter<'e> {
    status: &'e CloseStatus,
    is_due: bool,
}

impl CloseWaiter<'_> {
    /// Records the coming question.
    pub(crate) fn register(mut self) {
        self.is_due = true;
    }
}

impl Drop for CloseWaiter<'_> {
    fn drop(&mut self) {
        if !self.is_due {
            self.status.answered(&mut self.status.state.lock());
        }
    }
}

impl CloseStatus {
    /// Registers a client with a possible question for the pool's outcome. A client waiting for the
    /// end of a mount is asked to put this question if the pool ends first. The registration comes
    /// early, because the pool may end before the client is notified.
    pub(crate) fn register_waiter(&self) -> CloseWaiter<'_> {
        self.state.lock().expected += 1;
        CloseWaiter { status: self, is_due: false }
    }

    fn answered(&self, state: &mut CloseState) {
        state.expected = state.expected.saturating_sub(1);
        self.changed.notify_all();
    }

    /// Waits until the pool has ended.
    ///
    /// # Errors
    /// The reason of a possible loss.
    pub(crate) fn wait(&self) -> Result<(), String> {
        let mut state = self.state.lock();
        let outcome = loop {
            if let Some(outcome) = &state.outcome {
                break outcome.clone();
            }
            self.changed.wait(&mut state);
        };
        self.answered(&mut state);
        outcome
    }

    /// Reports the outcome to all waiting clients, and waits a moment for registered clients.
    pub(crate) fn report(&self, outcome: Result<(), String>) {
        let deadline = Instant::now() + WAITERS_TIME_MAX;
        let mut state = self.state.lock();
        state.outcome = Some(outcome);
        self.changed.notify_all();
        while state.expected > 0 && !self.changed.wait_until(&mut state, deadline).timed_out() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_waiters_count_until_answered() {
        let status = CloseStatus::default();
        let expected = || status.state.lock().expected;
        let (first, second) = (status.register_waiter(), status.register_waiter());
        assert_eq!(expected(), 2);
        drop(first);
        assert_eq!(expected(), 1);
        second.register();
        assert_eq!(expected(), 1);
        status.state.lock().outcome = Some(Ok(()));
        status.wait().unwrap();
        assert_eq!(expected(), 0);
        status.report(Ok(()));
    }
}
