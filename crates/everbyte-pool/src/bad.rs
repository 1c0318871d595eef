//! Bad memory in the pool's own structures: how it is told from what was stored, and what it held.
//!
//! Invariant: whatever was loaded from a structure is believed only after `sound` was asked about
//! it, because bad memory reads as zeroes, which most structures take for "nothing here". Bad
//! memory of a volume's data is no business of this module but for its name.

use everbyte_media::{BadRange, Medium, PoolOffset};

use crate::format::{Corrupt, SUPERBLOCK_COPIES};
use crate::pool::Pool;

/// Says whether what was loaded from `at .. at + len`, which is part of `structure`, is what was
/// stored.
///
/// # Errors
/// Some of it is in bad memory.
#[inline]
pub fn sound<M: Medium>(
    medium: &M,
    structure: &str,
    at: PoolOffset,
    len: u64,
) -> Result<(), Corrupt> {
    medium.check_range(at, len).map_err(|error| Corrupt::new(structure, at, error.to_string()))
}

impl<M: Medium> Pool<M> {
    /// What is known to be bad, each range with what it holds.
    pub(crate) fn name_bad_memory(&self) -> Vec<String> {
        if !self.medium().has_bad() {
            return Vec::new();
        }
        let ranges = self.medium().bad_ranges();
        let mut named: Vec<Option<String>> =
            ranges.iter().map(|bad| self.fixed_name(bad)).collect();
        for volume in self.volumes() {
            // A map that cannot be walked is a finding of its own; what it leads to has no name.
            let _partly = self.visit(&volume, &mut |claimed| {
                let (start, len) = claimed.part.bytes();
                for (bad, name) in ranges.iter().zip(&mut named) {
                    if bad.first_in(start, len).is_some() {
                        name.get_or_insert(format!(
                            "{} of volume {}",
                            claimed.holds,
                            volume.name()
                        ));
                    }
                }
                Ok(())
            });
        }
        let tell = |(bad, name): (&BadRange, Option<String>)| {
            let name = name.unwrap_or_else(|| "nothing that any map leads to".to_owned());
            format!("bad memory at {}, {} bytes: it holds {name}", bad.at, bad.len)
        };
        ranges.iter().zip(named).map(tell).collect()
    }

    /// The name of what has a fixed place.
    fn fixed_name(&self, bad: &BadRange) -> Option<String> {
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
