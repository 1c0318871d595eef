//! The end of a mount for the process that made it: by unmounting, or by an abort while the mount
//! was in place.
//!
//! The kernel ends a connection in the same way after the removal of its last mount and in an
//! abort, as by `umount -f`. In an abort it drops stores of programs through mappings. A second
//! mount without a directory, the pin, distinguishes them: while it is held, an end is an abort.
//! The pin is released after the mount has left the tables.
//!
//! Invariants: the pin is released when the mount leaves the tables of all namespaces visible to
//! this process, so that it ends as other mounts do. Every wait here is limited, except the wait
//! for the mount's end.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags, fstatfs, statx};
use rustix::mount::{OpenTreeFlags, open_tree};

/// Longest time between the end of a connection and the kernel's release of its file system.
const TEARDOWN_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest time to wait for an answer of the server. Any answer proves the connection.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);
/// Time between two attempts to read the table, and between two checks of an ending file system.
const LOOK: Duration = Duration::from_millis(2);
/// Time between two searches for a mount that only other namespaces have.
const OTHERS_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A file system in the kernel, by the number of its device.
#[derive(Clone, Debug)]
pub(crate) struct Superblock {
    /// Major and minor number, as the table of mounts writes them.
    device: String,
    /// The inode of its entry in sysfs, if there is one: the next file system with this number has another one.
    entry: Option<u64>,
}

impl Superblock {
    /// The superblock mounted on `dir`. Sends no request to the server.
    pub(crate) fn of_dir(dir: &Path) -> Option<Self> {
        // The server may not serve yet, so no request may go to it.
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let seen = statx(CWD, dir, flags, StatxFlags::TYPE).ok()?;
        Some(Self::new(format!("{}:{}", seen.stx_dev_major, seen.stx_dev_minor)))
    }

    /// The superblock of the connection of a `/dev/fuse` descriptor; `None` if the kernel does not
    /// report it.
    pub(crate) fn of_descriptor(descriptor: &OwnedFd) -> Option<Self> {
        let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
        let info = std::fs::read_to_string(path).ok()?;
        let number = info.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?;
        Some(Self::new(format!("0:{}", number.trim())))
    }

    fn new(device: String) -> Self {
        let entry = std::fs::metadata(entry_of(&device)).ok().map(|entry| entry.ino());
        Self { device, entry }
    }

    /// Returns true if a table of mounts lists it.
    fn is_listed(&self, table: &[u8]) -> bool {
        let device = self.device.as_bytes();
        let mut lines = table.split(|&byte| byte == b'\n');
        lines.any(|line| line.split(|&byte| byte == b' ').nth(2) == Some(device))
    }

    /// Returns true if the table of this process's namespace lists it, or cannot be read.
    pub(crate) fn is_mounted(&self) -> bool {
        std::fs::read("/proc/self/mountinfo").map_or(true, |table| self.is_listed(&table))
    }

    /// Returns true if the superblock exists after the end of its connection: this was an abort.
    /// The kernel removes an unmounted file system from the tables first, and releases it soon
    /// after the end of the connection.
    pub(crate) fn outlives_connection(&self) -> bool {
        let deadline = Instant::now() + TEARDOWN_TIME_MAX;
        while self.is_there() {
            let table = std::fs::read("/proc/self/mountinfo");
            let is_listed = table.is_ok_and(|table| self.is_listed(&table));
            // The next file system may have got the number before the table was read.
            if is_listed && self.is_there() || Instant::now() > deadline {
                return true;
            }
            thread::sleep(LOOK);
        }
        false
    }

    /// Returns true if it exists. Returns false without sysfs.
    fn is_there(&self) -> bool {
        let entry = std::fs::metadata(entry_of(&self.device)).ok().map(|entry| entry.ino());
        entry.is_some() && entry == self.entry
    }
}

/// The entry of a file system's device in sysfs. It exists as long as the file system.
fn entry_of(device: &str) -> PathBuf {
    Path::new("/sys/class/bdi").join(device)
}

/// The second mount.
#[derive(Debug)]
enum Pin {
    Held(OwnedFd),
    /// The connection was there when the mount left the table, or there was never a pin.
    Released,
    /// The connection had ended while the pin was held.
    Aborted,
}

/// The presence of a mount in the table of this process's namespace.
#[derive(Debug)]
pub(crate) struct Presence {
    superblock: Option<Superblock>,
    pin: Arc<Mutex<Pin>>,
    /// Ends the thread that waits for the end of the mount.
    wake: Option<OwnedFd>,
}

impl Presence {
    /// For a new mount on `dir`. Only root can have a pin, in kernels since 5.2.
    pub(crate) fn new(dir: &Path) -> Self {
        let superblock = Superblock::of_dir(dir);
        let pin = Arc::new(Mutex::new(Pin::Released));
        let mut presence = Self { superblock, pin, wake: None };
        match presence.hold(dir) {
            Ok(wake) => presence.wake = Some(wake),
            Err(error) => tracing::debug!(dir = %dir.display(), %error, "the mount has no pin"),
        }
        presence
    }

