//! The options of `everbyte-bench cache`.

use std::path::PathBuf;

use everbyte_media::Technology;

use super::{Part, Speed};
use crate::driver::Common;

/// Compares the hybrid cache, by policy and size, with its backing device alone and with plain caches in DRAM.
///
/// The backing device is as slow as a disk, an SSD or an SD card. The plain caches have the same DRAM, the
/// same cost or the same capacity. Figures of a whole workload are counted: only processor time differs from
/// run to run. Slices of real time follow. The workloads are those of 'everbyte sim generate', on a device
/// with the touched pages.
#[derive(clap::Args, Clone)]
pub(crate) struct CacheArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Speeds of the backing device.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "DEVICE,...",
        default_value = "hdd,ssd,sd"
    )]
    pub(super) backing: Vec<Speed>,
    /// Technology of the emulated storage-class memory: dram, stt-mram, reram, pcm or pcm-banks.
    #[arg(long, default_value = "pcm", value_name = "TECHNOLOGY")]
    pub(super) scm: Technology,
    /// Price of a byte of storage-class memory in percent of a byte of DRAM. It determines the size of the
    /// plain cache of equal cost.
    #[arg(long, default_value_t = 50, value_name = "PERCENT",
          value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(super) scm_price: u64,
    /// An additional trace, in any format of 'everbyte sim'. Its pages must fit into DRAM.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Requests of each generated workload at most.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1000..))]
    pub(super) requests: Option<u64>,
    /// Sizes of the caches, in percent of the touched pages. A quarter of each is DRAM.
    #[arg(long, value_delimiter = ',', value_name = "PERCENT,...",
          default_value = "10,20,30,40,50,60,70,80,90,100",
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) sizes: Vec<u32>,
    /// Numbers of clients in timed slices. Each client has one request in flight.
    #[arg(long, default_value = "1,8", value_delimiter = ',', value_name = "COUNT,...",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) clients: Vec<u16>,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    pub(super) skip: Vec<Part>,
}

impl CacheArgs {
    pub(super) fn wants(&self, part: Part) -> bool {
        !self.skip.contains(&part)
    }

    /// Sizes of the caches in percent, ascending.
    pub(super) fn percents(&self) -> Vec<u32> {
        let mut percents = self.sizes.clone();
        percents.sort_unstable();
        percents.dedup();
        percents
    }
}
