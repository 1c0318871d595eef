//! The volume kind of file systems.

use std::sync::Arc;

use everbyte_media::Medium;
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{
    BlockRun, BlockUse, Claim, Corrupt, DataArea, Kind, Kinds, UsedExtent, VolumeView,
};

use crate::format::reader::Reader;
use crate::format::{FS, FsSuperblock, InodeWords};
use crate::inode::blocks::{check_map, visit_blocks};
use crate::inode::edits::Edit;
use crate::inode::tables::{InodeTables, SlotState};
use crate::maintenance::check;

/// The feature of a pool with a file system: a program without it cannot tell the free blocks.
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

    fn visit(
        &self,
        medium: &M,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        let data = DataArea::new(view.data_start..view.data_end);
        let reader = Reader::new(medium, &data);
        let (superblock, at) = FsSuperblock::load(reader, view.root_at)?;
        check_map(view.descriptor.map, view.root_at)?;
        let run = BlockRun { start: at.block(), len: 1 };
        // Claimed before anything below it, so that a table over the superblock is refused.
        claim(UsedExtent { run, named_at: view.root_at, holds: BlockUse::Map })?;
        if FsSuperblock::tables_word(reader, at)? == 0 {
            // The file system was created and never opened.
            return Ok(());
        }
        let tables = InodeTables::open(&superblock, at, reader)?;
        tables.visit(reader, claim)?;
        tables.each_slot(reader, &mut |number, at, state| {
            if state == SlotState::Free {
                return Ok(());
            }
            let words = InodeWords::load(medium, at, number)?;
            // An orphan that has names must not be freed by the next opening.
            state.check_names(number, at, &words)?;
            let edit = Edit::new(number, at, words);
            visit_blocks(reader, &edit, superblock.hash_key, claim)
        })
    }

    fn judge(&self, medium: &M, view: &VolumeView<'_>) -> Result<Vec<String>, Corrupt> {
        let data = DataArea::new(view.data_start..view.data_end);
        let reader = Reader::new(medium, &data);
        let (superblock, at) = FsSuperblock::load(reader, view.root_at)?;
        if FsSuperblock::tables_word(reader, at)? == 0 {
            return Ok(Vec::new());
        }
        check_map(view.descriptor.map, view.root_at)?;
        let tables = InodeTables::open(&superblock, at, reader)?;
        Ok(check::judge(reader, &superblock, &tables))
    }
}

/// The volume kind of this crate, for opening pools with file systems.
#[must_use]
pub fn kinds<M: Medium>() -> Kinds<M> {
    Kinds::new([Arc::new(FsKind) as Arc<dyn Kind<M>>])
}
