//! `everbyte-bench media`: the options of the suite.

use anyhow::Result;

use super::run;
use crate::driver::{Common, Findings, Pace, Run, Suite};

/// Measures single requests to memory by their size, from 2 bytes to 4 KiB: reads, and durable writes,
/// on every emulated technology.
#[derive(clap::Args, Clone)]
pub(crate) struct MediaArgs {
    #[command(flatten)]
    common: Common,
    /// Requests of each size in each round.
    #[arg(long, default_value_t = 10_000, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    pub(super) requests: u32,
    /// Memory of each technology, in MiB.
    #[arg(long, default_value_t = 256, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub(super) size: u64,
}

impl Suite for MediaArgs {
    const NAME: &'static str = "media";
    const PACE: Pace = Pace { rounds: 5, slice_s: 0.0 };
    const QUICK: Pace = Pace { rounds: 2, slice_s: 0.0 };

    fn common(&self) -> &Common {
        &self.common
    }

    fn shorten(&mut self) {
        (self.requests, self.size) = (200, 4);
    }

    fn measure(settings: &Run<Self>) -> Result<Findings> {
        let requests = settings.own.requests;
        let medium = format!(
            "anonymous memory that costs what the subject says; {requests} requests of a size"
        );
        Ok(Findings::new(run(settings)?, medium, settings.own.size << 20))
    }
}
