//! Errors of devices.

use std::io;

/// Errors of requests to a [`BlockDevice`](crate::BlockDevice).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The request leaves the device.
    #[error("request of {len} bytes at {offset} leaves the device of {size_bytes} bytes")]
    OutOfRange {
        /// First byte of the request.
        offset: u64,
        /// Bytes of the request.
        len: u64,
        /// Size of the device.
        size_bytes: u64,
    },
    /// No space is left for the write. The device did nothing.
    #[error("no space left for {len} bytes at {offset}: {reason}")]
    NoSpace {
        /// First byte of the request.
        offset: u64,
        /// Bytes of the request.
        len: u64,
        /// The store without space.
        reason: String,
    },
    /// The device is read-only.
    #[error("the device is read-only: {reason}")]
    ReadOnly {
        /// The reason.
        reason: String,
    },
    /// The request asked for fast zeroing, and the device cannot zero the range faster than by writing.
    #[error("zeroing here is not faster than writing")]
    NotFast,
    /// The medium failed. The range may have neither the old nor the new bytes.
    #[error("media error at {offset}+{len}: {reason}")]
    Media {
        /// First byte of the request.
        offset: u64,
        /// Bytes of the request.
        len: u64,
        /// The medium's message.
        reason: String,
    },
    /// The device is being removed.
    #[error("the device is going away")]
    Gone,
}

/// Errors of [`send`](crate::send).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The device could not read. No byte was sent, not even the prefix.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The socket failed, possibly within the message. The connection is unusable.
    #[error("sending failed: {0}")]
    Socket(#[from] io::Error),
}
