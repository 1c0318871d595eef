//! Structures in poisoned ranges, for the check.

use everbyte_media::{Medium, PoisonedRange};

use super::Pool;
use crate::format::SUPERBLOCK_COPIES;
use crate::health::Health;

impl<M: Medium> Pool<M> {
    /// Describes each known poisoned range and the structures in it, and grades it.
    pub(crate) fn name_poisoned_ranges(&self) -> Vec<(Health, String)> {
        if !self.medium().has_poison() {
            return Vec::new();
        }
        let ranges = self.medium().poisoned_ranges();
        let mut named: Vec<Option<String>> =
            ranges.iter().map(|bad| self.fixed_name(bad)).collect();
        for volume in self.volumes() {
            // An incomplete walk of a map is a separate finding; the rest of its blocks has no name.
            let _partly = self.visit(&volume, &mut |extent| {
                let (start, len) = extent.bytes();
                for (bad, name) in ranges.iter().zip(&mut named) {
                    if bad.first_in(start, len).is_some() {
                        name.get_or_insert(format!("{} of volume {}", extent.holds, volume.name()));
                    }
                }
                Ok(())
            });
        }
        let tell = |(bad, name): (&PoisonedRange, Option<String>)| {
            // The other superblock stands for this one.
            let is_copy = SUPERBLOCK_COPIES.contains(&bad.at.block().offset());
            let is_spare = name.is_none() || is_copy;
            let health = if is_spare { Health::Degraded } else { Health::Damaged };
            let name = name.unwrap_or_else(|| "nothing that any map leads to".to_owned());
            (health, format!("poisoned range at {}, {} bytes: it holds {name}", bad.at, bad.len))
        };
        ranges.iter().zip(named).map(tell).collect()
    }

    /// The name of the structure at a fixed place.
    fn fixed_name(&self, bad: &PoisonedRange) -> Option<String> {
        let block = bad.at.block();
        if SUPERBLOCK_COPIES.contains(&block.offset()) {
            return Some(format!("superblock copy {}", block.0));
        }
        let slot = self.slot_of(block)?;
        let header = block.offset();
        let volume = self.volumes().into_iter().find(|volume| volume.header_at == header);
        Some(match volume {
            Some(volume) => format!("the header of volume {}", volume.name()),
            None => format!("volume header {slot}"),
        })
    }
}
