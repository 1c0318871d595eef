//! The optional part of a device: requests without a copy.

use std::os::fd::BorrowedFd;

use crate::direct_access::DirectAccess;
use crate::error::SendError;

/// Requests of a device over mapped memory without a copy.
///
/// A device without them needs no implementation: [`BlockDevice::transport`] returns `None` by default, and
/// [`send`] copies.
///
/// [`BlockDevice::transport`]: crate::BlockDevice::transport
/// [`send`]: crate::send
pub trait Transport: Send + Sync {
    /// Sends `prefix` and then `len` bytes from `offset` on to `socket`. Blocks until all bytes are
    /// sent. Each block of 4 KiB is sent whole, as by a read.
    ///
    /// # Errors
    /// `Device` if the read fails: no byte was sent. Otherwise `Socket`.
    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError>;

    /// Returns access to the bytes of the device in memory, if there is one. A removed device has none.
    fn direct_access(&self) -> Option<&dyn DirectAccess> {
        None
    }
}
