//! Checkpoints in the background: on a timer, and when a log fills up.
//!
//! Owns one thread. The thread changes no promise: it bounds the loss of a crash without flushes, and keeps
//! writers from waits for log space.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use everbyte_media::Medium;

use super::Pool;
use crate::checkpoint_signal::StopFlag;

/// Time until the next check of a volume in need of a checkpoint during another checkpoint or a group.
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// The shortest interval: the thread sleeps for as long at least.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Replaces an interval beyond the end of the clock: 30 years.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// The running background thread; stops when dropped.
pub struct CheckpointTimer {
    stop: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for CheckpointTimer {
    fn drop(&mut self) {
        (self.stop)();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the checkpoint thread panicked");
        }
    }
}

impl<M: Medium> Pool<M> {
    /// Starts checkpoints of every changed volume, every `interval` and whenever half of a lane of a log's
    /// half is used. With an interval beyond the end of the clock, such as `Duration::MAX`, only the latter
    /// applies. An interval of less than 1 ms counts as 1 ms.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start_timer(self: &Arc<Self>, interval: Duration) -> std::io::Result<CheckpointTimer> {
        let pool = Arc::clone(self);
        let shared = Arc::clone(&self.shared);
        let stop = Arc::<StopFlag>::default();
        let seen = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || run(&pool, interval, &seen))?;
        let stop = Box::new(move || shared.checkpoint_signal.stop(&stop));
        Ok(CheckpointTimer { stop, thread: Some(thread) })
    }
}

/// The end of an interval from now.
fn after(interval: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(interval.max(INTERVAL_MIN)).unwrap_or_else(|| now + FAR)
}

fn run<M: Medium>(pool: &Pool<M>, interval: Duration, stop: &StopFlag) {
    let mut due = after(interval);
    let mut wake = due;
    while pool.shared.checkpoint_signal.wait_until(wake, stop) {
        let timer_ran_out = Instant::now() >= due;
        if timer_ran_out {
            due = after(interval);
        }
        wake = due;
        for volume in pool.volumes() {
            let wanted = timer_ran_out || volume.wants_checkpoint();
            if !wanted || volume.is_gone() || volume.opened_read_only().is_some() {
                continue;
            }
            match volume.flush_if_idle() {
                // The present checkpoint may have sealed an older epoch, and a volume asks once in each.
                Ok(false) if volume.wants_checkpoint() => {
                    wake = due.min(Instant::now() + BUSY_PAUSE)
                }
                Ok(_) => {}
                // No caller waits here. The next flush of the volume fails with the reason.
                Err(error) => {
                    tracing::error!(volume = volume.name(), %error, "background checkpoint failed");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_interval_ends_and_none_at_once() {
        let now = Instant::now();
        assert!(after(Duration::ZERO) >= now + INTERVAL_MIN);
        assert!(after(Duration::from_secs(5)) >= now + Duration::from_secs(5));
        assert!(after(Duration::MAX) >= now + FAR);
    }
}
