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
    /// Those who will ask for the outcome, or may, and have not yet.
    expected: usize,
}

/// Somebody who may ask how the pool ended, as long as it lives.
pub(crate) struct Question<'e> {
    ending: &'e Ending,
    is_due: bool,
}

impl Question<'_> {
    /// Notes that it will be asked.
    pub(crate) fn will_come(mut self) {
        self.is_due = true;
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        if !self.is_due {
            self.ending.answered(&mut self.ending.state.lock());
        }
    }
}

impl Ending {
    /// Notes that somebody may ask how the pool ended: who waits for the end of a mount is told to if the pool ends
    /// first, and that may go so fast that it has ended before he is told.
    pub(crate) fn expect_question(&self) -> Question<'_> {
        self.state.lock().expected += 1;
        Question { ending: self, is_due: false }
    }

    fn answered(&self, state: &mut EndingState) {
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
    pub(crate) fn tell(&self, outcome: Result<(), String>) {
        let deadline = Instant::now() + QUESTION_TIME_MAX;
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
    fn those_who_may_ask_count_until_they_need_not_or_have_asked() {
        let ending = Ending::default();
        let expected = || ending.state.lock().expected;
        let (first, second) = (ending.expect_question(), ending.expect_question());
        assert_eq!(expected(), 2);
        drop(first);
        assert_eq!(expected(), 1);
        second.will_come();
        assert_eq!(expected(), 1);
        ending.state.lock().outcome = Some(Ok(()));
        ending.wait().unwrap();
        assert_eq!(expected(), 0);
        ending.tell(Ok(()));
    }
}
