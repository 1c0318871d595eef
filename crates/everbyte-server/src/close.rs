//! The end of an open pool.
//!
//! Invariants: a pool is marked clean only if it contains every answered write. Closing waits a
//! bounded time: it makes durable as much as it can, and leaves the rest behind.

use std::sync::atomic::Ordering;

use everbyte::Error;
use everbyte::error::LostWrites;

use crate::open_pool::OpenPool;

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
        // The thread of the mount drops its pool once the kernel has ended the mount of the killed program.
        let pool = loop {
            match Pool::open(&path) {
                Err(Error::InUse { .. }) => std::thread::yield_now(),
                opened => break opened.unwrap(),
            }
        };
        assert!(pool.recovery().was_clean);
        let found = pool.open_fs("files").unwrap().read("mapped").unwrap();
        assert_eq!(&found[..6], b"stored");
    }
}
