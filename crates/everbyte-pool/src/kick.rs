//! Waking the threads that make checkpoints in the background.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Wakes a background thread.
#[derive(Default)]
pub(crate) struct Kick {
    is_kicked: Mutex<bool>,
    changed: Condvar,
}

/// Tells one background thread, and no other, that it is time to stop.
#[derive(Default)]
pub(crate) struct StopFlag(AtomicBool);

impl StopFlag {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Kick {
    /// Asks for a look at the logs.
    pub(crate) fn notify(&self) {
        *self.is_kicked.lock() = true;
        self.changed.notify_one();
    }

    /// Stops the thread that waits with `stop`.
    pub(crate) fn stop(&self, stop: &StopFlag) {
        // Under the lock, so that nobody goes to sleep between its look and the notice.
        let _kicked = self.is_kicked.lock();
        stop.0.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Waits for a kick or the deadline; false when it is time to stop.
    pub(crate) fn wait_until(&self, deadline: Instant, stop: &StopFlag) -> bool {
        let mut is_kicked = self.is_kicked.lock();
        while !*is_kicked && !stop.is_set() {
            if self.changed.wait_until(&mut is_kicked, deadline).timed_out() {
                break;
            }
        }
        if stop.is_set() {
            return false;
        }
        *is_kicked = false;
        true
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
        let stop = StopFlag::default();
        assert!(kick.wait_until(far(), &stop), "at once");
        let deadline = Instant::now() + Duration::from_millis(1);
        assert!(kick.wait_until(deadline, &stop), "the deadline is no reason to stop");
        assert!(Instant::now() >= deadline, "one kick, one end of a wait");
    }

    #[test]
    fn a_kick_or_a_stop_ends_a_wait_and_a_stop_ends_all_later_ones() {
        let (kick, stop) = (Kick::default(), StopFlag::default());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let kicked = kick.wait_until(far(), &stop);
                (kicked, kick.wait_until(far(), &stop))
            });
            kick.notify();
            while *kick.is_kicked.lock() {
                thread::yield_now();
            }
            kick.stop(&stop);
            assert_eq!(waiting.join().unwrap(), (true, false));
        });
        kick.notify();
        assert!(!kick.wait_until(far(), &stop), "a kick does not start it again");
        assert!(kick.wait_until(far(), &StopFlag::default()), "another thread goes on");
    }
}
