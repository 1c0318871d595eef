//! `everbyte-bench cache`: the runs of the suite.

use anyhow::{Result, ensure};

use super::options::CacheArgs;
use super::stream::Stream;
use super::{Part, hits, run};
use crate::driver::{Common, Findings, Pace, Run, Suite};

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
        // Hits are slices of real time as well.
        let wants_hits = own.wants(Part::Timed) && own.wants(Part::Hits);
        ensure!(
            wants_hits || !streams.is_empty(),
            "every workload was left out, and there is no --trace"
        );
        // The environment has one size: the largest device.
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
