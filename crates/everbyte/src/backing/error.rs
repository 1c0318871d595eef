//! The error of unusable backing devices.

use std::io::ErrorKind;
use std::time::Duration;

use everbyte_device::FileDeviceError;

/// Reasons why a backing device cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackingError {
    /// The file does not exist.
    #[error("there is no backing device {text}: {source}")]
    NotFound {
        /// The path or URI of the backing device.
        text: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Its path cannot be recorded.
    #[error("the path of {text} is not UTF-8")]
    Name {
        /// The path or URI of the backing device.
        text: String,
    },
    /// A file or block device cannot be used.
    #[error("cannot use the backing device: {0}")]
    File(#[from] FileDeviceError),
    /// An export cannot be used.
    #[cfg(feature = "nbd")]
    #[error("cannot use the backing device {uri}: {source}")]
    Remote {
        /// Its URI.
        uri: String,
        /// The NBD client's error.
        source: Box<everbyte_nbd::ClientError>,
    },
    /// The program was built without a client for exports.
    #[error("cannot use the backing device {uri}: NBD URIs need the feature `nbd`")]
    NoClient {
        /// Its URI.
        uri: String,
    },
    /// It shares bytes with another open device of this process.
    #[error("{text} shares bytes with {other}, which is in use")]
    Shared {
        /// The path of the backing device.
        text: String,
        /// The other device.
        other: String,
    },
    /// The process has no rights to open it.
    #[error("the backing device {text} is not opened: {reason}")]
    Untrusted {
        /// The path or URI of the backing device.
        text: String,
        /// The reason.
        reason: String,
    },
    /// It cannot be opened with the rights of a user.
    #[error(
        "{source}; user {uid} can change the pool or asks for the device, so it is opened with the rights of user {uid} \
         only"
    )]
    Rights {
        /// The user.
        uid: u32,
        /// The error.
        source: Box<BackingError>,
    },
    /// It does not answer. Opening it continues in the background, and a late result is closed
    /// again.
    #[error("the backing device {text} has not answered for {} s", silence.as_secs())]
    Silent {
        /// The path or URI of the backing device.
        text: String,
        /// Time since its last answer.
        silence: Duration,
    },
    /// The system could not start a thread to open it on.
    #[error("cannot open the backing device {text}: {what}")]
    Thread {
        /// The path or URI of the backing device.
        text: String,
        /// The system's error.
        what: String,
    },
}

impl BackingError {
    /// Returns true if the backing device does not exist, false if it exists and cannot be used.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        match self {
            Self::NotFound { .. } => true,
            Self::Rights { source, .. } => source.is_missing(),
            Self::File(FileDeviceError::Io { error, .. }) => error.kind() == ErrorKind::NotFound,
            #[cfg(feature = "nbd")]
            Self::Remote { source, .. } => {
                matches!(**source, everbyte_nbd::ClientError::Connect { .. })
            }
            _ => false,
        }
    }

    /// Returns true if the path leads to something else than a file or a block device.
    #[must_use]
    pub fn is_wrong_type(&self) -> bool {
        match self {
            Self::Rights { source, .. } => source.is_wrong_type(),
            Self::File(FileDeviceError::Kind { .. }) => true,
            _ => false,
        }
    }
}
