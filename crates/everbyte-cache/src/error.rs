//! Errors of making, opening, changing and draining caches.

use everbyte_device::DeviceError;

use crate::settings::{Identity, SettingsError};

/// Errors of making, opening, changing and draining a cache.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A setting is out of range, or the header is damaged.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The volume failed.
    #[error("the volume of the cache failed: {0}")]
    Scm(#[from] DeviceError),
    /// The cache belongs to another backing device.
    #[error(
        "the cache belongs to {recorded}, and this is {found}: its pages would damage other data"
    )]
    OtherBacking {
        /// The recorded backing device.
        recorded: Box<Identity>,
        /// The one it was given.
        found: Box<Identity>,
    },
    /// The size of the backing device has changed.
    #[error("the backing device of the cache, {backing}, had {recorded} bytes and has {found} now")]
    OtherSize {
        /// The backing device.
        backing: Box<Identity>,
        /// Recorded size in bytes.
        recorded: u64,
        /// Present size in bytes.
        found: u64,
    },
    /// The bytes of the backing device differ from those of a clean page of the cache.
    #[error(
        "{found} is not the backing device of this cache, or was changed without it: at byte {offset} it \
         has other bytes than the cache read there; nothing was changed"
    )]
    OtherBytes {
        /// The backing device.
        found: Box<Identity>,
        /// First byte of the differing page.
        offset: u64,
    },
    /// No evidence shows that this is the cache's backing device in a new place.
    #[error(
        "nothing shows that {found} is the backing device of this cache, which was {recorded}: it is \
         another file, device or address, and only {matched} of the cache's clean pages agree with \
         it, of the {needed} that would prove it; bring the backing device back to where it was and detach \
         the cache there"
    )]
    NoProof {
        /// The recorded backing device.
        recorded: Box<Identity>,
        /// The one it was given.
        found: Box<Identity>,
        /// Pages that agree.
        matched: u64,
        /// Agreeing pages required as proof.
        needed: u64,
    },
    /// The backing device could not be read.
    #[error("the backing device failed: {0}")]
    Backing(#[source] DeviceError),
    /// The volume is too small or too large.
    #[error("the volume has {found} bytes, and a cache of this backing device takes {needed}")]
    VolumeSize {
        /// Bytes it has.
        found: u64,
        /// Bytes it needs.
        needed: u64,
    },
    /// The volume cannot be written, so nothing could leave the cache.
    #[error("the volume of the cache is read-only, and evicted pages must be written")]
    ReadOnly,
    /// Pages could not be written back.
    #[error("{pages} pages could not be written back: {reason}; nothing is lost, try again")]
    NotDrained {
        /// Pages that remain dirty.
        pages: u64,
        /// Error of the backing device or of the volume.
        reason: String,
    },
}
