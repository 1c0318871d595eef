//! `everbyte-bench consistency`: the options of the suite.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use super::{DEVICE_BYTES, matrix, sqlite};
use crate::driver::{Common, Findings, Pace, Run, Suite, seconds};

/// Compares consistency schemes: none, redo journals, block journals, shadow paging, rollback recovery, and ext4.
///
/// Rollback and redo have a published and an improved form. Each scheme runs on the same emulated memory, anonymous
/// memory of this process: DRAM with flushes, and phase-change memory with one bank of lines or with eight. Ten
/// warehouses of TPC-C take about 16 GiB of memory.
#[derive(clap::Args, Clone)]
pub(crate) struct ConsistencyArgs {
    #[command(flatten)]
    common: Common,
    /// Seconds of TPC-C for each scheme in each round.
    #[arg(long, default_value = "2", value_name = "SECONDS", value_parser = seconds)]
    pub(super) tpcc_seconds: Duration,
    /// Warehouses of TPC-C.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) warehouses: u32,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

/// The parts of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// IOzone-like writes, appends and metadata.
    Matrix,
    /// TPC-C on SQLite.
    Tpcc,
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
        let wants = |part| !settings.own.skip.contains(&part);
        let mut rows = Vec::new();
        if wants(Part::Matrix) {
            rows.extend(matrix::run(settings)?);
        }
        if wants(Part::Tpcc) {
            rows.extend(sqlite::run(settings)?);
        }
        let medium =
            "anonymous memory with the costs of the workload's name; change detection: auto";
        Ok(Findings::new(rows, medium.to_owned(), DEVICE_BYTES))
    }
}
