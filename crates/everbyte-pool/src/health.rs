//! Health of a pool: one scale for the check, the scrub and the status of a pool.
//!
//! Owns the scale, and the rule for structures with two copies. Each finder of damage grades its own findings with it.

use std::fmt;
use std::sync::Arc;

use everbyte_media::{Medium, PoolOffset};

use crate::pool::Pool;
use crate::scrub::ScrubFinding;
use crate::volume::Volume;

/// Health of a pool or of a part of it, from best to worst.
///
/// Data in DRAM does not count; a crash leaves nothing of it. A pool that needs recovery after a crash is
/// clean: each opening recovers it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Health {
    /// Nothing is wrong.
    #[default]
    Clean,
    /// All bytes can be read, and something is missing: one copy of two is damaged, blocks are leaked, free memory is
    /// poisoned, or the pool cannot be written.
    Degraded,
    /// A structure or bytes of a volume are damaged, or two volumes own a block.
    Damaged,
}

impl Health {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Degraded => "degraded",
            Self::Damaged => "damaged",
        }
    }

    /// The health of a pool with these findings. A structure is lost if each copy is damaged.
    pub fn of_findings<'f>(findings: impl IntoIterator<Item = &'f ScrubFinding>) -> Self {
        let mut copies: Vec<(&str, PoolOffset)> = Vec::new();
        let mut health = Self::Clean;
        for finding in findings {
            health = health.max(finding.health());
            if finding.health() == Self::Degraded {
                let structure = finding.structure.as_str();
                // Only the copies of a superblock lie in separate blocks.
                let of = if structure == SUPERBLOCK {
                    PoolOffset(0)
                } else {
                    finding.at.block().offset()
                };
                // Each structure has two copies, and both are damaged: nothing stands for it.
                if copies.contains(&(structure, of)) {
                    return Self::Damaged;
                }
                copies.push((structure, of));
            }
        }
        health
    }
}

impl<M: Medium> Pool<M> {
    /// Health of the pool as far as it is known without a walk of maps or a read of data.
    #[must_use]
    pub fn known_health(&self) -> Health {
        let mut health = Health::of_findings(&self.scrub_headers().findings);
        // A poisoned range may be free memory, so it does not prove that bytes are lost.
        if self.read_only_reason().is_some() || self.medium().has_poison() {
            health = health.max(Health::Degraded);
        }
        // A volume of an unknown kind has a `damage` reason as well, but it is not damaged.
        let is_damaged =
            |volume: &Arc<Volume<M>>| self.knows_kind(volume) && volume.damage().is_some();
        if self.has_clash()
            || self.space_unknown().is_some()
            || !self.lost_headers().is_empty()
            || self.volumes().iter().any(is_damaged)
        {
            health = Health::Damaged;
        }
        health
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

const SUPERBLOCK: &str = "superblock";

/// Names of the structures with two copies in a pool.
const COPIES: [&str; 3] = [SUPERBLOCK, "volume descriptor", "checkpoint record"];

impl ScrubFinding {
    /// Health of a pool with this finding alone.
    #[must_use]
    pub fn health(&self) -> Health {
        if COPIES.contains(&self.structure.as_str()) { Health::Degraded } else { Health::Damaged }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(structure: &str, at: u64) -> ScrubFinding {
        ScrubFinding {
            volume: None,
            structure: structure.to_owned(),
            offset: None,
            at: PoolOffset(at),
            what: String::new(),
        }
    }

    #[test]
    fn one_bad_copy_degrades_two_damage() {
        let health = |findings: &[(&str, u64)]| {
            let findings: Vec<_> = findings.iter().map(|(what, at)| finding(what, *at)).collect();
            Health::of_findings(&findings)
        };
        let (record, descriptor) = ("checkpoint record", "volume descriptor");
        assert_eq!(health(&[]), Health::Clean);
        assert_eq!(health(&[("superblock", 0)]), Health::Degraded);
        assert_eq!(health(&[("superblock", 0), ("superblock", 4096)]), Health::Damaged);
        assert_eq!(health(&[(record, 8256), (record, 8320)]), Health::Damaged);
        assert_eq!(health(&[(record, 8256), (descriptor, 9216)]), Health::Degraded);
        assert_eq!(health(&[(record, 8256), (record, 12352)]), Health::Degraded);
        assert_eq!(health(&[("superblock", 0), ("data", 8 << 20)]), Health::Damaged);
    }
}
