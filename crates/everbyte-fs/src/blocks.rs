//! The blocks of an inode: those of its bytes or of its directory, and the one of its attributes.

use everbyte_extent::{FirstEntries, MapView, visit_first_entries};
use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::{Batch, BlockRun, BlockUse, Claim, Corrupt, Part, UsedExtent};

use crate::block_map_kind::BlockMapKind;
use crate::dir::Dir;
use crate::edits::Edit;
use crate::format::{
    DirSettings, FIRST_ENTRIES, Field, INLINE_TARGET_MAX, INODE_AREA_AT, InodeWords,
};
use crate::number::FileType;
use crate::reader::Reader;

/// Shows every block and cell of the inode in `edit` once, in a file system with these shapes.
///
/// # Errors
/// A structure that cannot be right, or `claim`'s.
pub(crate) fn visit_blocks<M: Medium>(
    reader: Reader<'_, M>,
    edit: &Edit,
    (directories, map): (DirSettings, BlockMapKind),
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    let mut claim_one = |block, named_at| {
        let part = Part::Blocks(BlockRun { start: block, len: 1 });
        claim(UsedExtent { part, named_at, holds: BlockUse::Map })
    };
    if let Some(block) = attributes_block(reader, edit.at, edit.words.get(Field::Attributes))? {
        claim_one(block, Field::Attributes.at(edit.at))?;
    }
    match edit.words.file_type() {
        FileType::Regular => visit_map(reader, edit, map, claim),
        FileType::Directory => {
            let dir = Dir::new(reader, edit.number, Field::Root.at(edit.at), directories);
            dir.each_block(&mut |named_at, block| claim_one(block, named_at))
        }
        FileType::Symlink if has_long_target(&edit.words) => {
            let (data, first) = (reader.data.blocks(), first_entries(edit));
            visit_first_entries(reader.medium, first, &data, claim)
        }
        _ => Ok(()),
    }
}

/// Plans to give up all blocks and cells that `visit` shows.
///
/// # Errors
/// That of `visit`; some of them are planned to be given up then.
pub(crate) fn give_all<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    visit: impl FnOnce(&mut Claim<'_>) -> Result<(), Corrupt>,
) -> Result<(), Corrupt> {
    let mut data = Vec::new();
    visit(&mut |claimed| {
        match claimed.part {
            // Nodes stand between blocks that lie together, and would part them.
            Part::Blocks(run) if claimed.holds == BlockUse::Map => batch.give_all(run.blocks()),
            Part::Blocks(run) => data.extend(run.blocks()),
            Part::Cell { at, size } => batch.give_cell(at, size),
        }
        Ok(())
    })?;
    batch.give_all(data);
    Ok(())
}

fn first_entries(edit: &Edit) -> FirstEntries {
    FirstEntries { at: edit.at.plus(INODE_AREA_AT), count: FIRST_ENTRIES }
}

/// Shows every block and cell of the map of a regular file once.
pub(crate) fn visit_map<M: Medium>(
    reader: Reader<'_, M>,
    edit: &Edit,
    map: BlockMapKind,
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    let data = reader.data.blocks();
    visit_first_entries(reader.medium, first_entries(edit), &data, claim)?;
    let size_bytes = edit.words.get(Field::Size).next_multiple_of(BLOCK_U64);
    let root_at = Field::Root.at(edit.at);
    MapView { kind: map.map(), root_at, size_bytes, data }.visit(reader.medium, claim)
}

/// Returns true if a symbolic link's target stands in a block of its own.
pub(crate) fn has_long_target(words: &InodeWords) -> bool {
    words.get(Field::Size) > INLINE_TARGET_MAX as u64
}

/// The block that `word`, an inode's, names.
///
/// # Errors
/// It names none.
pub(crate) fn attributes_block<M: Medium>(
    reader: Reader<'_, M>,
    inode: PoolOffset,
    word: u64,
) -> Result<Option<BlockNo>, Corrupt> {
    let at = Field::Attributes.at(inode);
    Ok(reader.decode("extended attributes", word, at)?.map(|entry| entry.block))
}
