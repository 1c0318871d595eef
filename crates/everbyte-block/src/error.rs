//! Errors of the extent and the volume, as a client gets them.

use everbyte_device::DeviceError;
use everbyte_extent::{BlockReadError, ExtentError};
use everbyte_media::Medium;
use everbyte_pool::{Volume, WriteError};

/// A request, for error messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestRange {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl RequestRange {
    /// The error of a request failed with `error`. Damage of the map stops all writing to `volume`.
    pub(crate) fn failed<M: Medium>(
        self,
        volume: &Volume<M>,
        error: impl Into<ExtentError>,
    ) -> DeviceError {
        let error = error.into();
        if let ExtentError::Corrupt(damage)
        | ExtentError::BlockReadError(BlockReadError::Map(damage)) = &error
        {
            // A write by a damaged map could reach the blocks of another volume.
            volume.fail(damage);
        }
        match error {
            ExtentError::NoSpace => DeviceError::NoSpace {
                offset: self.offset,
                len: self.len,
                reason: "the pool is full".into(),
            },
            ExtentError::OutOfRange { size_bytes } => {
                DeviceError::OutOfRange { offset: self.offset, len: self.len, size_bytes }
            }
            ExtentError::Write(WriteError::ReadOnly { reason }) => DeviceError::ReadOnly { reason },
            ExtentError::Write(WriteError::Gone) => DeviceError::Gone,
            other => self.media(&other),
        }
    }

    /// The error of a request with its first `done` bytes done: an error other than a media error says that
    /// nothing was. `Gone` stays.
    pub(crate) fn after_part(self, done: u64, error: DeviceError) -> DeviceError {
        match error {
            DeviceError::Gone | DeviceError::Media { .. } => error,
            error if done > 0 => self.media(&format!("done in part: {error}")),
            error => error,
        }
    }

    pub(crate) fn media(self, error: &impl ToString) -> DeviceError {
        DeviceError::Media { offset: self.offset, len: self.len, reason: error.to_string() }
    }
}
