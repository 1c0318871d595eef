//! The signal for the threads of background checkpoints.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// A request for a checkpoint; wakes a background thread.
#[derive(Default)]
pub(crate) struct CheckpointSignal {
    requested: Mutex<bool>,
    changed: Condvar,
}

/// Stops one background thread.
#[derive(Default)]
pub(crate) struct StopFlag(AtomicBool);

impl StopFlag {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl CheckpointSignal {
    /// Requests an inspection of the logs.
    pub(crate) fn notify(&self) {
        // The flag outlives the notice: a thread at work finds it when it waits again.
        *self.requested.lock() = true;
        self.changed.notify_one();
    }

    /// Stops the waiting thread with `stop`.
    pub(crate) fn stop(&self, stop: &StopFlag) {
        // The lock keeps a thread from falling asleep between its test of the flag and this notice.
        let _requested = self.requested.lock();
        stop.0.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Waits for a signal or the deadline. Returns false if the thread must stop.
    pub(crate) fn wait_until(&self, deadline: Instant, stop: &StopFlag) -> bool {
        let mut requested = self.requested.lock();
        while !*requested && !stop.is_set() {
            if self.changed.wait_until(&mut requested, deadline).timed_out() {
                // The deadline counts as a request: the caller knows what is due.
                break;
            }
        }
        if stop.is_set() {
            return false;
        }
        *requested = false;
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
    fn signal_before_wait_ends_one_wait() {
        let signal = CheckpointSignal::default();
        signal.notify();
        signal.notify();
        let stop = StopFlag::default();
        assert!(signal.wait_until(far(), &stop), "at once");
        let deadline = Instant::now() + Duration::from_millis(1);
        assert!(signal.wait_until(deadline, &stop), "the deadline is no reason to stop");
        assert!(Instant::now() >= deadline, "one signal, one end of a wait");
    }

    #[test]
    fn signal_ends_one_wait_stop_ends_all_waits() {
        let (signal, stop) = (CheckpointSignal::default(), StopFlag::default());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let requested = signal.wait_until(far(), &stop);
                (requested, signal.wait_until(far(), &stop))
            });
            signal.notify();
            while *signal.requested.lock() {
                thread::yield_now();
            }
            signal.stop(&stop);
            assert_eq!(waiting.join().unwrap(), (true, false));
        });
        signal.notify();
        assert!(!signal.wait_until(far(), &stop), "a signal does not start it again");
        assert!(signal.wait_until(far(), &StopFlag::default()), "another thread goes on");
    }
}
