//! The block volume as a [`BlockDevice`].

use std::os::fd::BorrowedFd;

use everbyte_device::{
    BlockDevice, DeviceError, DirectAccess, Extent, Fua, Geometry, Hole, SendError, Transport,
    WriteRequest,
};
use everbyte_extent::{DeviceOffset, leaf_parts};
use everbyte_media::{BLOCK_U32, Medium};

use crate::error::RequestRange;
use crate::volume::BlockVolume;

impl<M: Medium> BlockDevice for BlockVolume<M> {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes(),
            minimum_bytes: 1,
            preferred_bytes: BLOCK_U32,
            read_only: self.is_read_only(),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.read_bytes(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.write_request(WriteRequest { offset, data, fua })
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        self.write_requests(requests)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        // Read-only or not: writes may have been answered before the volume became so.
        if self.volume().is_gone() {
            return Err(DeviceError::Gone);
        }
        let everything = RequestRange { offset: 0, len: self.size_bytes() };
        self.volume().flush().map_err(|error| everything.failed(self.volume(), error))
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.zero_range(offset, len, Hole::Allowed, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        _fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        // Zeroing changes entries, never a block's worth of bytes, so it is always fast.
        self.zero_range(offset, len, hole, fua)
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        self.extents(offset, len, extents_max)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        // Everything is in memory already.
        self.check_range(RequestRange { offset, len })
    }

    fn transport(&self) -> Option<&dyn Transport> {
        Some(self)
    }
}

impl<M: Medium> Transport for BlockVolume<M> {
    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        self.send_bytes(offset, len, prefix, socket)
    }

    fn direct_access(&self) -> Option<&dyn DirectAccess> {
        if self.volume().is_gone() { None } else { Some(self) }
    }
}

impl<M: Medium> BlockVolume<M> {
    /// Makes a range read as zeroes, in parts of at most 2 MiB. Each part is atomic. After an error other
    /// than a media error and `Gone`, either no part was made, or all.
    fn zero_range(&self, offset: u64, len: u64, hole: Hole, fua: Fua) -> Result<(), DeviceError> {
        let request = RequestRange { offset, len };
        self.check_write(request)?;
        let mut epoch = 0;
        for part in leaf_parts(DeviceOffset(offset), len) {
            // For each part anew, so that a group need not wait for the whole range.
            let _op = self.volume().begin_op();
            let _blocks = self.extent().locks().write([part.blocks()]);
            let after_part = |error| request.after_part(part.offset().0 - offset, error);
            // Under the locks: a resize may have come between two parts.
            self.check_write(request).map_err(after_part)?;
            let zeroed = self.extent().zero(part, hole == Hole::Forbidden);
            let zeroed = zeroed.map_err(|error| request.failed(self.volume(), error));
            // Epochs only ascend, so the last one covers all parts.
            epoch = zeroed.map_err(after_part)?;
        }
        if fua == Fua::Yes {
            let done = self.volume().complete(epoch);
            done.map_err(|error| request.failed(self.volume(), error))?;
        }
        Ok(())
    }
}
