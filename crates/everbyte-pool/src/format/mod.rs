//! The bytes of a pool: layout types and the rules of their validity.
//!
//! Owns every `repr(C)` type of the medium. `docs/format.md` is the only other place with byte tables and is
//! checked against these types. Integers are little-endian. Knows nothing of the times and the order of
//! writes.

mod header;
mod record;
mod superblock;
mod word;

pub use header::{
    CHECKPOINT_LINES_AT, CHECKPOINT_LINES_DEFAULT, CHECKSUM_ROOT_AT, COMPLETED_A_AT,
    COMPLETED_B_AT, DESCRIPTOR_AT, Descriptor, HALF_BLOCKS, LANES, NAME_BYTES_MAX, ROOT_AT,
    SIZE_AT, STATE_AT, THRESHOLD_LINES_MAX, USED_AT, USED_EPOCH_AT, VolumeKind, VolumeState,
};
pub use record::{RecordHeader, RecordKind, WordItem};
pub(crate) use record::{lines_record_bytes, words_record_bytes};
pub use superblock::{MAGIC, RO_COMPAT_CHECKSUMS, SUPERBLOCK_COPIES, Superblock};
pub use word::{Entry, EntryFlags, decode_word, encode_word};

use everbyte_media::PoolOffset;

/// Bytes at an address that contradict the format.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{structure} at {at} is corrupt: {what}")]
pub struct Corrupt {
    /// The structure by its name in `docs/format.md`.
    pub structure: String,
    /// Its offset in the pool, in bytes.
    pub at: PoolOffset,
    /// Description of the damage.
    pub what: String,
}

impl Corrupt {
    /// Shorthand constructor.
    pub fn new(structure: impl Into<String>, at: PoolOffset, what: impl Into<String>) -> Self {
        Self { structure: structure.into(), at, what: what.into() }
    }

    /// Returns true if the bytes may be sound, and are not a pool or one of another version.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.structure == "superblock" && FOREIGN.iter().any(|what| self.what.contains(what))
    }
}

/// Parts of the texts about foreign, undamaged superblocks.
const FOREIGN: [&str; 4] =
    ["this is no pool", "this program knows", "this program does not know", "too short to hold it"];

#[cfg(test)]
mod tests;
