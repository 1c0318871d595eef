//! Waking the thread that makes checkpoints in the background.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Wakes the background thread.
#[derive(Default)]
pub(crate) struct Kick {
    state: Mutex<KickState>,
    changed: Condvar,
}

#[derive(Default)]
struct KickState {
    kicked: bool,
    stopping: bool,
}

impl Kick {
    /// Asks for a look at the logs.
    pub(crate) fn notify(&self) {
        self.state.lock().kicked = true;
        self.changed.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_all();
    }

    /// Waits for a kick or the deadline; false when it is time to stop.
    pub(crate) fn wait_until(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        while !state.kicked && !state.stopping {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.kicked = false;
        !state.stopping
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(600)
    }

    #[test]
    fn a_kick_before_the_wait_is_not_lost_and_counts_once() {
        let kick = Kick::default();
        kick.notify();
        kick.notify();
        assert!(kick.wait_until(far()), "at once");
        let deadline = Instant::now() + Duration::from_millis(1);
        assert!(kick.wait_until(deadline), "the deadline is no reason to stop");
        assert!(Instant::now() >= deadline, "one kick, one end of a wait");
    }

    #[test]
    fn a_kick_or_a_stop_ends_a_wait_and_a_stop_ends_all_later_ones() {
        let kick = Kick::default();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let kicked = kick.wait_until(far());
                (kicked, kick.wait_until(far()))
            });
            kick.notify();
            while kick.state.lock().kicked {
                thread::yield_now();
            }
            kick.stop();
            assert_eq!(waiting.join().unwrap(), (true, false));
        });
        kick.notify();
        assert!(!kick.wait_until(far()), "a kick does not start it again");
    }
}
