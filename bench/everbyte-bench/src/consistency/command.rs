//! `everbyte-bench consistency`: the options of the suite.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use everbyte_extent::Delta;

use super::{DEVICE_BYTES, Part, run};
use crate::driver::{Common, Findings, Pace, Run, Suite, seconds};

/// Compares consistency schemes: none, redo journals, block journals, shadow paging, rollback
/// recovery, and ext4.
///
/// Rollback and redo exist twice, as published and improved. Every scheme runs on the same emulated
/// memory, anonymous memory of this process: DRAM with flushes, and phase-change memory with one bank of
/// lines or with eight. Ten warehouses of TPC-C take about 16 GiB of memory.
#[derive(clap::Args, Clone)]
pub(crate) struct ConsistencyArgs {
    #[command(flatten)]
    common: Common,
    /// Seconds of TPC-C of each scheme in each round.
    #[arg(long, default_value = "2", value_name = "SECONDS", value_parser = seconds)]
    pub(super) tpcc_seconds: Duration,
    /// Warehouses of TPC-C.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) warehouses: u32,
    /// Detection of the changed lines of a write. All schemes use the same code.
    #[arg(long, value_enum, default_value_t = Detection::Auto)]
    pub(super) delta: Detection,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

impl ConsistencyArgs {
    pub(super) fn wants(&self, part: Part) -> bool {
        !self.skip.contains(&part)
    }
}

/// Change detection, as a choice on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Detection {
    /// Compares if comparing saves more than it costs.
    Auto,
    /// Compares each write with the stored bytes.
    On,
    /// Compares nothing: all written bytes count as changed.
    Off,
}

impl Detection {
    pub(super) fn setting(self) -> Delta {
        match self {
            Self::Auto => Delta::Auto,
            Self::On => Delta::On,
            Self::Off => Delta::Off,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

impl Suite for ConsistencyArgs {
    const NAME: &'static str = "consistency";
    const PACE: Pace = Pace { rounds: 5, slice_s: 0.02 };
    const QUICK: Pace = Pace { rounds: 1, slice_s: 0.005 };

    fn common(&self) -> &Common {
        &self.common
    }

    fn shorten(&mut self) {
        (self.tpcc_seconds, self.warehouses) = (Duration::from_millis(20), 1);
    }

    fn measure(settings: &Run<Self>) -> Result<Findings> {
        let medium = format!(
            "anonymous memory that costs what the workload's name says; changes detected: {}",
            settings.own.delta.name()
        );
        Ok(Findings::new(run(settings)?, medium, DEVICE_BYTES))
    }
}
