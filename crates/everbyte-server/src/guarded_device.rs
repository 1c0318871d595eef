//! A device with a guard: the lease of a client, or a lock of the process's memory.
//!
//! Invariant: the guard lives until the last request to the device is done.

use std::ops::Deref;

use everbyte_device::{BlockDevice, Decorator, Passthrough};

/// The device behind the pointer `P`, with a guard `G` for as long as it lives.
pub(crate) struct GuardedDevice<P, G> {
    device: P,
    _guard: G,
}

impl<P, G> GuardedDevice<P, G> {
    pub(crate) fn new(device: P, guard: G) -> Self {
        Self { device, _guard: guard }
    }
}

impl<P, G> Decorator for GuardedDevice<P, G>
where
    P: Deref<Target: BlockDevice> + Send + Sync,
    G: Send + Sync,
{
    type Inner = P::Target;
    const PASSTHROUGH: Passthrough = Passthrough::Whole;

    fn inner(&self) -> &Self::Inner {
        &self.device
    }
}
