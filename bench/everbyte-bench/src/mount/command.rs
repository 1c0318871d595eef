//! `everbyte-bench mount`: the options of the suite.

use std::time::Duration;

use anyhow::Result;

use super::{Part, run};
use crate::driver::{Common, Findings, Pace, Run, Suite, seconds};

/// Measures a mount with single system calls and Filebench's workloads, and compares it with an empty FUSE
/// file system, a plain one in memory, and libfuse's passthrough_ll over tmpfs.
///
/// Needs root, and for passthrough_ll gcc and libfuse3-dev. All mounts lie in memory in a private mount
/// namespace and disappear with the program.
#[derive(clap::Args, Clone)]
pub(crate) struct MountArgs {
    #[command(flatten)]
    common: Common,
    /// Seconds of each mount for each workload in each round.
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    pub(super) workload_seconds: Duration,
    /// Files of each workload.
    #[arg(long, default_value_t = 2000, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    pub(super) files: u32,
    /// Threads of each workload.
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_values_t = [1, 16],
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) clients: Vec<u16>,
    /// Threads of each server.
    #[arg(long, default_value_t = 4, value_name = "COUNT",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Bytes of our pool, in MiB.
    #[arg(long, default_value_t = 2048, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(256..=1_048_576))]
    size: u64,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

impl MountArgs {
    pub(super) fn wants(&self, part: Part) -> bool {
        !self.skip.contains(&part)
    }

    /// Threads of each server, and bytes of our pool.
    pub(super) fn sizes(&self) -> (usize, u64) {
        (self.threads.into(), self.size << 20)
    }
}

impl Suite for MountArgs {
    const NAME: &'static str = "mount";
    const PACE: Pace = Pace { rounds: 9, slice_s: 0.2 };
    const QUICK: Pace = Pace { rounds: 1, slice_s: 0.01 };

    fn common(&self) -> &Common {
        &self.common
    }

    fn shorten(&mut self) {
        (self.files, self.clients) = (100, vec![2]);
        self.workload_seconds = Duration::from_millis(10);
    }

    fn measure(settings: &Run<Self>) -> Result<Findings> {
        let medium = "memory of the server, with flushes".to_owned();
        Ok(Findings::new(run(settings)?, medium, settings.own.sizes().1))
    }
}