    /// Holds the pin until the mount leaves the table. Returns the descriptor that ends the wait.
    fn hold(&self, dir: &Path) -> io::Result<OwnedFd> {
        let superblock = self.superblock.clone().ok_or(io::ErrorKind::NotFound)?;
        let table = File::open("/proc/self/mountinfo")?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        let ended = wake.try_clone()?;
        let root =
            open_tree(CWD, dir, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let seen = statx(&root, "", flags, StatxFlags::TYPE)?;
        // A pin on another mount would keep that one from ending.
        if format!("{}:{}", seen.stx_dev_major, seen.stx_dev_minor) != superblock.device {
            return Err(io::Error::other("something else is mounted there"));
        }
        *self.pin.lock() = Pin::Held(root);
        let pin = Arc::clone(&self.pin);
        let wait = move || {
            if wait_for_end(table, &superblock, &ended) {
                release(&pin);
            }
        };
        let started = thread::Builder::new().name("mount-table".to_owned()).spawn(wait);
        if let Err(error) = started {
            *self.pin.lock() = Pin::Released;
            return Err(error);
        }
        Ok(wake)
    }

    /// Releases the pin of a removed mount.
    pub(crate) fn release(&self) {
        release(&self.pin);
    }

    /// Returns true if the ended connection was aborted while the mount was in place.
    pub(crate) fn was_aborted(&self) -> bool {
        // A pin that is still held is asked for the connection now.
        self.release();
        match *self.pin.lock() {
            Pin::Aborted => true,
            _ => self.superblock.as_ref().is_some_and(Superblock::outlives_connection),
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        *self.pin.lock() = Pin::Released;
        if let Some(wake) = &self.wake {
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }
}

/// Waits until the mount has left the table. Returns false if `ended` becomes readable first.
fn wait_for_end(mut table: File, superblock: &Superblock, ended: &OwnedFd) -> bool {
    let mut lines = Vec::new();
    loop {
        lines.clear();
        let read = table.rewind().and_then(|()| table.read_to_end(&mut lines));
        let is_gone = read.is_ok() && !superblock.is_listed(&lines);
        if is_gone && !is_mounted_elsewhere(superblock) {
            return true;
        }
        let mut ready = [PollFd::new(&table, PollFlags::PRI), PollFd::new(ended, PollFlags::IN)];
        let polled = poll(&mut ready, is_gone.then_some(&OTHERS_TIME));
        if ready[1].revents().contains(PollFlags::IN) {
            return false;
        }
        if read.is_err() || polled.is_err() {
            thread::sleep(LOOK);
        }
    }
}

/// Returns true if the namespace of another process has the mount, as far as this process sees others. A descriptor of
/// another table would keep its namespace, so none stays open.
fn is_mounted_elsewhere(superblock: &Superblock) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let mut seen: HashSet<PathBuf> = std::fs::read_link("/proc/self/ns/mnt").into_iter().collect();
    processes.filter_map(Result::ok).map(|process| process.path()).any(|process| {
        // An entry that is not a process has no namespace.
        let namespace = std::fs::read_link(process.join("ns/mnt"));
        namespace.is_ok_and(|namespace| seen.insert(namespace))
            && std::fs::read(process.join("mountinfo"))
                .is_ok_and(|table| superblock.is_listed(&table))
    })
}

/// Releases the pin, and notes an earlier end of the connection. A separate thread asks the server,
/// because the server may never answer.
fn release(pin: &Mutex<Pin>) {
    let mut pin = pin.lock();
    if !matches!(*pin, Pin::Held(_)) {
        return;
    }
    let Pin::Held(root) = std::mem::replace(&mut *pin, Pin::Released) else { return };
    let (answer, answered) = mpsc::channel();
    let ask = move || {
        let asked = fstatfs(&root);
        // The file system may go from here on.
        drop(root);
        let _ = answer.send(asked.is_ok());
    };
    if thread::Builder::new().name("mount-ask".to_owned()).spawn(ask).is_err() {
        return;
    }
    if answered.recv_timeout(ANSWER_TIME_MAX) == Ok(false) {
        *pin = Pin::Aborted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_lists_device_by_its_number() {
        let table =
            b"341 27 0:57 / /tmp/0:5 rw - fuse.everbyte x:y rw\n22 1 0:6 / / rw - tmpfs 0:7 rw\n";
        let listed = |device: &str| Superblock::new(device.to_owned()).is_listed(table);
        assert_eq!(
            ["0:57", "0:6", "0:5", "0:7", "57"].map(listed),
            [true, true, false, false, false]
        );
    }

    /// Device numbers are reused immediately.
    #[test]
    fn reused_superblock_is_no_abort() {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let listed = table.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned);
        for device in listed {
            let mut other = Superblock::new(device);
            other.entry = other.entry.map(|entry| entry + 1);
            assert!(!other.outlives_connection(), "{other:?}");
        }
        assert!(!Superblock::new("0:4095999".to_owned()).outlives_connection());
    }
}
