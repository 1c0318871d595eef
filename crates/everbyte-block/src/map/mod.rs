//! The mapping table: from logical block number to the word that says where the block lies.
//!
//! Owns the shape of the table, not its contents: what an entry means, when it is logged and
//! stored, is the write path's business. Both shapes have 8-byte entries that are stored
//! atomically, so that readers walk without locking the table. Whoever changes the shape holds
//! the structure lock.

mod direct;
mod leaves;
mod radix;

use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::{Entry, EntryFlags};
use everbyte_pool::{Claim, Corrupt, Holds, VolumeView, sound};

pub(crate) use direct::{copy_table, table_blocks};
pub(crate) use leaves::Leaves;
pub(crate) use radix::{
    Path, Pending, build_branch, each_slot_node, find_leaf_link, first_leaf_from, walk,
};

/// Entries in a block of the table.
pub(crate) const ENTRIES: u64 = BLOCK_U64 / 8;

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

/// Claims every block of the volume's map, for the pool's allocator.
pub(crate) fn visit<M: Medium>(
    medium: &M,
    view: &VolumeView<'_>,
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    match MapKind::from_code(view.descriptor.map) {
        Some(MapKind::Radix) => radix::visit(medium, view, claim)?,
        Some(MapKind::Direct) => direct::visit(medium, view, claim)?,
        None => return Err(Corrupt::new("volume descriptor", view.root_at, "unknown map")),
    }
    radix::visit_slots(medium, view, claim)
}

/// Checks what look-ups rely on and do not check themselves: that a table is as long as the volume.
///
/// # Errors
/// What is wrong.
pub(crate) fn check_shape<M: Medium>(medium: &M, view: &VolumeView<'_>) -> Result<(), Corrupt> {
    match MapKind::from_code(view.descriptor.map) {
        Some(MapKind::Direct) => direct::table(medium, view).map(drop),
        Some(MapKind::Radix) | None => Ok(()),
    }
}

/// What the block that `entry` names holds, if the entry is the one of logical block `block`.
fn holds_data(entry: Entry, block: u64) -> Holds {
    let offset = block * BLOCK_U64;
    if entry.flags.zero { Holds::Reserved { offset } } else { Holds::Data { offset } }
}

/// Checks that the entry at `at` names a block that a map may name.
fn in_bounds(view: &VolumeView<'_>, entry: Entry, at: PoolOffset) -> Result<Entry, Corrupt> {
    if view.may_name(entry.block) {
        Ok(entry)
    } else {
        Err(Corrupt::new("map entry", at, format!("{} is outside the pool's data", entry.block)))
    }
}
