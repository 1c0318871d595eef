//! Memory for those who page to this server: a system that is short of memory must not wait for a
//! server that waits for memory.
//!
//! While a swap volume is exported, all of the process's own memory is locked, as far as it is in use
//! or will be, and the threads that serve the export are I/O flushers: what the kernel allocates for
//! them never starts I/O of its own. The pool's memory is not locked. Knows nothing of volumes.

use std::io;

use everbyte_media::OwnMemory;
use rustix::process::configure_io_flusher_behavior;
use rustix::thread::{CapabilitySet, capabilities};

/// Locks the process's own memory until the lock is dropped.
///
/// # Errors
/// The process lacks CAP_IPC_LOCK, or the system refuses. Nothing is locked then.
pub(crate) fn lock_own_memory() -> io::Result<OwnMemory> {
    // Without the right, a limit on locked memory would make later allocations fail.
    if !capabilities(None)?.effective.contains(CapabilitySet::IPC_LOCK) {
        return Err(io::Error::from_raw_os_error(rustix::io::Errno::PERM.raw_os_error()));
    }
    OwnMemory::lock()
}

/// Makes this thread, and those that it starts, I/O flushers.
///
/// # Errors
/// The process lacks CAP_SYS_RESOURCE, or the kernel is older than Linux 5.6.
pub(crate) fn flush_io_from_here() -> io::Result<()> {
    Ok(configure_io_flusher_behavior(true)?)
}
