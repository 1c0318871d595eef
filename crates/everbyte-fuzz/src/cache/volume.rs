//! A volume in memory that keeps everything, and where things lie in a volume of a cache: written
//! from `docs/format.md`, not from the program.

use everbyte_device::{
    AtomicWriteError, AtomicWrites, BlockDevice, DeviceError, Extent, Fua, Geometry, Hole,
    MemoryDevice, WriteRequest,
};

use super::PAGE;

/// Where the mark of a page lies; all pages are in the first group.
pub(crate) fn mark_at(page: usize) -> u64 {
    (PAGE + page) as u64
}

/// Where the bytes of a page lie.
pub(crate) fn page_at(page: usize) -> u64 {
    ((2 + page) * PAGE) as u64
}

/// A volume in memory that keeps everything.
pub(crate) struct Volume(MemoryDevice);

impl Volume {
    pub(crate) fn new(size_bytes: u64) -> Self {
        Self(MemoryDevice::new(size_bytes))
    }
}

impl BlockDevice for Volume {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.0.write(offset, data, fua)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.0.discard(offset, len, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.0.write_zeroes(offset, len, hole, fast, fua)
    }

    fn status(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, DeviceError> {
        self.0.status(offset, len, max)
    }

    fn cache(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.0.cache(offset, len)
    }
}

impl AtomicWrites for Volume {
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        for request in requests {
            self.0.write(request.offset, request.data, request.fua)?;
        }
        Ok(())
    }
}
