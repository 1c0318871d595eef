//! Private mount namespaces. No mount survives this process.
//!
//! Invariant: only threads in the namespace and their children see its mounts. The mounts end with the last of
//! these threads. Open files keep a file system alive.

use anyhow::{Context, Result, anyhow, bail};
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountPropagationFlags, mount_change};

/// Moves this thread and its later children to a private mount namespace.
///
/// # Errors
/// Not root; the system's.
pub(crate) fn enter_mount_ns() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("needs root, to mount in a namespace of its own");
    }
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    // A new namespace shares mounts with its parent until its root is private.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).context("cannot keep mounts to this process")
}

/// Does `work` in a new thread in a private mount namespace.
///
/// # Errors
/// Errors of [`enter_mount_ns`]; the work's.
pub(crate) fn in_mount_ns<R: Send>(work: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    std::thread::scope(|scope| {
        // unshare moves only its thread, so the other threads keep their mounts.
        let thread = scope.spawn(move || enter_mount_ns().and_then(|()| work()));
        thread.join().map_err(|_| anyhow!("the thread of mounts panicked")).flatten()
    })
}
