//! `everbyte-bench files`: the options of the suite.

use anyhow::Result;

use super::run;
use crate::driver::{Common, Findings, Pace, Run, Suite};

/// Compares operations on files: our file system in this process, the floor, tmpfs and ext4 through system
/// calls, and for reads the block volume.
///
/// Paths have two names. --names sets the number of names in the directory. ext4 lies on a loop device on a
/// file in the folder and needs root.
#[derive(clap::Args, Clone)]
pub(crate) struct FilesArgs {
    #[command(flatten)]
    common: Common,
    /// Bytes of the file for reads, in MiB.
    #[arg(long, default_value_t = 64, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(1..=4096))]
    size: u64,
    /// Names in the directory.
    #[arg(long, default_value_t = 1000, value_name = "COUNT",
          value_parser = clap::value_parser!(u16).range(2..=5000))]
    names: u16,
}

impl FilesArgs {
    pub(super) fn names(&self) -> usize {
        self.names.into()
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.size << 20
    }
}

impl Suite for FilesArgs {
    const NAME: &'static str = "files";
    const PACE: Pace = Pace { rounds: 7, slice_s: 0.2 };
    const QUICK: Pace = Pace { rounds: 1, slice_s: 0.005 };

    fn common(&self) -> &Common {
        &self.common
    }

    fn shorten(&mut self) {
        (self.size, self.names) = (4, 100);
    }

    fn measure(settings: &Run<Self>) -> Result<Findings> {
        let (rows, medium) = run(settings)?;
        Ok(Findings::new(rows, medium, settings.own.file_bytes()))
    }
}
