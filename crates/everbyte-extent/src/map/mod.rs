//! The mapping table: from a logical block number to the word with the block's place.
//!
//! Owns the shape of the table, a radix tree with nodes of 512 entries. The write path decides on the contents of an
//! entry, and when it is logged and stored. Entries have 8 bytes and are stored atomically, so lookups take no lock
//! of the table. A change of the shape holds the structure lock.

mod first;
mod leaves;
mod lookup;
mod radix;

use std::ops::Range;

use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::{Entry, EntryFlags};
use everbyte_pool::{BlockUse, Claim, Corrupt, DataArea, check_readable};

pub use first::{FirstEntries, visit_first_entries};
pub(crate) use leaves::Leaves;
pub(crate) use radix::{
    Attach, Interrupted, MapSlot, build_branch, each_slot_node, find_leaf_link, first_leaf_from,
    lookup_path,
};

use crate::address::LogicalBlock;

/// Entries in a block of the table.
pub const ENTRIES: u64 = BLOCK_U64 / 8;

/// Number of the radix tree, the only map, in a volume's descriptor.
pub const MAP_CODE: u32 = 0;

/// Reads entries of maps, root words and inner ones too.
///
/// Invariant: a block in an entry lies in the pool's data. So no map, of any origin, leads a store to a
/// superblock or a volume's header. The owner of the block cannot be determined here; `docs/repair.md` names
/// the checks that can.
pub(crate) struct EntryReader<'m, M: Medium> {
    medium: &'m M,
    /// Blocks that an entry may name.
    data: &'m DataArea,
}

impl<'m, M: Medium> EntryReader<'m, M> {
    /// For a pool on `medium` with maps that may name the blocks of `data`.
    #[inline]
    pub(crate) fn new(medium: &'m M, data: &'m DataArea) -> Self {
        Self { medium, data }
    }

    /// Loads the entry in the word at `at`.
    #[inline]
    pub(crate) fn load(&self, at: PoolOffset) -> Result<Option<Entry>, Corrupt> {
        self.decode(self.medium.load_word(at), at)
    }

    /// Decodes a word read at `at`.
    #[inline(always)]
    pub(crate) fn decode(&self, word: u64, at: PoolOffset) -> Result<Option<Entry>, Corrupt> {
        // A poisoned range reads as a hole.
        check_readable(self.medium, "map entry", at, 8)?;
        match Entry::decode(word) {
            // No entry may lead to a superblock, a header, or beyond the pool.
            Ok(Some(entry)) if !self.data.contains(entry.block) => {
                Err(outside_data(at, entry.block))
            }
            Ok(entry) => Ok(entry),
            Err(what) => Err(wrong_entry(at, what)),
        }
    }

    /// Number of blocks for maps and all their targets.
    fn blocks(&self) -> u64 {
        let blocks = self.data.blocks();
        blocks.end - blocks.start
    }
}

#[cold]
fn outside_data(at: PoolOffset, block: BlockNo) -> Corrupt {
    wrong_entry(at, &format!("{block} is outside the pool's data"))
}

#[cold]
fn wrong_entry(at: PoolOffset, what: &str) -> Corrupt {
    Corrupt::new("map entry", at, what)
}

/// Address of entry `index` of the node or table block `node`.
pub(crate) fn slot_at(node: BlockNo, index: u64) -> PoolOffset {
    node.offset().plus(index * 8)
}

/// An entry for the top of a radix tree with `height` levels of nodes.
pub(crate) fn root_entry(node: BlockNo, height: u8) -> Entry {
    Entry { block: node, flags: EntryFlags { height, ..EntryFlags::default() } }
}

/// Claims every block of the map below the word at `root_at`: its nodes and their target blocks. The maps of
/// the pool may name the blocks of `data`.
///
/// # Errors
/// The first corrupt word, or the claim's error.
pub fn visit_map<M: Medium>(
    medium: &M,
    root_at: PoolOffset,
    data: &Range<u64>,
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    let data = DataArea::new(data.clone());
    radix::visit(&EntryReader::new(medium, &data), root_at, claim)
}

/// Claims the nodes of the tree of checksums below the word at `root_at`, in a pool with maps that may name
/// the blocks of `data`.
///
/// # Errors
/// The first invalid word, or the claim's error.
pub fn visit_checksums<M: Medium>(
    medium: &M,
    root_at: PoolOffset,
    data: &Range<u64>,
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    let data = DataArea::new(data.clone());
    radix::visit_slots(&EntryReader::new(medium, &data), root_at, claim)
}

/// The use of the block in `entry`, if the entry is the one of `block`.
fn data_use(entry: Entry, block: LogicalBlock) -> BlockUse {
    let offset = block.offset().0;
    if entry.flags.zero { BlockUse::Reserved { offset } } else { BlockUse::Data { offset } }
}
