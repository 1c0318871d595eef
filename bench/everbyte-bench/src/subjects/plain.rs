//! Devices of bare memory or without memory. They leave only the cost of the server.

use std::os::fd::BorrowedFd;

use everbyte_device::{
    BlockDevice, DeviceError, Extent, Fua, Geometry, Hole, SendError, Transport, check_range,
    send_all,
};
use everbyte_media::{Mapped, MediaOptions, Medium, OpenError, Piece, PoolOffset};

/// Bytes in memory without protection, or a null device. It sends without a copy, as the volume does.
pub(crate) struct PlainDevice {
    size_bytes: u64,
    medium: Mapped,
    /// True for memory. A null device reads as zeroes.
    keeps: bool,
}

impl PlainDevice {
    /// A null device of `size_bytes`.
    ///
    /// # Errors
    /// The system has no memory.
    pub(crate) fn null(size_bytes: u64) -> Result<Self, OpenError> {
        let medium = Mapped::anonymous(4096, &MediaOptions::new())?;
        Ok(Self { size_bytes, medium, keeps: false })
    }

    /// A device over `medium`. It streams and fences every write: the least work of a durable device.
    pub(crate) fn memory(medium: Mapped) -> Self {
        Self { size_bytes: medium.len(), medium, keeps: true }
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(offset, len, self.size_bytes)
    }
}

impl Transport for PlainDevice {
    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        self.check(offset, len as u64)?;
        let data = match self.keeps {
            true => Piece::Stored { at: PoolOffset(offset), len },
            false => Piece::Zeroes { len },
        };
        let sent = self.medium.send(socket, &[Piece::Bytes(prefix), data])?;
        send_all(socket, &prefix[sent.min(prefix.len())..])?;
        // A socket can take a part. The rest goes by a copy.
        let data_sent = sent.saturating_sub(prefix.len());
        let mut rest = vec![0; len - data_sent];
        self.read(offset + data_sent as u64, &mut rest)?;
        send_all(socket, &rest)?;
        Ok(())
    }
}

impl BlockDevice for PlainDevice {
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
        match self.keeps {
            true => self.medium.read(PoolOffset(offset), out),
            false => out.fill(0),
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], _fua: Fua) -> Result<(), DeviceError> {
        self.check(offset, data.len() as u64)?;
        if self.keeps {
            self.medium.stream(PoolOffset(offset), data);
            // A failure of memory ends this process before the fence returns.
            let _fails_only_with_the_process = self.medium.fence();
        }
        Ok(())
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

    fn transport(&self) -> Option<&dyn Transport> {
        Some(self)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.check(offset, len)
    }
}
