//! The end of a pool, for those who wait for it: commands whose mounts end with it.
//!
//! Invariant: who was told that the pool ends, and asks how it ended, is answered once everything is
//! durable or lost, and before the process ends, unless it asks too late.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Longest time to wait for those who were told that their mount is to end, and are to hear how it ended.
const WAITERS_TIME_MAX: Duration = Duration::from_secs(2);

/// End of a pool.
#[derive(Default)]
pub(crate) struct CloseStatus {
    state: Mutex<CloseState>,
    changed: Condvar,
}

#[derive(Default)]
struct CloseState {
    /// `Ok` if everything was made durable, else the reason; `None` before that is known.
    outcome: Option<Result<(), String>>,
    /// Those who will ask for the outcome, or may, and have not yet.
    expected: usize,
}

/// Somebody who may ask how the pool ended, as long as it lives.
pub(crate) struct CloseWaiter<'e> {
    status: &'e CloseStatus,
    is_due: bool,
}

impl CloseWaiter<'_> {
    /// Notes that it will be asked.
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
    /// Notes that somebody may ask how the pool ended: who waits for the end of a mount is told to if the pool ends
    /// first, and that may go so fast that it has ended before he is told.
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
    /// The reason for which something may be lost.
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

    /// Tells the outcome to all who wait, and waits a moment for those who will ask.
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
