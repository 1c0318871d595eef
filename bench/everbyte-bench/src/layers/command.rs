//! `everbyte-bench layers`: the options of the suite.

use anyhow::Result;

use super::{Part, run};
use crate::driver::{Common, Findings, Pace, Run, Suite};

/// The paper's device in bytes.
const PAPER_DEVICE_BYTES: u64 = 10 << 30;

/// Measures ext4 on devices: on a ramdisk, on our export over NBD, on devices as slow as a disk and an
/// SSD, buffered and direct, by the four patterns of fio. Needs root, and `nbdfuse`.
#[derive(clap::Args, Clone)]
pub(crate) struct LayersArgs {
    #[command(flatten)]
    common: Common,
    /// Divisor of the paper's device size of 10 GB. Half of a device is read or written.
    #[arg(long, default_value_t = 20, value_name = "TIMES",
          value_parser = clap::value_parser!(u64).range(1..=160))]
    scale: u64,
    /// Number of files. Requests go to the files in turn.
    #[arg(long, default_value_t = 100, value_name = "COUNT",
          value_parser = clap::value_parser!(u16).range(2..=1000))]
    files: u16,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

impl LayersArgs {
    /// Bytes of each device, a multiple of 1 MiB.
    pub(super) fn device_bytes(&self) -> u64 {
        (PAPER_DEVICE_BYTES / self.scale) >> 20 << 20
    }

    /// Files of Figure 6.
    pub(super) fn files(&self) -> usize {
        self.files.into()
    }

    pub(super) fn wants(&self, part: Part) -> bool {
        !self.skip.contains(&part)
    }
}

impl Suite for LayersArgs {
    const NAME: &'static str = "layers";
    const PACE: Pace = Pace { rounds: 3, slice_s: 3.0 };
    const QUICK: Pace = Pace { rounds: 1, slice_s: 0.05 };

    fn common(&self) -> &Common {
        &self.common
    }

    fn shorten(&mut self) {
        (self.scale, self.files) = (160, 10);
    }

    fn measure(settings: &Run<Self>) -> Result<Findings> {
        let scale = settings.own.scale;
        let medium = format!(
            "memory, flushed as persistent memory must be; 1/{scale} of the paper's devices"
        );
        Ok(Findings::new(run(settings)?, medium, settings.own.device_bytes()))
    }
}
