//! The file system as a kind of volume: which blocks it owns.

use std::sync::Arc;

use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::format::{Descriptor, VolumeKind};
use everbyte_pool::{
    BlockRun, BlockUse, Claim, Corrupt, DataArea, Kind, Kinds, Part, UsedExtent, VolumeView,
    check_readable,
};

use crate::format::block_map_kind::{BlockMapKind, RO_COMPAT_BLOCK_MAPS};
use crate::format::directory_kind::RO_COMPAT_DIRECTORIES;
use crate::format::{FS, Field, FsSuperblock, InodeWords};
use crate::inode::blocks::visit_blocks;
use crate::inode::edits::Edit;
use crate::maintenance::check;

use crate::format::number::FileType;
use crate::format::reader::Reader;
use crate::inode::tables::{InodeTables, SlotState};

/// The feature of a pool that has one: an older program could not tell which blocks are free.
const RO_COMPAT_FS: u64 = 1 << 1;

/// The name of the kind in lists and on command lines.
pub const FS_NAME: &str = "fs";

struct FsKind;

impl<M: Medium> Kind<M> for FsKind {
    fn kind(&self) -> VolumeKind {
        FS
    }

    fn name(&self) -> &'static str {
        FS_NAME
    }

    fn ro_compat(&self) -> u64 {
        RO_COMPAT_FS
    }

    fn known_features(&self) -> u64 {
        RO_COMPAT_FS | RO_COMPAT_DIRECTORIES | RO_COMPAT_BLOCK_MAPS
    }

    fn has_cells(&self, descriptor: &Descriptor) -> bool {
        descriptor.map == BlockMapKind::Runs.map().code()
    }

    fn visit(
        &self,
        medium: &M,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        visit(medium, view, Wanted::All, claim)
    }

    /// The cells are nodes of files' maps. Of a file that has none one word is read, so that a volume of many
    /// small ones is open soon.
    fn visit_cells(
        &self,
        medium: &M,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        visit(medium, view, Wanted::Cells, claim)
    }

    fn judge(&self, medium: &M, view: &VolumeView<'_>) -> Result<Vec<String>, Corrupt> {
        let data = DataArea::new(view.data_start..view.data_end);
        let reader = Reader::new(medium, &data);
        let (superblock, at) = FsSuperblock::load(reader, view.root_at)?;
        if FsSuperblock::tables_word(reader, at)? == 0 {
            return Ok(Vec::new());
        }
        let map = BlockMapKind::from_code(view.descriptor.map, view.root_at)?;
        let tables = InodeTables::open(&superblock, at, reader)?;
        Ok(check::judge(reader, (&superblock, map), &tables))
    }
}

/// The extents that are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// All that is the volume's.
    All,
    /// Cells: of other extents some are claimed, others not.
    Cells,
}

/// Claims what the file system in `view` owns, as far as it is wanted.
///
/// # Errors
/// The first structure that cannot be right, or `claim`'s.
fn visit<M: Medium>(
    medium: &M,
    view: &VolumeView<'_>,
    wanted: Wanted,
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    let data = DataArea::new(view.data_start..view.data_end);
    let reader = Reader::new(medium, &data);
    let (superblock, at) = FsSuperblock::load(reader, view.root_at)?;
    let map = BlockMapKind::from_code(view.descriptor.map, view.root_at)?;
    let part = Part::Blocks(BlockRun { start: at.block(), len: 1 });
    claim(UsedExtent { part, named_at: view.root_at, holds: BlockUse::Map })?;
    if FsSuperblock::tables_word(reader, at)? == 0 {
        // It was made, and never opened.
        return Ok(());
    }
    let tables = InodeTables::open(&superblock, at, reader)?;
    tables.visit(reader, claim)?;
    tables.each_slot(reader, &mut |number, at, state| {
        if state == SlotState::Free || wanted == Wanted::Cells && !has_root(medium, at)? {
            return Ok(());
        }
        let words = InodeWords::load(medium, at, number)?;
        state.check_names(number, at, &words)?;
        if wanted == Wanted::Cells && words.file_type() != FileType::Regular {
            return Ok(());
        }
        let edit = Edit::new(number, at, words);
        visit_blocks(reader, &edit, (superblock.directories(), map), claim)
    })
}

/// Returns true if the inode at `at` has a map with nodes, or a directory with entries.
///
/// # Errors
/// It cannot be read.
fn has_root<M: Medium>(medium: &M, at: PoolOffset) -> Result<bool, Corrupt> {
    let root_at = Field::Root.at(at);
    let root = medium.load_word(root_at);
    check_readable(medium, "inode", root_at, 8)?;
    Ok(root != 0)
}

/// The kind of volumes that this crate knows: what is needed to open pools with file systems.
#[must_use]
pub fn kinds<M: Medium>() -> Kinds<M> {
    Kinds::new([Arc::new(FsKind) as Arc<dyn Kind<M>>])
}
