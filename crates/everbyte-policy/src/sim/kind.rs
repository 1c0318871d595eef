//! Names of the policies that can be simulated.

use serde::{Deserialize, Serialize};

/// A policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The project's own.
    Everbyte,
    /// The paper's sector-ordered dual CLOCK.
    Hybrid,
    /// The same, but a full cache drops DRAM's clean victims.
    HybridDrop,
    /// The same, but a full cache drops DRAM's clean victims that were not hit there.
    HybridDropUnused,
    /// The paper's baseline.
    ClockMigration,
    /// CLOCK-DWF.
    ClockDwf,
    /// M-CLOCK-like.
    MClock,
    /// Four-queue-LRU-like.
    FourQueue,
    /// PDRAM-like.
    Pdram,
    /// Spitfire, in its lazy setting.
    Spitfire,
    /// Least recently used, one tier.
    Lru,
    /// CLOCK, one tier.
    Clock,
    /// SIEVE, one tier.
    Sieve,
    /// S3-FIFO, one tier.
    #[serde(rename = "s3-fifo")]
    S3Fifo,
    /// ARC, one tier.
    Arc,
    /// W-TinyLFU, one tier.
    #[serde(rename = "w-tinylfu")]
    WTinyLfu,
    /// Belady's MIN, one tier, which knows the future.
    Belady,
}

/// A name without a policy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no policy has the name {name:?}; the names are {}", Kind::ALL.map(Kind::name).join(", "))]
pub struct UnknownPolicy {
    /// The name.
    pub name: String,
}

impl Kind {
    /// All policies.
    pub const ALL: [Self; 17] = [
        Self::Everbyte,
        Self::Hybrid,
        Self::HybridDrop,
        Self::HybridDropUnused,
        Self::ClockMigration,
        Self::ClockDwf,
        Self::MClock,
        Self::FourQueue,
        Self::Pdram,
        Self::Spitfire,
        Self::Lru,
        Self::Clock,
        Self::Sieve,
        Self::S3Fifo,
        Self::Arc,
        Self::WTinyLfu,
        Self::Belady,
    ];

    /// Returns its name on the command line and in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Everbyte => "everbyte",
            Self::Hybrid => "hybrid",
            Self::HybridDrop => "hybrid-drop",
            Self::HybridDropUnused => "hybrid-drop-unused",
            Self::ClockMigration => "clock-migration",
            Self::ClockDwf => "clock-dwf",
            Self::MClock => "m-clock",
            Self::FourQueue => "four-queue",
            Self::Pdram => "pdram",
            Self::Spitfire => "spitfire",
            Self::Lru => "lru",
            Self::Clock => "clock",
            Self::Sieve => "sieve",
            Self::S3Fifo => "s3-fifo",
            Self::Arc => "arc",
            Self::WTinyLfu => "w-tinylfu",
            Self::Belady => "belady",
        }
    }

    /// Returns true if it knows DRAM and SCM; the others are given one tier, DRAM, of the whole
    /// size.
    #[must_use]
    pub const fn has_two_tiers(self) -> bool {
        !matches!(
            self,
            Self::Lru
                | Self::Clock
                | Self::Sieve
                | Self::S3Fifo
                | Self::Arc
                | Self::WTinyLfu
                | Self::Belady
        )
    }
}

impl std::str::FromStr for Kind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownPolicy { name: name.to_owned() })
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
