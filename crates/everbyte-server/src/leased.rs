//! A volume as one client has it open.
//!
//! Invariant: the client counts as one until the last of its requests is done.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use everbyte_device::{
    BlockDevice, DeviceError, Extent, Fua, Geometry, Hole, SendError, WriteRequest,
};

use crate::gate::Lease;

/// A volume's device that counts its user as a client as long as it lives.
pub(crate) struct Leased {
    device: Arc<dyn BlockDevice>,
    _lease: Lease,
}

impl Leased {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, lease: Lease) -> Self {
        Self { device, _lease: lease }
    }
}

impl BlockDevice for Leased {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(offset, out)
    }

    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        self.device.send(offset, len, prefix, socket)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.device.write(offset, data, fua)
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        self.device.write_batch(requests)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.device.discard(offset, len, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.device.write_zeroes(offset, len, hole, fast, fua)
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        self.device.status(offset, len, extents_max)
    }

    fn cache(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.device.cache(offset, len)
    }
}
