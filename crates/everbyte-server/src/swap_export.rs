//! Swap volumes as exports: a device without durability, shared by all clients.
//!
//! A system short of memory must not wait for a server waiting for memory. While a swap volume is
//! exported, the process therefore locks its own memory, present and future, as far as it is in
//! use. The threads serving the export are I/O flushers: the kernel's allocations for them never
//! start I/O. The pool's memory is not locked.

use std::io;
use std::sync::{Arc, Weak};

use everbyte::SwapVolume;
use everbyte::swap::ScratchDevice;
use everbyte_device::BlockDevice;
use everbyte_media::OwnMemory;
use parking_lot::Mutex;
use rustix::process::configure_io_flusher_behavior;
use rustix::thread::{CapabilitySet, capabilities};

use crate::guarded_device::GuardedDevice;
use crate::request_error::Unavailable;

/// The device shared by clients of a swap volume, as long as it has clients.
#[derive(Default)]
pub(crate) struct SwapExport(Mutex<Weak<Exported>>);

/// The device, and the lock of the process's memory; `None` without the right to lock it.
type Exported = GuardedDevice<Box<ScratchDevice>, Option<OwnMemory>>;

impl SwapExport {
    /// The device of `volume` for a client. The calling thread will serve the client's requests.
    pub(crate) fn device(&self, volume: &SwapVolume) -> Result<Arc<dyn BlockDevice>, Unavailable> {
        let exported = &mut *self.0.lock();
        let device = match exported.upgrade() {
            Some(device) => device,
            None => Arc::new(export(volume)?),
        };
        // A weak reference: the lock of the memory ends with the last client.
        *exported = Arc::downgrade(&device);
        // The setting belongs to the thread: the thread of each client sets it.
        if let Err(error) = configure_io_flusher_behavior(true) {
            warn(volume, "become an I/O flusher", &error.into());
        }
        Ok(device)
    }

    /// Returns true if clients have the device, or can have it now: they share it, and it takes all
    /// runs in one step.
    pub(crate) fn is_ready(&self, volume: &SwapVolume) -> bool {
        self.0.lock().strong_count() > 0 || !volume.is_lent()
    }
}

fn export(volume: &SwapVolume) -> Result<Exported, Unavailable> {
    let lent = |error: everbyte::Error| Unavailable::new("lent", error.to_string().into());
    let device = volume.scratch().map_err(lent)?;
    tracing::warn!(
        volume = volume.name(),
        "the volume is exported, for swap of guests and other machines: this machine's own swap \
         there can hang it"
    );
    let own_memory =
        lock_own_memory().inspect_err(|error| warn(volume, "lock its own memory", error));
    Ok(GuardedDevice::new(Box::new(device), own_memory.ok()))
}

/// Lets the client continue: the danger exists only for a system short of memory.
fn warn(volume: &SwapVolume, action: &'static str, error: &io::Error) {
    tracing::warn!(
        volume = volume.name(),
        "the server cannot {action}, so a client's swap may hang when this system is short of \
         memory: {error}"
    );
}

/// Locks the process's own memory until the lock is dropped.
///
/// # Errors
/// The process lacks CAP_IPC_LOCK, or the system refuses. Nothing is locked then.
fn lock_own_memory() -> io::Result<OwnMemory> {
    // Without the right, a limit on locked memory would make later allocations fail.
    if !capabilities(None)?.effective.contains(CapabilitySet::IPC_LOCK) {
        return Err(io::Error::from_raw_os_error(rustix::io::Errno::PERM.raw_os_error()));
    }
    OwnMemory::lock()
}
