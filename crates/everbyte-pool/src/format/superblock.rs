//! The superblock: identity and geometry of a pool, stored twice, in blocks 0 and 1.
//!
//! Invariants: among the copies with a right checksum, the copy with the larger generation is the true one.
//! The copies are written one after the other, each flushed and fenced: one copy is whole at any time.

use everbyte_media::{BLOCK_U32, BLOCK_U64, PoolOffset};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Corrupt;

/// First bytes of every superblock.
pub const MAGIC: [u8; 8] = *b"EVERBYTE";
const VERSION: u32 = 1;

/// Features a reader may ignore.
const COMPAT_KNOWN: u64 = 0;
/// The pool has, or had, volumes with checksums of their data. Only a writer must know this feature.
pub const RO_COMPAT_CHECKSUMS: u64 = 1;
/// Features for every program to know.
const INCOMPAT_KNOWN: u64 = 0;

/// Counters beyond this are wrong; those below never run out.
const COUNTER_MAX: u64 = u64::MAX / 2;

/// Offsets of the two copies.
pub const SUPERBLOCK_COPIES: [PoolOffset; 2] = [PoolOffset(0), PoolOffset(BLOCK_U64)];

/// The pool's description, stored twice, in blocks 0 and 1. Of those copies with a right checksum
/// the one with the larger generation counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Superblock {
    /// "EVERBYTE".
    pub magic: [u8; 8],
    /// Format version, 1.
    pub version: u32,
    /// Bytes in a block, 4096.
    pub block_bytes: u32,
    /// Features that a reader or writer may ignore.
    pub compat: u64,
    /// Features that forbid writing to programs without knowledge of them.
    pub ro_compat: u64,
    /// Features that forbid everything to programs without knowledge of them.
    pub incompat: u64,
    /// Random identity of the pool.
    pub pool_uid: [u8; 16],
    /// Counts rewrites of the superblock, from 1.
    pub generation: u64,
    /// Blocks in the pool, superblocks included.
    pub size_blocks: u64,
    /// First block of the volume table.
    pub table_start: u64,
    /// Volume headers in the table, one block each.
    pub table_slots: u64,
    /// First block of the allocator.
    pub data_start: u64,
    /// UID for the next volume; never goes back.
    pub next_volume_uid: u64,
    /// 1 after a clean shutdown, 0 while open.
    pub clean: u64,
    /// First block of the saved allocator state, 0 if there is none.
    pub saved_start: u64,
    /// Bytes of the saved allocator state.
    pub saved_bytes: u64,
    /// CRC-32C of the saved allocator state.
    pub saved_crc: u32,
    /// CRC-32C of everything before this field.
    pub crc: u32,
}

const _: () = assert!(size_of::<Superblock>() == 136);
const CRC_AT: usize = size_of::<Superblock>() - 4;

impl Superblock {
    /// The superblock of a new pool.
    #[must_use]
    pub fn new(size_blocks: u64, table_slots: u64, pool_uid: [u8; 16]) -> Self {
        let table_start = SUPERBLOCK_COPIES.len() as u64;
        Self {
            magic: MAGIC,
            version: VERSION,
            block_bytes: BLOCK_U32,
            compat: 0,
            ro_compat: 0,
            incompat: 0,
            pool_uid,
            generation: 1,
            size_blocks,
            table_start,
            table_slots,
            data_start: table_start + table_slots,
            next_volume_uid: 1,
            clean: 0,
            saved_start: 0,
            saved_bytes: 0,
            saved_crc: 0,
            crc: 0,
        }
        .sealed()
    }

