//! A device that does nothing: what is left is the server.

use std::os::fd::BorrowedFd;

use everbyte_device::{
    BlockDevice, DeviceError, Extent, Fua, Geometry, Hole, SendError, check_range, send_all,
};
use everbyte_media::{Mapped, MediaOptions, Medium, OpenError, Piece};

/// Reads as zeroes and forgets writes. It sends as the volume does, without copying.
pub(crate) struct NullDevice {
    size_bytes: u64,
    sender: Mapped,
}

impl NullDevice {
    /// A device of `size_bytes`.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(size_bytes: u64) -> Result<Self, OpenError> {
        Ok(Self { size_bytes, sender: Mapped::anonymous(4096, &MediaOptions::new())? })
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(offset, len, self.size_bytes)
    }
}

impl BlockDevice for NullDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes,
            minimum_bytes: 1,
            preferred_bytes: 4096,
            read_only: false,
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.check(offset, out.len() as u64)?;
        out.fill(0);
        Ok(())
    }

    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        self.check(offset, len as u64)?;
        let pieces = [Piece::Bytes(prefix), Piece::Zeroes { len }];
        let sent = self.sender.send(socket, &pieces)?;
        send_all(socket, &prefix[sent.min(prefix.len())..])?;
        let zeroes_sent = sent.saturating_sub(prefix.len());
        send_all(socket, &vec![0; len - zeroes_sent])?;
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], _fua: Fua) -> Result<(), DeviceError> {
        self.check(offset, data.len() as u64)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64, _fua: Fua) -> Result<(), DeviceError> {
        self.check(offset, len)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        _hole: Hole,
        _fast: bool,
        _fua: Fua,
    ) -> Result<(), DeviceError> {
        self.check(offset, len)
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        _extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        self.check(offset, len)?;
        Ok(vec![Extent { len, hole: true, zero: true }])
    }

    fn cache(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.check(offset, len)
    }
}
