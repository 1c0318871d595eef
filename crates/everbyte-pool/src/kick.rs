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
