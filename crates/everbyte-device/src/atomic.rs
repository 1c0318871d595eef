//! Devices that make several writes as one.

use crate::device::{BlockDevice, WriteRequest};
use crate::error::DeviceError;

/// Errors of [`AtomicWrites::write_atomic`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AtomicWriteError {
    /// The writes are too large for one atomic request. No byte changed. Fewer or smaller writes can succeed.
    #[error("too much to be written as one: {what}")]
    TooLarge {
        /// The resource without room for them.
        what: &'static str,
    },
    /// The error of a single write. No byte changed, unless the error is [`DeviceError::Media`].
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A block device that can make several writes as one.
pub trait AtomicWrites: BlockDevice {
    /// Makes all writes of `requests` or no write. A crash leaves all or no write, too. If two overlap, the
    /// later one's bytes stay. If one has [`Fua::Yes`](crate::Fua::Yes), all are durable at the return.
    /// Otherwise a crash may undo all of them together until the next flush. Readers may see some of the
    /// writes before others.
    ///
    /// # Errors
    /// `TooLarge`; the errors of `write`. After [`DeviceError::Media`] and the next opening, the device has
    /// all writes or no write.
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError>;
}
