//! What a block volume's map owns, for the pool's allocator and check.

use std::sync::Arc;

use everbyte_extent::{Delta, visit_checksums};
use everbyte_media::Medium;
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{BlockOwner, Claim, Corrupt, Owners, VolumeView};

use crate::volume::map_view;

/// For one of the kinds that are block volumes inside.
struct BlockMaps(VolumeKind);

impl<M: Medium> BlockOwner<M> for BlockMaps {
    fn kind(&self) -> VolumeKind {
        self.0
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
        let map = map_view(view)?;
        map.visit(medium, claim)?;
        visit_checksums(medium, view.checksum_root_at, &map.data, claim)
    }
}

/// What is needed to open pools with block volumes and volumes that are block volumes inside.
#[must_use]
pub fn owners<M: Medium>() -> Owners<M> {
    let kinds = [VolumeKind::Block, VolumeKind::Cache];
    Owners::new(kinds.map(|kind| Arc::new(BlockMaps(kind)) as Arc<dyn BlockOwner<M>>))
}
