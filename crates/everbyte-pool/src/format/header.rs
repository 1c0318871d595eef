//! The volume header: one block of the volume table.
//!
//! Invariants: words that change while the volume lives (state, completed, root, size) carry their own check
//! bits and are each stored atomically. Of the descriptor only the name changes after creation, and it is
//! stored twice with a checksum. The two `completed` words lie in lines of their own.

use std::ops::RangeInclusive;

use everbyte_media::PoolOffset;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Corrupt;

/// Offset of the state word in a volume header.
pub const STATE_AT: u64 = 0;
/// Offset of the first copy of the last completed epoch.
pub const COMPLETED_A_AT: u64 = 64;
/// Offset of the second copy.
pub const COMPLETED_B_AT: u64 = 128;
/// Offset of the root word: an entry with the address of the top of the volume's map.
pub const ROOT_AT: u64 = 192;
/// Offset of the size word: the volume's size in sectors of 512 bytes.
pub const SIZE_AT: u64 = 200;
/// Offset of the root word of the checksums: an entry with the address of the top of their tree.
pub const CHECKSUM_ROOT_AT: u64 = 208;
/// Offset of the word with the number of dirty lines at which a background checkpoint begins; 0 for
/// [`CHECKPOINT_LINES_DEFAULT`].
pub const CHECKPOINT_LINES_AT: u64 = 216;
/// Offset of the count of used blocks at a clean shutdown, plus 1.
pub const USED_AT: u64 = 224;
/// Offset of the last epoch before that shutdown.
pub const USED_EPOCH_AT: u64 = 232;
/// Default number of dirty lines at which a background checkpoint begins: 4 MiB of them.
pub const CHECKPOINT_LINES_DEFAULT: u64 = 1 << 16;
/// Offsets of the two copies of the descriptor.
pub const DESCRIPTOR_AT: [u64; 2] = [1024, 2048];
/// Number of lanes in a log.
pub const LANES: RangeInclusive<u32> = 1..=1024;
/// Number of blocks in half a lane: enough for the records of any request within one block. Requests too
/// large for the log are split into such requests.
pub const HALF_BLOCKS: RangeInclusive<u64> = 4..=1 << 20;
/// The largest threshold in lines: one more than a block has; no block is then ever replaced.
pub const THRESHOLD_LINES_MAX: u32 = 65;
/// Longest volume name in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// The number of a kind of volume. The kind interprets the volume's contents.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VolumeKind(pub u32);

impl VolumeKind {
    /// A block device.
    pub const BLOCK: Self = Self(1);
    /// The SCM of a cache before a backing device: a block device inside, with pages of the backing device
    /// and marks of the newer pages.
    pub const CACHE: Self = Self(3);
}

impl std::fmt::Display for VolumeKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kind {}", self.0)
    }
}

/// The life of a volume header, one durable word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VolumeState {
    /// No volume here; the rest of the header means nothing.
    Free,
    /// A volume. Only here do log and map count.
    Active,
    /// A volume during the release of its blocks.
    Deleting,
}

impl VolumeState {
    /// The value in the state word.
    #[must_use]
    pub fn code(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Active => 1,
            Self::Deleting => 2,
        }
    }

    /// The state with this value.
    #[must_use]
    pub fn from_code(code: u64) -> Option<Self> {
        [Self::Free, Self::Active, Self::Deleting].into_iter().find(|s| s.code() == code)
    }
}

/// Constant properties of a volume, and its name. Stored twice, with a checksum each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Descriptor {
    /// Identity, never used twice in a pool.
    pub uid: u64,
    /// The number of its [`VolumeKind`].
    pub kind: u32,
    /// The kind's own choice of map (block: 0 radix, 1 direct).
    pub map: u32,
    /// UTF-8 name, padded with zero bytes.
    pub name: [u8; 64],
    /// First block of the log.
    pub log_start: u64,
    /// Lanes of the log.
    pub lanes: u32,
    /// Blocks in half a lane.
    pub half_blocks: u32,
    /// Lines to log from which on a block is replaced instead: 0 to 65.
    pub threshold_lines: u32,
    /// The kind's own choice of translation (block: 0 auto, 1 on, 2 off).
    pub delta: u32,
    /// Creation time, seconds since 1970.
    pub created_s: u64,
    /// Random number in every record of the log: no client can make bytes that pass for a record.
    pub log_key: u64,
    /// Checksum of every block of data: 0 none, 1 CRC-32C.
    pub checksum: u32,
    /// CRC-32C of everything before this field.
    pub crc: u32,
}

