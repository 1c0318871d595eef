//! A volume in DRAM that keeps everything, and the places in a volume of a cache: written from
//! `docs/format.md`, not from the program.

use everbyte_device::{
    AtomicWriteError, AtomicWrites, BlockDevice, MemoryDevice, Passthrough, WriteRequest,
};

use super::PAGE;

/// Returns the byte offset of a page's mark; all pages are in the first group.
pub(crate) fn mark_at(page: usize) -> u64 {
    (PAGE + page) as u64
}

/// Returns the byte offset of a page's bytes.
pub(crate) fn page_at(page: usize) -> u64 {
    ((2 + page) * PAGE) as u64
}

/// A volume in DRAM that keeps everything.
pub(crate) struct Volume(MemoryDevice);

impl Volume {
    pub(crate) fn new(size_bytes: u64) -> Self {
        Self(MemoryDevice::new(size_bytes))
    }
}

impl everbyte_device::Decorator for Volume {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.0
    }
}

impl AtomicWrites for Volume {
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        // Atomic by nature: stories do not crash within a call.
        for request in requests {
            self.0.write(request.offset, request.data, request.fua)?;
        }
        Ok(())
    }
}
