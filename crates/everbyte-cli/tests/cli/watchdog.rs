//! Ends processes before an endless wait: a server expected to fail at its start and still running,
//! or a server not ending after its signal.

use std::process::Child;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Longest wait of a test for a process: far longer than any process takes on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(100);

/// Kills a process after a too long wait.
pub(crate) struct Watchdog {
    done: Sender<()>,
    thread: JoinHandle<bool>,
}

impl Watchdog {
    /// Watches `child`. It may have ended already.
    pub(crate) fn over(child: &Child) -> Self {
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        // Unlike its number, this is never another process. There is none if its end was waited for already.
        let process = pidfd_open(pid, PidfdFlags::empty()).ok();
        let (done, is_done) = channel();
        let thread = std::thread::spawn(move || {
            let is_late = is_done.recv_timeout(WAIT_MAX) == Err(RecvTimeoutError::Timeout);
            if let (true, Some(process)) = (is_late, process) {
                // It may have ended just now.
                let _ = pidfd_send_signal(&process, Signal::KILL);
            }
            is_late
        });
        Self { done, thread }
    }

    /// Fails if the process has been killed; `what` names it.
    #[track_caller]
    pub(crate) fn call_off(self, what: &dyn std::fmt::Debug) {
        drop(self.done);
        let was_late = self.thread.join().unwrap();
        assert!(!was_late, "{what:?} was waited for for {WAIT_MAX:?}, and killed then");
    }
}
