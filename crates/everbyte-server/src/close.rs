//! The end of an open pool.
//!
//! Invariants: a pool is marked clean only if it contains every answered write. Closing waits a
//! bounded time: it makes durable as much as it can, and leaves the rest behind. After a client has
//! been notified of the end of the pool, it may ask for the outcome. It gets an answer once
//! everything is durable or lost, and before the process ends, unless it asks too late.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use everbyte::Error;
use everbyte::error::LostWrites;
use parking_lot::{Condvar, Mutex};

use crate::open_pool::OpenPool;

/// Longest time to wait for clients notified of the end of their mount, until they ask for the
/// outcome.
const WAITERS_TIME_MAX: Duration = Duration::from_secs(2);

impl OpenPool {
    /// Makes everything durable and marks the pool clean, unless it is a private copy. Nothing is
    /// opened or changed afterwards. Clients must have been disconnected. Waits a few seconds for a
    /// silent backing device, and for clients asking for the outcome of their mounts. Then ends the
    /// control socket.
    ///
    /// # Errors
    /// [`Error::Lost`] if something may be lost; [`Error::Pool`] if the medium failed. The next opening recovers as after a
    /// crash.
    pub fn close(&self) -> Result<(), Error> {
        if self.is_closing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // An opening from before the mark gets its volume into the table, and the close meets it.
        self.volumes.await_openings();
        if !self.pool.is_read_only() {
            // Before the pool: an unmount writes the kernel's caches to the volume.
            self.end_mounts();
        }
        let closed = self.pool.clone().close();
        self.close_status.report(closed.as_ref().map(|&()| ()).map_err(ToString::to_string));
        // Last: a client must still get the outcome.
        drop(self.control.lock().take());
        closed
    }

    /// Unmounts all file systems. All writes answered by their mounts are in the pool already.
    fn end_mounts(&self) {
        for volume in self.volumes.all_opened() {
            if let Some(Err(why)) = volume.mounts.as_ref().map(|mounts| mounts.end()) {
                tracing::error!(volume = volume.name(), "the mount could not be ended: {why}");
                self.pool.report_loss(LostWrites::new(volume.name(), &why));
            }
        }
    }
}

impl Drop for OpenPool {
    /// Ends the mounts of a pool that was not closed, as after a panic. Their programs could otherwise
    /// still write after the last handle has marked the pool clean.
    fn drop(&mut self) {
        if !*self.is_closing.get_mut() && !self.pool.is_read_only() {
            self.end_mounts();
        }
    }
}

/// Outcome of the end of a pool, for commands with mounts: their mounts end with the pool.
#[derive(Default)]
pub(crate) struct CloseStatus {
    /// `Ok` if everything was made durable, else the reason.
    outcome: OnceLock<Result<(), String>>,
    /// Clients with a right to ask for the outcome. They have not asked yet.
    expected: Mutex<usize>,
    answered: Condvar,
}

/// A client with a possible question for the pool's outcome, as long as it lives.
pub(crate) struct CloseWaiter<'e>(&'e CloseStatus);

impl CloseWaiter<'_> {
    /// Records the coming question.
    pub(crate) fn register(self) {
        // The client stays expected until its question is answered.
        std::mem::forget(self);
    }
}

impl Drop for CloseWaiter<'_> {
    fn drop(&mut self) {
        self.0.answered();
    }
}

impl CloseStatus {
    /// Registers a client with a possible question for the pool's outcome. A client waiting for the
    /// end of a mount is asked to put this question if the pool ends first. The registration comes
    /// early, because the pool may end before the client is notified.
    pub(crate) fn register_waiter(&self) -> CloseWaiter<'_> {
        *self.expected.lock() += 1;
        CloseWaiter(self)
    }

    fn answered(&self) {
        let mut expected = self.expected.lock();
        // A client may also ask without a registration.
        *expected = expected.saturating_sub(1);
        self.answered.notify_all();
    }

    /// Waits until the pool has ended.
    ///
    /// # Errors
    /// The reason of a possible loss.
    pub(crate) fn wait(&self) -> Result<(), String> {
        let outcome = self.outcome.wait().clone();
        self.answered();
        outcome
    }

    /// Reports the outcome to all waiting clients, and waits a moment for registered clients.
    fn report(&self, outcome: Result<(), String>) {
        let deadline = Instant::now() + WAITERS_TIME_MAX;
        self.outcome.get_or_init(|| outcome);
        let mut expected = self.expected.lock();
        self.answered.wait_while_until(&mut expected, |expected| *expected > 0, deadline);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::process::{Command, Stdio};

    use everbyte::Pool;
    use everbyte::files::AccessTimes;
    use everbyte_fuse::{KernelCaching, MountOptions, Privileges};

    use super::*;
    use crate::open_pool::Options;

    /// Stores through a mapping of a file, and keeps it until the input ends.
    const PROGRAM: &str = "import mmap, sys
file = open(sys.argv[1], 'r+b')
mapping = mmap.mmap(file.fileno(), 4096)
mapping[:6] = b'stored'
print('ready', flush=True)
sys.stdin.read()";

    #[test]
    fn panic_writes_back_stores_of_mounts() {
        if !everbyte_testkit::is_root("mount a file system") {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let [path, dir] = ["pool", "dir"].map(|name| folder.path().join(name));
        std::fs::create_dir(&dir).unwrap();
        let pool = Pool::create(&path, 32 << 20).unwrap();
        pool.create_fs("files", 8 << 20).unwrap().write("mapped", &[0; 4096]).unwrap();
        let options = MountOptions {
            source: "everbyte".to_owned(),
            allow_other: false,
            read_only: false,
            threads: 1,
            access_times: AccessTimes::Relative,
            caching: KernelCaching::Full,
            privileges: Privileges::default(),
            exec: true,
            dir_access_times: false,
        };
        let mut program = None;
        let served = catch_unwind(AssertUnwindSafe(|| {
            let pool = OpenPool::new(pool, Options::default());
            pool.mount("files", &dir, &options).unwrap();
            let mut python = Command::new("python3");
            python.args(["-c", PROGRAM]).arg(dir.join("mapped"));
            python.stdin(Stdio::piped()).stdout(Stdio::piped());
            let child = program.insert(python.spawn().unwrap());
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            panic!("planned");
        }));
        assert!(served.is_err());
        let mut program = program.unwrap();
        program.kill().unwrap();
        program.wait().unwrap();
        let pool = Pool::open(&path).unwrap();
        assert!(pool.recovery().was_clean);
        let found = pool.open_fs("files").unwrap().read("mapped").unwrap();
        assert_eq!(&found[..6], b"stored");
    }

    #[test]
    fn close_waiters_count_until_answered() {
        let status = CloseStatus::default();
        let expected = || *status.expected.lock();
        let (first, second) = (status.register_waiter(), status.register_waiter());
        assert_eq!(expected(), 2);
        drop(first);
        assert_eq!(expected(), 1);
        second.register();
        assert_eq!(expected(), 1);
        status.outcome.set(Ok(())).unwrap();
        status.wait().unwrap();
        assert_eq!(expected(), 0);
        status.report(Ok(()));
    }
}
