//! `everbyte-bench cache`: the options of the suite.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use everbyte_media::Technology;

use super::stream::Stream;
use super::{Part, Speed, hits, run};
use crate::driver::{Common, Findings, Pace, Run, Suite};

/// Compares the hybrid cache, by policy and size, with its backing device alone, which is as slow
/// as a disk, an SSD or an SD card, and with plain caches in DRAM of as much DRAM, of the same cost and of
/// the same capacity.
///
/// Figures of a whole workload are counted, not waited for: only processor time differs from run to
/// run. Slices of real time come besides. The workloads are those of 'everbyte sim generate',
/// placed on a device that has the pages which they touch.
#[derive(clap::Args, Clone)]
pub(crate) struct CacheArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Devices whose speeds the backing device imitates, one after the other.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "DEVICE,...",
        default_value = "hdd,ssd,sd"
    )]
    pub(super) backing: Vec<Speed>,
    /// Memory technology that storage-class memory is emulated as: dram, stt-mram, reram, pcm or
    /// pcm-banks.
    #[arg(long, default_value = "pcm", value_name = "TECHNOLOGY")]
    pub(super) scm: Technology,
    /// Price of a byte of storage-class memory in percent of one of DRAM. The cache of equal cost has as
    /// much DRAM as ours has DRAM and storage-class memory for that.
    #[arg(long, default_value_t = 50, value_name = "PERCENT",
          value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(super) scm_price: u64,
    /// A trace to play besides, in any format that 'everbyte sim' reads. Its pages must fit into
    /// DRAM.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Play at most so many requests of each generated workload.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1000..))]
    pub(super) requests: Option<u64>,
    /// Sizes of the caches, in percent of the pages that the workload touches. A quarter of each is
    /// DRAM.
    #[arg(long, value_delimiter = ',', value_name = "PERCENT,...",
          default_value = "10,20,30,40,50,60,70,80,90,100",
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) sizes: Vec<u32>,
    /// Numbers of clients in timed slices, each of which waits for an answer before it asks again.
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

impl Suite for CacheArgs {
    const NAME: &'static str = "cache";
    const PACE: Pace = Pace { rounds: 3, slice_s: 2.0 };
    const QUICK: Pace = Pace { rounds: 1, slice_s: 0.05 };

    fn common(&self) -> &Common {
        &self.common
    }

    fn shorten(&mut self) {
        (self.requests, self.sizes) = (Some(3000), vec![20, 80]);
    }

    fn measure(settings: &Run<Self>) -> Result<Findings> {
        let own = &settings.own;
        let streams = run::streams(own)?;
        let wants_hits = own.wants(Part::Timed) && own.wants(Part::Hits);
        ensure!(
            wants_hits || !streams.is_empty(),
            "every workload was left out, and there is no --trace"
        );
        let largest = streams.iter().map(Stream::size_bytes).max().unwrap_or(0);
        let backing: Vec<&str> = own.backing.iter().map(|speed| speed.name()).collect();
        let medium = format!(
            "anonymous memory, flushed as persistent memory must be, as slow as {}; backing devices as slow as {}",
            own.scm,
            backing.join(", ")
        );
        let mut rows = run::run(&streams, settings)?;
        if wants_hits {
            rows.extend(hits::run(settings)?);
        }
        Ok(Findings::new(rows, medium, largest))
    }
}
