//! Devices in front of others.
//!
//! Owns the forwarding of requests. Knows no decorator.

use crate::device::{BlockDevice, Extent, Fua, Geometry, Hole, WriteRequest};
use crate::error::DeviceError;
use crate::transport::Transport;

/// Route of composite requests without an override of the [`Decorator`]: a send is a read, and a
/// [`write_batch`](BlockDevice::write_batch) is several writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passthrough {
    /// The inner device gets such a request whole, by its own transport. This may be faster. The decorator must
    /// override neither `read` nor `write`, or override `transport` and `write_batch` as well.
    Whole,
    /// The decorator's own `read` and `write` serve such a request, so it sees each of them.
    Split,
}

/// A device in front of another. It overrides some requests and forwards all others to the inner device.
///
/// A decorator is a [`BlockDevice`], and its users call the methods of [`BlockDevice`]. This trait repeats
/// these methods for overrides. Name the trait by its path in the `impl` instead of an import. Calls of
/// a decorator in the `impl` need the name of the trait, as in `BlockDevice::flush(self)`.
pub trait Decorator: Send + Sync {
    /// The device behind it.
    type Inner: BlockDevice + ?Sized;

    /// Route of sends and of `write_batch`, if they are not overridden.
    const PASSTHROUGH: Passthrough;

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

    /// See [`BlockDevice::write`].
    ///
    /// # Errors
    /// Those of the inner device.
    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.inner().write(offset, data, fua)
    }

    /// See [`BlockDevice::write_batch`].
    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        match Self::PASSTHROUGH {
            Passthrough::Whole => self.inner().write_batch(requests),
            Passthrough::Split => {
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

    /// See [`BlockDevice::prefetch`].
    ///
    /// # Errors
    /// Those of the inner device.
    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner().prefetch(offset, len)
    }

    /// See [`BlockDevice::transport`].
    fn transport(&self) -> Option<&dyn Transport> {
        match Self::PASSTHROUGH {
            Passthrough::Whole => self.inner().transport(),
            // Without a transport, a send becomes a read by this decorator.
            Passthrough::Split => None,
        }
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

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        Decorator::read(self, offset, out)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        Decorator::write(self, offset, data, Fua::No)
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        Decorator::write(self, offset, data, Fua::Yes)
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

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        Decorator::prefetch(self, offset, len)
    }

    fn transport(&self) -> Option<&dyn Transport> {
        Decorator::transport(self)
    }
}

#[cfg(test)]
mod tests;
