//! The blocks of an inode: its data or directory blocks, and the block of its extended attributes.

use std::fmt;

use everbyte_extent::{self as extent, FirstEntries, MAP_CODE, visit_first_entries};
use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::{Batch, BlockRun, BlockUse, Claim, Corrupt, UsedExtent};
use hashbrown::HashSet;

use crate::dir::Dir;
use crate::format::number::{FileType, InodeNo};
use crate::format::reader::Reader;
use crate::format::{FIRST_ENTRIES, Field, INLINE_TARGET_MAX, INODE_AREA_AT, InodeWords};
use crate::inode::edits::Edit;

/// Visits every block of the inode in `edit` once. `hash_key` is the file system's.
///
/// # Errors
/// A damaged structure, or `claim`'s.
pub(crate) fn visit_blocks<M: Medium>(
    reader: Reader<'_, M>,
    edit: &Edit,
    hash_key: [u64; 2],
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    let mut claim_one = |block, named_at| {
        let run = BlockRun { start: block, len: 1 };
        claim(UsedExtent { run, named_at, holds: BlockUse::Map })
    };
    if let Some(block) = attributes_block(reader, edit.at, edit.words.get(Field::Attributes))? {
        claim_one(block, Field::Attributes.at(edit.at))?;
    }
    match edit.words.file_type() {
        FileType::Regular => visit_map(reader, edit, claim),
        FileType::Directory => {
            let dir = Dir::new(reader, edit.number, Field::Root.at(edit.at), hash_key);
            dir.each_block(&mut |named_at, block| claim_one(block, named_at))
        }
        FileType::Symlink if has_long_target(&edit.words) => {
            let (data, first) = (reader.data.blocks(), first_entries(edit));
            visit_first_entries(reader.medium, first, &data, claim)
        }
        _ => Ok(()),
    }
}

/// Bounds the walk of one structure: damaged words can lead from a node to itself, or to one node from many
/// places.
pub(crate) struct VisitedExtents<'s> {
    structure: &'s dyn fmt::Display,
    nodes: HashSet<PoolOffset>,
    /// Bytes of the pool that the walk has not visited.
    bytes_left: u64,
}

impl<'s> VisitedExtents<'s> {
    /// An empty set for `structure`.
    pub(crate) fn new<M: Medium>(reader: Reader<'_, M>, structure: &'s dyn fmt::Display) -> Self {
        let blocks = reader.data.blocks();
        let bytes_left = (blocks.end - blocks.start) * BLOCK_U64;
        Self { structure, nodes: HashSet::new(), bytes_left }
    }

    /// Notes `extent`.
    ///
    /// # Errors
    /// It is a node that was visited before, or more was visited than the pool has.
    pub(crate) fn note(&mut self, extent: &UsedExtent) -> Result<(), Corrupt> {
        let (at, bytes) = extent.bytes();
        if extent.holds == BlockUse::Map && !self.nodes.insert(at) {
            return Err(self.wrong(extent.named_at, &format!("it leads to {at} a second time")));
        }
        let left = self.bytes_left.checked_sub(bytes);
        let more = || self.wrong(extent.named_at, "it leads to more blocks than the pool has");
        self.bytes_left = left.ok_or_else(more)?;
        Ok(())
    }

    fn wrong(&self, named_at: PoolOffset, what: &str) -> Corrupt {
        Corrupt::new(self.structure.to_string(), named_at, what)
    }
}

/// Plans to free all blocks of `inode` that `visit` reports. Reads no words of the batch.
///
/// # Errors
/// That of `visit`; a second visit of an extent; a free extent. Then the batch frees none of them.
pub(crate) fn give_all<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    (reader, inode): (Reader<'_, M>, InodeNo),
    visit: impl FnOnce(&mut Claim<'_>) -> Result<(), Corrupt>,
) -> Result<(), Corrupt> {
    let mut runs = Vec::new();
    let mut shown = VisitedExtents::new(reader, &inode);
    visit(&mut |extent| {
        shown.note(&extent)?;
        runs.push((extent.run, extent.named_at));
        Ok(())
    })?;
    // Adjacent blocks are freed as one run, in any order of the words that name them.
    runs.sort_unstable_by_key(|(run, _)| run.start);
    if let Some([_, (run, named_at)]) =
        runs.array_windows().find(|[(run, _), (next, _)]| run.start.0 + run.len > next.start.0)
    {
        return Err(shown.wrong(*named_at, &format!("it leads to {} a second time", run.start)));
    }
    // A block of two owners may be free already, because the other owner was removed. Recovery would have
    // found the second owner, a clean shutdown does not look for it.
    let volume = batch.volume();
    if let Some((run, named_at)) = runs.iter().find(|(run, _)| volume.has_free_block(*run)) {
        let what = format!("it leads to {}, which was given up by someone else", run.start);
        return Err(shown.wrong(*named_at, &what));
    }
    batch.free_all(runs.iter().flat_map(|(run, _)| run.blocks()));
    Ok(())
}

fn first_entries(edit: &Edit) -> FirstEntries {
    FirstEntries { at: edit.at.plus(INODE_AREA_AT), count: FIRST_ENTRIES }
}

/// Visits every block of the map of a regular file once.
pub(crate) fn visit_map<M: Medium>(
    reader: Reader<'_, M>,
    edit: &Edit,
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    let data = reader.data.blocks();
    visit_first_entries(reader.medium, first_entries(edit), &data, claim)?;
    extent::visit_map(reader.medium, Field::Root.at(edit.at), &data, claim)
}

/// Checks the kind of block maps in the descriptor of a volume whose root word is at `root_at`.
///
/// # Errors
/// It is not the radix tree.
pub(crate) fn check_map(kind: u32, root_at: PoolOffset) -> Result<(), Corrupt> {
    if kind == MAP_CODE {
        return Ok(());
    }
    let what = format!("block maps of kind {kind} are unknown to this program");
    Err(Corrupt::new("volume descriptor", root_at, what))
}

/// Returns true if a separate block holds the target of a symbolic link.
pub(crate) fn has_long_target(words: &InodeWords) -> bool {
    words.get(Field::Size) > INLINE_TARGET_MAX as u64
}

/// The block of extended attributes that `word` of `inode` names, if there is one.
///
/// # Errors
/// The word does not name a block of the pool's data.
pub(crate) fn attributes_block<M: Medium>(
    reader: Reader<'_, M>,
    inode: PoolOffset,
    word: u64,
) -> Result<Option<BlockNo>, Corrupt> {
    let at = Field::Attributes.at(inode);
    Ok(reader.decode("extended attributes", word, at)?.map(|entry| entry.block))
}