    /// The same with the checksum put right.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.crc = crc32c::crc32c(&self.as_bytes()[..CRC_AT]);
        self
    }

    /// Returns true if a writer must know a feature outside `known`.
    #[must_use]
    pub fn forbids_writing(&self, known: u64) -> bool {
        self.ro_compat & !known != 0
    }

    /// Reads and validates one copy; `medium_bytes` is the size of its medium.
    ///
    /// # Errors
    /// `Corrupt`, with a description of the damage: of magic and checksum before other fields.
    pub fn parse(bytes: &[u8], at: PoolOffset, medium_bytes: u64) -> Result<Self, Corrupt> {
        let wrong = |what: String| Err(Corrupt::new("superblock", at, what));
        let Ok((sb, _)) = Self::read_from_prefix(bytes) else {
            return wrong("it is cut short".into());
        };
        // Before the checksum: foreign data is reported as such, not as a damaged pool.
        if sb.magic != MAGIC {
            return wrong("it does not begin with EVERBYTE: this is no pool".into());
        }
        if sb.crc != crc32c::crc32c(&sb.as_bytes()[..CRC_AT]) {
            return wrong("its checksum is wrong".into());
        }
        // Before the other fields: another version may give them another meaning.
        if sb.version != VERSION {
            return wrong(format!("it has version {}, this program knows {VERSION}", sb.version));
        }
        let unknown = sb.incompat & !INCOMPAT_KNOWN;
        if unknown != 0 {
            return wrong(format!(
                "it needs features {unknown:#x} that this program does not know; use a newer one"
            ));
        }
        if sb.block_bytes != BLOCK_U32 {
            return wrong(format!("its blocks have {} bytes, not {BLOCK_U32}", sb.block_bytes));
        }
        // Updates add to the counters without a check for overflow.
        if sb.generation.max(sb.next_volume_uid) > COUNTER_MAX {
            return wrong("its counters stand where no pool ever gets".into());
        }
        sb.check_geometry(at, medium_bytes)?;
        tracing::trace!(ignored_features = sb.compat & !COMPAT_KNOWN, "superblock accepted");
        Ok(sb)
    }

    fn check_geometry(&self, at: PoolOffset, medium_bytes: u64) -> Result<(), Corrupt> {
        let wrong = |what: String| Err(Corrupt::new("superblock", at, what));
        let medium_blocks = medium_bytes / BLOCK_U64;
        if self.size_blocks > medium_blocks {
            return wrong(format!(
                "the pool has {} blocks but the file holds only {medium_blocks}: it was truncated; \
                 restore its full length of {} bytes before opening it",
                self.size_blocks,
                self.size_blocks.saturating_mul(BLOCK_U64)
            ));
        }
        // Right checksums do not bound the fields, so these sums may overflow.
        let table_end = self.table_start.checked_add(self.table_slots);
        if self.table_start != 2
            || self.table_slots == 0
            || table_end != Some(self.data_start)
            || self.data_start >= self.size_blocks
        {
            return wrong("its volume table does not fit the pool".into());
        }
        let saved_blocks = self.saved_bytes.div_ceil(BLOCK_U64);
        let saved_end = self.saved_start.checked_add(saved_blocks);
        // `load_saved` reads this range without a check of its own.
        if self.saved_start != 0
            && (self.saved_start < self.data_start
                || saved_end.is_none_or(|end| end > self.size_blocks))
        {
            return wrong("its saved allocator state does not fit the pool".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superblock_detects_bit_flips() {
        let sb = Superblock::new(1000, 64, [7; 16]);
        let bytes = sb.as_bytes().to_vec();
        assert_eq!(Superblock::parse(&bytes, PoolOffset(0), 1000 * BLOCK_U64).unwrap(), sb);
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0x10;
            assert!(Superblock::parse(&broken, PoolOffset(0), 1000 * BLOCK_U64).is_err(), "{at}");
        }
    }

    #[test]
    fn unknown_features_and_truncation_are_errors() {
        let mut sb = Superblock::new(1000, 64, [7; 16]);
        sb.incompat = 4;
        let error = Superblock::parse(sb.sealed().as_bytes(), PoolOffset(0), 1000 * BLOCK_U64);
        assert!(error.unwrap_err().to_string().contains("features 0x4"));
        let sb = Superblock::new(1000, 64, [7; 16]);
        let error = Superblock::parse(sb.as_bytes(), PoolOffset(0), 999 * BLOCK_U64);
        assert!(error.unwrap_err().to_string().contains("truncated"));
    }
}
