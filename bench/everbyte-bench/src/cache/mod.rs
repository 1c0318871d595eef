//! The suite of the hybrid cache: generated workloads and traces on a backing device alone, behind our cache, and behind
//! plain LRU caches in DRAM.
//!
//! The backing device is as slow as a disk, an SSD or an SD card. The plain caches have our DRAM, our cost, or our
//! capacity. Storage-class memory is emulated with higher costs than DRAM. Every write has fresh random bytes, so change
//! detection saves nothing.
//!
//! *Counted* figures: one client plays the workload from a cold cache. The time of the backing device is counted without
//! waiting. The client writes back at the thresholds of a write-back thread. Only processor time varies between runs.
//! *Timed* figures: each round has a slice with a warm cache, a write-back thread, and a backing device in real time. *Hits*:
//! parallel threads hit cached pages.

mod backing;
mod command;
mod hits;
mod lru;
pub(crate) mod options;
mod run;
mod stream;
pub(crate) mod subject;

use clap::ValueEnum;
use everbyte_device::DiskCosts;
use everbyte_policy::trace::generate::Workload;

use crate::driver::Run;

/// Parts of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// The generated webserver workload.
    Webserver,
    /// The generated browser workload.
    Web,
    /// The generated workload of several mobile programs.
    Mixed,
    /// Slices of real time; counts remain.
    Timed,
    /// Slices of real time with hits only.
    Hits,
}

impl Part {
    /// The parts with a workload.
    const WORKLOADS: [(Self, Workload); 3] = [
        (Self::Webserver, Workload::Webserver),
        (Self::Web, Workload::Web),
        (Self::Mixed, Workload::Mixed),
    ];
}

/// Speed of the backing device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Speed {
    /// A disk of 7200 turns a minute.
    Hdd,
    /// A SATA solid-state disk.
    Ssd,
    /// An SD card.
    Sd,
}

impl Speed {
    /// The name in workloads.
    fn name(self) -> &'static str {
        match self {
            Self::Hdd => "hdd",
            Self::Ssd => "ssd",
            Self::Sd => "sd",
        }
    }

    fn costs(self) -> DiskCosts {
        match self {
            Self::Hdd => DiskCosts::HDD,
            Self::Ssd => DiskCosts::SSD,
            Self::Sd => DiskCosts::SD_CARD,
        }
    }
}

/// Counts of a cache.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) hits: u64,
    pub(crate) accesses: u64,
    /// Bytes written to storage-class memory; `None` for a cache in DRAM.
    pub(crate) scm_bytes: Option<u64>,
    pub(crate) written_back: u64,
    pub(crate) runs: u64,
}

type Settings = Run<options::CacheArgs>;
