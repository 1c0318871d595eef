//! The suite of the hybrid cache: generated workloads and traces over backing devices that are as
//! slow as a disk, an SSD and an SD card, alone, behind our cache by policy and size, and behind plain
//! LRU caches in DRAM: of as much DRAM as ours has, of what ours costs, and of as many bytes as ours.
//!
//! Storage-class memory is emulated as a technology that costs more than DRAM, and every write has
//! fresh random bytes, so that none is found to change nothing.
//!
//! Two ways to see the same requests. *Counted*: one client, from a cold cache, the backing
//! device's time counted and not waited for, write-back by the client whenever a write-back thread
//! would begin; everything but processor time is the same in every run. *Timed*: after that, with a
//! warm cache, a write-back thread in the background and a backing device that takes its time, a
//! slice in each round. Besides, hits alone, by threads at once.

mod backing;
pub(crate) mod command;
mod hits;
mod lru;
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
    /// Slices of real time in which every page is cached.
    Hits,
}

impl Part {
    /// The workloads, by the part that they are.
    const WORKLOADS: [(Self, Workload); 3] = [
        (Self::Webserver, Workload::Webserver),
        (Self::Web, Workload::Web),
        (Self::Mixed, Workload::Mixed),
    ];
}

/// Device whose speed the backing device imitates.
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
    /// As workloads have it in their names.
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

type Settings = Run<command::CacheArgs>;
