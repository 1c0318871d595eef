//! Why caches cannot be made, opened, changed or emptied.

use everbyte_device::DeviceError;

use crate::settings::{Identity, SettingsError};

/// Why a cache cannot be made or opened.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The settings cannot be, or the header is damaged.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The volume failed.
    #[error("the volume of the cache failed: {0}")]
    Memory(#[from] DeviceError),
    /// The storage is another one than the cache belongs to.
    #[error(
        "the cache belongs to {recorded}, and this is {found}: its pages would damage other data"
    )]
    OtherStorage {
        /// The storage that it belongs to.
        recorded: Box<Identity>,
        /// The one it was given.
        found: Box<Identity>,
    },
    /// The storage has another size than it had.
    #[error("the storage of the cache, {storage}, had {recorded} bytes and has {found} now")]
    OtherSize {
        /// The storage.
        storage: Box<Identity>,
        /// Bytes it had.
        recorded: u64,
        /// Bytes it has.
        found: u64,
    },
    /// The storage has other bytes than clean pages of the cache.
    #[error(
        "{found} is not the storage of this cache, or was changed without it: at byte {offset} it \
         has other bytes than the cache read there; nothing was changed"
    )]
    OtherBytes {
        /// The storage.
        found: Box<Identity>,
        /// First byte of the page that differs.
        offset: u64,
    },
    /// Nothing shows that this is the storage which has moved.
    #[error(
        "nothing shows that {found} is the storage of this cache, which was {recorded}: it is \
         another file, device or address, and only {matched} of the cache's clean pages agree with \
         it, of the {needed} that would prove it; bring the storage back to where it was and detach \
         the cache there"
    )]
    NoProof {
        /// The storage that it belongs to.
        recorded: Box<Identity>,
        /// The one it was given.
        found: Box<Identity>,
        /// Pages that agree.
        matched: u64,
        /// Pages that would do.
        needed: u64,
    },
    /// The storage could not be read.
    #[error("the storage failed: {0}")]
    Storage(#[source] DeviceError),
    /// The volume is too small or too large.
    #[error("the volume has {found} bytes, and a cache of this storage takes {needed}")]
    VolumeSize {
        /// Bytes it has.
        found: u64,
        /// Bytes it needs.
        needed: u64,
    },
    /// The volume cannot be written, so nothing could leave the cache.
    #[error("the volume of the cache is read-only, and a cache must write what leaves it")]
    ReadOnly,
    /// Pages could not be written back.
    #[error("{pages} pages could not be written back: {reason}; nothing is lost, try again")]
    NotDrained {
        /// Pages that remain dirty.
        pages: u64,
        /// The storage's or the volume's words.
        reason: String,
    },
}
