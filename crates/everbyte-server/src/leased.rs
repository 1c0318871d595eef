//! A volume as one client has it open.
//!
//! Invariant: the client counts as one until the last of its requests is done.

use std::sync::Arc;

use everbyte_device::{BlockDevice, Passthrough};

use crate::quiesce::Lease;

/// A volume's device. It counts its user as a client as long as it lives.
pub(crate) struct Leased {
    device: Arc<dyn BlockDevice>,
    _lease: Lease,
}

impl Leased {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, lease: Lease) -> Self {
        Self { device, _lease: lease }
    }
}

impl everbyte_device::Decorator for Leased {
    type Inner = dyn BlockDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Whole;

    fn inner(&self) -> &Self::Inner {
        &*self.device
    }
}
