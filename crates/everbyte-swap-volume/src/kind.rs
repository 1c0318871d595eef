//! The swap volume as a kind of volume: its owned blocks.

use std::sync::Arc;

use everbyte_media::Medium;
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{
    BlockRun, BlockUse, Claim, Corrupt, DataArea, Kind, Kinds, UsedExtent, VolumeView,
};

use crate::table::{RUN_BLOCKS, RUN_BYTES, SWAP, Table};

/// Feature bit of a pool with a swap volume: an older program cannot determine its free blocks.
const RO_COMPAT_SWAP: u64 = 1 << 2;

/// The name of the kind in lists and on command lines.
pub const SWAP_NAME: &str = "swap";

struct SwapKind;

impl<M: Medium> Kind<M> for SwapKind {
    fn kind(&self) -> VolumeKind {
        SWAP
    }

    fn name(&self) -> &'static str {
        SWAP_NAME
    }

    fn ro_compat(&self) -> u64 {
        RO_COMPAT_SWAP
    }

    fn has_log(&self) -> bool {
        false
    }

    fn visit(
        &self,
        medium: &M,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        let data = DataArea::new(view.data_start..view.data_end);
        let mut offset = 0;
        let (_, table) = Table::load(medium, &data, view.root_at, &mut |start, named_at| {
            let run = BlockRun { start, len: RUN_BLOCKS };
            claim(UsedExtent { run, named_at, holds: BlockUse::Data { offset } })?;
            offset += RUN_BYTES;
            Ok(())
        })?;
        claim(UsedExtent { run: table, named_at: view.root_at, holds: BlockUse::Map })
    }
}

/// The volume kind of this crate. A program needs it to open pools with swap volumes.
#[must_use]
pub fn kinds<M: Medium>() -> Kinds<M> {
    Kinds::new([Arc::new(SwapKind) as Arc<dyn Kind<M>>])
}
