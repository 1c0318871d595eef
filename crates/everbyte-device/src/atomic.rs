//! Devices that make several writes as one.

use crate::device::{BlockDevice, WriteRequest};
use crate::error::DeviceError;

/// Errors of [`AtomicWrites::write_atomic`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AtomicWriteError {
    /// So much cannot be written at once; nothing was done. Fewer or smaller writes can be.
    #[error("too much to be written as one: {what}")]
    TooLarge {
        /// The thing that it does not fit into.
        what: &'static str,
    },
    /// As of a single write: nothing was done, unless the error is [`DeviceError::Media`].
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A block device that can make several writes as one.
pub trait AtomicWrites: BlockDevice {
    /// Makes every write of `requests` or none of them; a crash, too, leaves all or none. Where two
    /// overlap, the later one's bytes stay. If one has [`Fua::Yes`](crate::Fua::Yes), all are durable
    /// when this returns; else a crash may undo them, together, until the next flush. Readers may see
    /// some of the writes before others.
    ///
    /// # Errors
    /// `TooLarge`; those of `write`. After [`DeviceError::Media`] all or none are there after the
    /// device was opened again.
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError>;
}