const _: () = assert!(size_of::<Descriptor>() == 128);
const _: () = assert!(NAME_BYTES_MAX == 64);
const CRC_AT: usize = size_of::<Descriptor>() - 4;

impl Descriptor {
    /// The same with the checksum put right.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.crc = crc32c::crc32c(&self.as_bytes()[..CRC_AT]);
        self
    }

    /// Reads and judges one copy. The log must lie in `data_start .. size_blocks`.
    ///
    /// # Errors
    /// `Corrupt`, with a description of the damage.
    pub fn parse(
        bytes: &[u8],
        at: PoolOffset,
        data_start: u64,
        size_blocks: u64,
    ) -> Result<Self, Corrupt> {
        let wrong = |what: &str| Err(Corrupt::new("volume descriptor", at, what));
        let Ok((d, _)) = Self::read_from_prefix(bytes) else {
            return wrong("it is cut short");
        };
        // First: without the checksum no other field has a meaning.
        if d.crc != crc32c::crc32c(&d.as_bytes()[..CRC_AT]) {
            return wrong("its checksum is wrong");
        }
        let log_can_be =
            LANES.contains(&d.lanes) && HALF_BLOCKS.contains(&u64::from(d.half_blocks));
        if d.has_log() && !log_can_be {
            return wrong("its log has too few or too many lanes, or too small or too large ones");
        }
        if d.threshold_lines > THRESHOLD_LINES_MAX {
            return wrong("its threshold is more lines than a block has");
        }
        // A checksum does not bound the fields: their sum may overflow.
        let end = d.log_start.checked_add(d.log_blocks());
        if d.has_log() && (d.log_start < data_start || end.is_none_or(|end| end > size_blocks)) {
            return wrong("its log does not fit the pool");
        }
        if d.checksum > 1 {
            return wrong("it has checksums that this program does not know");
        }
        if d.name().is_empty() {
            return wrong("it has no name");
        }
        Ok(d)
    }

    /// The name; empty if it is not UTF-8.
    #[must_use]
    pub fn name(&self) -> &str {
        // A name of the full length has no terminator.
        let end = self.name.iter().position(|&b| b == 0).unwrap_or(NAME_BYTES_MAX);
        std::str::from_utf8(&self.name[..end]).unwrap_or("")
    }

    /// The volume's kind. This program may not know it.
    #[must_use]
    pub fn volume_kind(&self) -> VolumeKind {
        VolumeKind(self.kind)
    }

    /// Returns true if the volume has a log. Without a log, all log fields are 0.
    #[must_use]
    pub fn has_log(&self) -> bool {
        (self.log_start, self.lanes, self.half_blocks) != (0, 0, 0)
    }

    /// Blocks of the whole log; more than any pool has if there are too many to count.
    #[must_use]
    pub fn log_blocks(&self) -> u64 {
        (2 * u64::from(self.lanes)).saturating_mul(u64::from(self.half_blocks))
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn log_size_and_place_are_checked() {
        let mut descriptor = Descriptor::new_zeroed();
        descriptor.kind = VolumeKind::BLOCK.0;
        descriptor.name[0] = b'v';
        let mut parse = |log_start, lanes, half_blocks| {
            (descriptor.log_start, descriptor.lanes, descriptor.half_blocks) =
                (log_start, lanes, half_blocks);
            let bytes = descriptor.sealed();
            Descriptor::parse(bytes.as_bytes(), PoolOffset(0), 66, 1000).map_err(|e| e.to_string())
        };
        assert!(parse(66, 1, 4).is_ok());
        for (log_start, lanes, half_blocks) in
            [(65, 1, 4), (993, 1, 4), (u64::MAX, 1, 4), (66, 2, 400)]
        {
            assert!(parse(log_start, lanes, half_blocks).unwrap_err().contains("does not fit"));
        }
        // Of the last, 2 * lanes * half_blocks is a multiple of 2^64, and 4.
        let impossible =
            [(0, 4), (1025, 4), (1, 3), (1, (1 << 20) + 1), (2_147_549_185, 4_294_836_226)];
        for (lanes, half_blocks) in impossible {
            assert!(parse(66, lanes, half_blocks).unwrap_err().contains("too few or too many"));
        }
    }
}
