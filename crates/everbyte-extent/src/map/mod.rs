//! The mapping table: from logical block number to the word that says where the block lies.
//!
//! Owns the shape of the table, not its contents: what an entry means, when it is logged and
//! stored, is the write path's business. Both shapes have 8-byte entries that are stored
//! atomically, so that readers walk without locking the table. Whoever changes the shape holds
//! the structure lock.

mod direct;
mod leaves;
mod lookup;
mod radix;

use std::ops::Range;

use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::{Entry, EntryFlags};
use everbyte_pool::{Claim, Corrupt, Holds, sound};

pub(crate) use direct::copy_table;
pub use direct::table_blocks;
pub(crate) use leaves::Leaves;
pub(crate) use radix::{
    Attach, Path, build_branch, each_slot_node, find_leaf_link, first_leaf_from, walk,
};

use crate::address::LogicalBlock;

/// Entries in a block of the table.
pub const ENTRIES: u64 = BLOCK_U64 / 8;

/// The shapes there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MapKind {
    /// A radix tree with nodes of 512 entries; takes space for what is mapped.
    #[default]
    Radix,
    /// One table for the whole volume; takes 1/512 of its size at once, and every look-up is one
    /// load.
    Direct,
}

impl MapKind {
    /// The number in a volume's descriptor.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Self::Radix => 0,
            Self::Direct => 1,
        }
    }

    /// The shape with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Self::Radix, Self::Direct].into_iter().find(|kind| kind.code() == code)
    }
}

/// Reads the entry in the word at `at`.
#[inline]
pub(crate) fn load_entry<M: Medium>(medium: &M, at: PoolOffset) -> Result<Option<Entry>, Corrupt> {
    decode(medium, medium.load_word(at), at)
}

/// Decodes a word that was read at `at`. A block that it names lies on the medium.
#[inline]
pub(crate) fn decode<M: Medium>(
    medium: &M,
    word: u64,
    at: PoolOffset,
) -> Result<Option<Entry>, Corrupt> {
    // Bad memory reads as a hole.
    sound(medium, "map entry", at, 8)?;
    match Entry::decode(word) {
        Ok(Some(entry)) if entry.block.0 >= medium.len() / BLOCK_U64 => {
            Err(wrong_entry(at, &format!("{} is beyond the pool's end", entry.block)))
        }
        Ok(entry) => Ok(entry),
        Err(what) => Err(wrong_entry(at, what)),
    }
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

/// A map as a walker sees it: on the medium, not open.
#[derive(Clone, Debug)]
pub struct MapView {
    /// Its shape.
    pub kind: MapKind,
    /// Address of its root word.
    pub root_at: PoolOffset,
    /// Bytes of the extent.
    pub size_bytes: u64,
    /// Blocks that a map of this pool may name.
    pub data: Range<u64>,
}

impl MapView {
    /// Checks that the entry at `at` names a block that a map may name.
    fn in_bounds(&self, entry: Entry, at: PoolOffset) -> Result<Entry, Corrupt> {
        in_bounds(&self.data, entry, at)
    }

    /// Claims every block of the map: its nodes or table, and what they name.
    ///
    /// # Errors
    /// The first word that cannot be right, or the claim's error.
    pub fn visit<M: Medium>(&self, medium: &M, claim: &mut Claim<'_>) -> Result<(), Corrupt> {
        match self.kind {
            MapKind::Radix => radix::visit(medium, self, claim),
            MapKind::Direct => direct::visit(medium, self, claim),
        }
    }

    /// Checks what look-ups rely on and do not check themselves: that a table is as long as the
    /// extent.
    ///
    /// # Errors
    /// The root word, if there is no such table.
    pub fn check_shape<M: Medium>(&self, medium: &M) -> Result<(), Corrupt> {
        match self.kind {
            MapKind::Direct => direct::table(medium, self).map(drop),
            MapKind::Radix => Ok(()),
        }
    }
}

/// Claims the nodes of the tree of checksums below the word at `root_at`, in a pool whose maps may
/// name the blocks of `data`.
///
/// # Errors
/// The first word that cannot be right, or the claim's error.
pub fn visit_checksums<M: Medium>(
    medium: &M,
    root_at: PoolOffset,
    data: &Range<u64>,
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    radix::visit_slots(medium, root_at, data, claim)
}

/// The use of the block that `entry` names, if the entry is the one of `block`.
fn holds_data(entry: Entry, block: LogicalBlock) -> Holds {
    let offset = block.offset().0;
    if entry.flags.zero { Holds::Reserved { offset } } else { Holds::Data { offset } }
}

fn in_bounds(data: &Range<u64>, entry: Entry, at: PoolOffset) -> Result<Entry, Corrupt> {
    if data.contains(&entry.block.0) {
        Ok(entry)
    } else {
        Err(Corrupt::new("map entry", at, format!("{} is outside the pool's data", entry.block)))
    }
}
