//! A custom policy, and its figures compared with some of ours, over any trace.
//!
//! ```text
//! cargo run -p everbyte-policy --release --example own_policy TRACE...
//! ```
//!
//! The policy is FIFO in both tiers: pages enter DRAM, the oldest there is demoted, the oldest of
//! SCM is evicted. Copy the file, change [`Fifo`], and keep the tests: they check the duties of
//! every policy. docs/policies.md states how to add a policy to `everbyte sim`.

#![allow(clippy::print_stdout, reason = "a program")]

use std::collections::VecDeque;
use std::path::Path;

use everbyte_policy::policy::{Actions, Capacity, Dense, Directory, Policy, Reason, Storage, Tier};
use everbyte_policy::sim::{Kind, Outcome, Spec, run, run_policy};
use everbyte_policy::trace::{PageLimits, ReadOptions, TraceReader, read_pages};
use everbyte_policy::{Access, PageNo, PageTrace};

/// First in, first out, in both tiers.
struct Fifo<S: Storage> {
    pages: Directory<S>,
    /// Pages of each tier, oldest first, and pages that have left it since.
    queues: [VecDeque<PageNo>; 2],
}

impl<S: Storage> Fifo<S> {
    fn new(storage: S, capacity: Capacity) -> Self {
        Self { pages: Directory::new(storage, capacity), queues: Default::default() }
    }

    /// Takes the oldest page of a tier, which has one, out of its queue.
    fn oldest(&mut self, tier: Tier) -> PageNo {
        loop {
            let page = self.queues[tier as usize].pop_front().expect("a full tier has a page");
            if self.pages.tier(page) == Some(tier) {
                return page;
            }
        }
    }
}

impl<S: Storage> Policy for Fifo<S> {
    type Storage = S;

    fn directory(&self) -> &Directory<S> {
        &self.pages
    }

    fn directory_mut(&mut self) -> &mut Directory<S> {
        &mut self.pages
    }

    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        if self.pages.hit(access, actions) {
            return;
        }
        if self.pages.is_full(Tier::Dram) {
            self.reclaim(Tier::Dram, actions);
        }
        self.pages.fill(access, Tier::Dram, actions);
        self.queues[Tier::Dram as usize].push_back(access.page);
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        if tier == Tier::Dram {
            if self.pages.is_full(Tier::Scm) {
                self.reclaim(Tier::Scm, actions);
            }
            let page = self.oldest(Tier::Dram);
            self.pages.relocate(page, Tier::Scm, Reason::Victim, actions);
            self.queues[Tier::Scm as usize].push_back(page);
        } else {
            let page = self.oldest(Tier::Scm);
            self.pages.expel(page, Reason::Victim, actions);
        }
    }

    fn remove(&mut self, page: PageNo) {
        self.pages.forget(page);
        self.queues.iter_mut().for_each(|queue| queue.retain(|&other| other != page));
    }
}

fn simulate(spec: &Spec, trace: &PageTrace) -> Outcome {
    let pages = u32::try_from(trace.pages()).expect("pages are numbered by 32 bits");
    run_policy(Fifo::new(Dense { pages }, spec.capacity()), "fifo", spec, trace)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let mut reader = TraceReader::open(Path::new(&path), &ReadOptions::default())?;
        let trace = read_pages(&mut reader, PageLimits::default())?;
        for percent in [10, 50] {
            let spec = Spec::new(u32::try_from(trace.pages() * percent / 100)?)?;
            let ours = [Kind::Hybrid, Kind::Everbyte].map(|kind| run(kind, &spec, &trace));
            for outcome in [simulate(&spec, &trace)].iter().chain(&ours) {
                println!(
                    "{path} {percent:3}% {:10} hits {:.4}, SCM writes {:9}, {:.3} s with drain",
                    outcome.policy,
                    outcome.hit_ratio(),
                    outcome.scm.writes,
                    outcome.elapsed_with_drain_ns / 1e9,
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use everbyte_policy::policy::Sparse;
    use everbyte_policy::trace::PageTraceBuilder;
    use everbyte_policy::trace::generate::{GenerateOptions, Workload, generate};

    use super::*;

    fn web() -> PageTrace {
        let options = GenerateOptions { seed: 1, requests: Some(5000), pages: 1, skew: 1.0 };
        let mut builder = PageTraceBuilder::new(PageLimits::default());
        let push = &mut |request: &_, _: &str| {
            builder.push(request).map_err(|problem| std::io::Error::other(problem.to_string()))
        };
        generate(Workload::Web, &options, push).unwrap();
        builder.finish()
    }

    #[test]
    fn first_in_is_first_out() {
        let access =
            |page| Access { page: PageNo(page), start: 0, len: 1, op: everbyte_policy::Op::Read };
        let mut policy = Fifo::new(Sparse, Capacity { dram: 1, scm: 2 });
        for page in [10, 11, 10, 12, 13] {
            policy.access(access(page), &mut Vec::new());
        }
        let tiers = [10, 11, 12, 13].map(|page| policy.directory().tier(PageNo(page)));
        assert_eq!(tiers, [None, Some(Tier::Scm), Some(Tier::Scm), Some(Tier::Dram)]);
    }

    #[test]
    fn every_access_is_served_once_and_nothing_is_lost() {
        let trace = web();
        let pages = u32::try_from(trace.pages()).unwrap();
        let spec = Spec::new(pages / 4).unwrap();
        let outcome = simulate(&spec, &trace);
        assert_eq!(outcome.policy, "fifo");
        assert_eq!(outcome.accesses(), trace.accesses.len() as u64);
        // With room for everything each page is missed once, and none leaves.
        let ample = Spec::new(pages * 4).unwrap();
        let outcome = simulate(&ample, &trace);
        assert_eq!(outcome.reads.missed + outcome.writes.missed, u64::from(pages));
        assert_eq!(outcome.backing.pages_written, 0);
    }
}
