//! The end of a pool, for those who wait for it: commands whose mounts end with it.
//!
//! Invariant: who was told that the pool ends, and asks how it ended, is answered once everything is
//! durable or lost, and before the process ends, unless it asks too late.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Longest time to wait for those who were told that their mount is to end, and are to hear how it ended.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(2);

/// End of a pool.
#[derive(Default)]
pub(crate) struct Ending {
    state: Mutex<EndingState>,
    changed: Condvar,
}

#[derive(Default)]
struct EndingState {
    /// `Ok` if everything was made durable, else the reason; `None` before that is known.
    outcome: Option<Result<(), String>>,
    /// Those who will ask for the outcome, and have not yet.
    expected: usize,
}

impl Ending {
    /// Notes that somebody will ask how the pool ended.
    pub(crate) fn expect_question(&self) {
        self.state.lock().expected += 1;
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
        state.expected = state.expected.saturating_sub(1);
        self.changed.notify_all();
        outcome
    }

    /// Tells the outcome to all who wait, and waits a moment for those who will ask.
    pub(crate) fn tell(&self, outcome: Result<(), String>) {
        let deadline = Instant::now() + QUESTION_TIME_MAX;
        let mut state = self.state.lock();
        state.outcome = Some(outcome);
        self.changed.notify_all();
        while state.expected > 0 && !self.changed.wait_until(&mut state, deadline).timed_out() {}
    }
}
