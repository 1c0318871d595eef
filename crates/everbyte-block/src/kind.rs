//! The kinds of volumes with a block volume inside, for the pool.

use std::sync::Arc;

use everbyte_extent::{Delta, visit_checksums, visit_map};
use everbyte_media::Medium;
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{Claim, Corrupt, Kind, Kinds, VolumeView};

use crate::volume::check_map;

/// The name of block volumes for all uses of kind names.
pub const BLOCK_NAME: &str = "block";
/// The name of caches for all uses of kind names.
pub const CACHE_NAME: &str = "cache";

/// A kind with a block volume inside.
struct BlockKind {
    kind: VolumeKind,
    name: &'static str,
}

impl<M: Medium> Kind<M> for BlockKind {
    fn kind(&self) -> VolumeKind {
        self.kind
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn visit(
        &self,
        medium: &M,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        if Delta::from_code(view.descriptor.delta).is_none() {
            // The volume could not be opened, so a check must not call it sound.
            let what = "unknown translation";
            return Err(Corrupt::new("volume descriptor", view.root_at, what));
        }
        check_map(view)?;
        let data = view.data_start..view.data_end;
        visit_map(medium, view.root_at, &data, claim)?;
        visit_checksums(medium, view.checksum_root_at, &data, claim)
    }
}

/// The kinds of volumes known to this crate, for opening pools with block volumes, and with caches (block
/// volumes inside).
#[must_use]
pub fn kinds<M: Medium>() -> Kinds<M> {
    let kinds = [(VolumeKind::BLOCK, BLOCK_NAME), (VolumeKind::CACHE, CACHE_NAME)];
    Kinds::new(kinds.map(|(kind, name)| Arc::new(BlockKind { kind, name }) as Arc<dyn Kind<M>>))
}
