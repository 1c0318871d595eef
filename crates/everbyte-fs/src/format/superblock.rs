//! The superblock of a file system: the block named by the volume's root word.
//!
//! Its first 128 bytes never change after creation. A separate word holds the number of tables. The index has
//! the rest of the block from byte 1024 on.

use everbyte_media::{BLOCK, Medium, PoolOffset};
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{Corrupt, check_readable};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::table::{TABLES_MAX, TableGeometry};
use crate::format::reader::Reader;

/// The volume kind of file systems.
pub const FS: VolumeKind = VolumeKind(4);
const MAGIC: [u8; 8] = *b"EVERBFS1";
/// Offset of the number of inode tables, a checked word.
pub(crate) const TABLES_AT: u64 = 128;
/// Offset of the words of the index.
pub(crate) const INDEX_WORDS_AT: u64 = 1024;
/// Words of the index in the superblock.
pub(crate) const INDEX_WORDS: u64 = (BLOCK as u64 - INDEX_WORDS_AT) / 8;

/// The constant part of a superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct FsSuperblock {
    magic: [u8; 8],
    /// The index over inode tables.
    pub(crate) index: u32,
    /// Bytes of a node of the index; 0 for an index without nodes.
    pub(crate) index_node_bytes: u32,
    /// Blocks of an inode table.
    pub(crate) table_blocks: u64,
    /// Limit of inode tables.
    pub(crate) tables_max: u64,
    /// Key of the hash of names.
    pub(crate) hash_key: [u64; 2],
    /// Shape of its directories: 0, hashed. No other shape exists.
    directories: u32,
    reserved: [u32; 17],
    crc: u64,
}

const _: () = assert!(size_of::<FsSuperblock>() as u64 == TABLES_AT);

impl FsSuperblock {
    /// A superblock with these settings.
    pub(crate) fn new(
        (index, index_node_bytes): (u32, u32),
        geometry: TableGeometry,
        tables_max: u64,
        hash_key: [u64; 2],
    ) -> Self {
        let mut superblock = Self {
            magic: MAGIC,
            index,
            index_node_bytes,
            table_blocks: geometry.blocks(),
            tables_max,
            hash_key,
            directories: 0,
            reserved: [0; 17],
            crc: 0,
        };
        superblock.crc = superblock.expected_crc();
        superblock
    }

    fn expected_crc(&self) -> u64 {
        let bytes = self.as_bytes();
        u64::from(crc32c::crc32c(&bytes[..bytes.len() - 8]))
    }

    /// Returns true if it has the magic of a superblock.
    #[cfg(feature = "testkit")]
    pub(crate) fn has_magic(&self) -> bool {
        self.magic == MAGIC
    }

    /// The superblock with a correct checksum.
    #[cfg(feature = "testkit")]
    pub(crate) fn sealed(self) -> Self {
        Self { crc: self.expected_crc(), ..self }
    }

    /// The block with this superblock, without tables.
    pub(crate) fn image(&self) -> [u8; BLOCK] {
        let mut image = [0; BLOCK];
        image[..size_of::<Self>()].copy_from_slice(self.as_bytes());
        image
    }

    /// The geometry of the tables. `load` has checked it.
    pub(crate) fn geometry(&self) -> TableGeometry {
        TableGeometry::new(self.table_blocks)
            .expect("a superblock is checked when it is read or made")
    }

    /// Reads the superblock named by the root word at `root_at`.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub(crate) fn load<M: Medium>(
        reader: Reader<'_, M>,
        root_at: PoolOffset,
    ) -> Result<(Self, PoolOffset), Corrupt> {
        let root = reader.entry("volume root", root_at)?;
        let none = || Corrupt::new("volume root", root_at, "it names no superblock");
        let (at, medium) = (root.ok_or_else(none)?.block.offset(), reader.medium);
        let mut superblock =
            Self::new((0, 0), TableGeometry::new(1).expect("one block"), 0, [0; 2]);
        medium.read(at, superblock.as_mut_bytes());
        check_readable(medium, "superblock of the file system", at, TABLES_AT)?;
        superblock
            .check()
            .map_err(|what| Corrupt::new("superblock of the file system", at, what))?;
        Ok((superblock, at))
    }

    /// The word with the number of inode tables in the superblock at `at`; 0 if the file system was never
    /// opened.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn tables_word<M: Medium>(
        reader: Reader<'_, M>,
        at: PoolOffset,
    ) -> Result<u64, Corrupt> {
        let tables_at = at.plus(TABLES_AT);
        let word = reader.medium.load_word(tables_at);
        check_readable(reader.medium, "number of inode tables", tables_at, 8)?;
        Ok(word)
    }

    fn check(&self) -> Result<(), String> {
        if self.magic != MAGIC {
            return Err("it does not begin as one".into());
        }
        if self.crc != self.expected_crc() {
            return Err("its checksum is wrong".into());
        }
        if TableGeometry::new(self.table_blocks).is_none() {
            return Err(format!("inode tables of {} blocks cannot be", self.table_blocks));
        }
        if !(1..TABLES_MAX).contains(&self.tables_max) {
            return Err(format!("{} inode tables cannot be", self.tables_max));
        }
        if self.directories != 0 {
            let kind = self.directories;
            return Err(format!("directories of kind {kind} are unknown to this program"));
        }
        Ok(())
    }
}
