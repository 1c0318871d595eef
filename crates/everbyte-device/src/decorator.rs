//! Devices in front of others.
//!
//! Owns the one place where requests are passed on. Knows no decorator.

use std::os::fd::BorrowedFd;

use crate::device::{
    BlockDevice, DeviceError, Extent, Fua, Geometry, Hole, SendError, WriteRequest, check_range,
    read_and_send,
};
use crate::lend::Lends;

/// Route of a [`send`](BlockDevice::send), which is a read, and of a
/// [`write_batch`](BlockDevice::write_batch), which is several writes, where a [`Decorator`] does not
/// override them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compound {
    /// They go to the inner device as they are, which may be faster. For a decorator that overrides
    /// neither `read` nor `write`, or overrides these two as well.
    Forwarded,
    /// They are made of the decorator's own `read` and `write`, so that it sees every request.
    Split,
}

/// A device in front of another: it overrides the requests that it does something about, and every
/// other one goes to the inner device.
///
/// A decorator is a [`BlockDevice`], and that is what its users call. This trait has the same methods
/// once more, to be overridden. It is best not imported but named by its path in the `impl`; in
/// there, calls of a decorator need the name of the trait as well, as in `BlockDevice::flush(self)`.
pub trait Decorator: Send + Sync {
    /// The device behind it.
    type Inner: BlockDevice + ?Sized;

    /// Route of `send` and `write_batch` if they are not overridden.
    const COMPOUND: Compound;

    /// The device behind it.
    fn inner(&self) -> &Self::Inner;

    /// See [`BlockDevice::geometry`].
    fn geometry(&self) -> Geometry {
        self.inner().geometry()
    }

    /// See [`BlockDevice::read`].
    ///
    /// # Errors
    /// Those of the inner device.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.inner().read(offset, out)
    }

    /// See [`BlockDevice::send`].
    ///
    /// # Errors
    /// Those of the inner device.
    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        match Self::COMPOUND {
            Compound::Forwarded => self.inner().send(offset, len, prefix, socket),
            Compound::Split => {
                check_range(offset, len as u64, Decorator::geometry(self).size_bytes)?;
                read_and_send(|at, out| self.read(at, out), (offset, len), prefix, socket)
            }
        }
    }

    /// See [`BlockDevice::write`].
    ///
    /// # Errors
    /// Those of the inner device.
    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.inner().write(offset, data, fua)
    }

    /// See [`BlockDevice::write_batch`].
    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        match Self::COMPOUND {
            Compound::Forwarded => self.inner().write_batch(requests),
            Compound::Split => {
                requests.iter().map(|r| self.write(r.offset, r.data, r.fua)).collect()
            }
        }
    }

    /// See [`BlockDevice::flush`].
    ///
    /// # Errors
    /// Those of the inner device.
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner().flush()
    }

    /// See [`BlockDevice::discard`].
    ///
    /// # Errors
    /// Those of the inner device.
    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.inner().discard(offset, len, fua)
    }

    /// See [`BlockDevice::write_zeroes`].
    ///
    /// # Errors
    /// Those of the inner device.
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.inner().write_zeroes(offset, len, hole, fast, fua)
    }

    /// See [`BlockDevice::status`].
    ///
    /// # Errors
    /// Those of the inner device.
    fn status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        self.inner().status(offset, len, extents_max)
    }

    /// See [`BlockDevice::cache`].
    ///
    /// # Errors
    /// Those of the inner device.
    fn cache(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner().cache(offset, len)
    }

    /// See [`BlockDevice::lender`]. Bytes that are used where they lie pass no decorator, so it lends none
    /// unless it says so.
    fn lender(&self) -> Option<&dyn Lends> {
        None
    }
}

#[deny(
    clippy::missing_trait_methods,
    reason = "a method with a default that is not passed on would never reach the inner device"
)]
impl<D: Decorator> BlockDevice for D {
    fn geometry(&self) -> Geometry {
        Decorator::geometry(self)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        Decorator::read(self, offset, out)
    }

    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        Decorator::send(self, offset, len, prefix, socket)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        Decorator::write(self, offset, data, fua)
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        Decorator::write_batch(self, requests)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Decorator::flush(self)
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        Decorator::discard(self, offset, len, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        Decorator::write_zeroes(self, offset, len, hole, fast, fua)
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        Decorator::status(self, offset, len, extents_max)
    }

    fn cache(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        Decorator::cache(self, offset, len)
    }

    fn lender(&self) -> Option<&dyn Lends> {
        Decorator::lender(self)
    }
}

#[cfg(test)]
mod tests;
