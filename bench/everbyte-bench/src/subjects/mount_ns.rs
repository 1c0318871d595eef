//! Mount namespaces in which nothing stays mounted, however this process ends.
//!
//! Invariant: what is mounted there is seen by the threads that moved there and what they started, by nobody
//! else, and is gone with the last of them; open files keep a file system beyond that.

use anyhow::{Context, Result, anyhow, bail};
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountPropagationFlags, mount_change};

/// Moves this thread, and all that it starts from then on, to a mount namespace of their own.
///
/// # Errors
/// Not root; the system's.
pub(crate) fn enter_mount_ns() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("needs root, to mount in a namespace of its own");
    }
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).context("cannot keep mounts to this process")
}

/// Does `work` in a thread of its own, which moves apart first.
///
/// # Errors
/// Those of [`enter_mount_ns`]; the work's.
pub(crate) fn in_mount_ns<R: Send>(work: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || enter_mount_ns().and_then(|()| work()));
        thread.join().map_err(|_| anyhow!("the thread of mounts panicked")).flatten()
    })
}
