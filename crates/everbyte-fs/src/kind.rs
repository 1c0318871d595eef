//! The file system as a kind of volume: which blocks it owns.

use std::sync::Arc;

use everbyte_media::{BlockNo, Medium};
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{BlockRun, Claim, Claimed, Corrupt, Holds, Kind, Kinds, Part, VolumeView};

use crate::edits::Edit;
use crate::format::{InodeWords, Superblock, TABLES_AT};
use crate::orphan::visit_blocks;
use crate::tables::{InodeTables, SlotState};

/// The kind of volumes that are file systems.
pub const FS: VolumeKind = VolumeKind(4);
/// The feature of a pool that has one: an older program could not tell which blocks are free.
const RO_COMPAT_FS: u64 = 1 << 1;

struct FsKind;

impl<M: Medium> Kind<M> for FsKind {
    fn kind(&self) -> VolumeKind {
        FS
    }

    fn name(&self) -> &'static str {
        "fs"
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
        let may_name = |block: BlockNo| view.may_name(block);
        let (superblock, at) = Superblock::load(medium, view.root_at, may_name)?;
        let part = Part::Blocks(BlockRun { start: at.block(), len: 1 });
        claim(Claimed { part, named_at: view.root_at, holds: Holds::Map })?;
        if medium.load_word(at.plus(TABLES_AT)) == 0 {
            // It was made, and never opened.
            return Ok(());
        }
        let tables = InodeTables::open(&superblock, at, medium, &may_name)?;
        tables.visit(medium, claim)?;
        let data = view.data_start..view.data_end;
        tables.each_slot(medium, &mut |number, at, state| {
            if state == SlotState::Free {
                return Ok(());
            }
            let words = InodeWords::load(medium, at, number)?;
            let edit = Edit::new(number, at, words);
            visit_blocks(medium, &edit, &data, superblock.hash_key, claim)
        })
    }
}

/// The kind of volumes that this crate knows: what is needed to open pools with file systems.
#[must_use]
pub fn kinds<M: Medium>() -> Kinds<M> {
    Kinds::new([Arc::new(FsKind) as Arc<dyn Kind<M>>])
}
