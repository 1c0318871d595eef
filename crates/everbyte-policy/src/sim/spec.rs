//! Sizes, settings and costs of one simulation, and the ranges that they must lie in.

use serde::{Deserialize, Serialize};

use crate::costs::Costs;
use crate::policy::{Capacity, DirtyVictims, HybridConfig};

/// Sizes, settings and costs of one simulation.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Pages that DRAM and SCM can hold together, `2 ..= Spec::PAGES_MAX`.
    pub pages: u32,
    /// Parts of the cache that are DRAM, at least 1.
    pub dram_parts: u32,
    /// Parts of the cache that are SCM, at least 1.
    pub scm_parts: u32,
    /// Writes of at most this many bytes are small, for policies with this distinction.
    pub small_write_bytes: u16,
    /// Makes `hybrid` follow the paper's pseudo-code instead of its text.
    pub pseudo_code: bool,
    /// Costs of memory and of the backing device.
    pub costs: Costs,
}

/// A field of a spec is out of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A cache of two tiers has a page in each.
    #[error("a cache of {pages} pages is outside 2..={}", Spec::PAGES_MAX)]
    Pages {
        /// The pages asked for.
        pages: u32,
    },
    /// A tier without a part.
    #[error("the ratio DRAM:SCM is {dram}:{scm}, and neither part may be 0")]
    Ratio {
        /// Parts of DRAM.
        dram: u32,
        /// Parts of SCM.
        scm: u32,
    },
}

impl Spec {
    /// The largest cache.
    pub const PAGES_MAX: u32 = 1 << 30;

    /// Makes a spec of a cache of this many pages with DRAM:SCM = 1:3, the paper's threshold, and
    /// an SD card.
    ///
    /// # Errors
    /// [`SpecError::Pages`] if `pages` is outside `2 ..= Spec::PAGES_MAX`.
    pub fn new(pages: u32) -> Result<Self, SpecError> {
        let config = HybridConfig::default();
        let spec = Self {
            pages,
            dram_parts: 1,
            scm_parts: 3,
            small_write_bytes: config.small_write_bytes,
            pseudo_code: config.dirty_victims == DirtyVictims::MoveLikeClean,
            costs: Costs::default(),
        };
        spec.check()?;
        Ok(spec)
    }

    /// Checks that the fields are in their ranges.
    ///
    /// # Errors
    /// The first field that is out of its range.
    pub fn check(&self) -> Result<(), SpecError> {
        if !(2..=Self::PAGES_MAX).contains(&self.pages) {
            return Err(SpecError::Pages { pages: self.pages });
        }
        if self.dram_parts == 0 || self.scm_parts == 0 {
            return Err(SpecError::Ratio { dram: self.dram_parts, scm: self.scm_parts });
        }
        Ok(())
    }

    /// Returns the frames of each tier: DRAM's share rounded down, but at least one page for each.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        let parts = u64::from(self.dram_parts) + u64::from(self.scm_parts);
        let dram = u64::from(self.pages) * u64::from(self.dram_parts) / parts.max(1);
        let pages = self.pages.max(2);
        let dram = u32::try_from(dram).unwrap_or(pages).clamp(1, pages - 1);
        Capacity { dram, scm: pages - dram }
    }

    /// Returns the settings of the paper's policy.
    #[must_use]
    pub fn hybrid(&self) -> HybridConfig {
        HybridConfig {
            small_write_bytes: self.small_write_bytes,
            dirty_victims: if self.pseudo_code {
                DirtyVictims::MoveLikeClean
            } else {
                DirtyVictims::AlwaysMove
            },
            ..HybridConfig::default()
        }
    }
}
