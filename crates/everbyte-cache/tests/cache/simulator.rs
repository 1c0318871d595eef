//! The same requests through the simulator and through the cache: the same decisions.
//!
//! With one client, and without write-back of cached pages the two agree exactly in every count: a
//! policy gets the same accesses in the same order, and does not see its evicted dirty pages
//! pending write-back. In use there are three differences, all unknown to the simulator:
//!
//! - Pages written back because many are dirty are clean from then on, and a policy that evicts
//!   clean pages first chooses others. A policy that ignores dirtiness decides exactly as before.
//!   For the others the second test bounds the effect on hits, in whole traces, by policy. They
//!   gain in small caches, where former dirty pages are clean and make room, and lose where clean
//!   pages are used again.
//! - While the pool is full a page may stay in DRAM after the policy has moved it to SCM; a clean
//!   one may have to be evicted. The cache counts by the policy, so hits differ only if so many
//!   demotions fail that pages are evicted.
//! - After a restart the policy learns of the pages in the order of sectors.
//!
//! Several clients make requests in an order unknown to a simulator, and the policy gets each one's
//! hits up to 256 late, or never during decisions of others. On an idle machine the effect is
//! mostly less than a point of hits. If clients wait for processors within requests, it was up to
//! three. The third test bounds it at five. Every access is counted, even if it was not reported to
//! the policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use everbyte_cache::{Cache, CacheStats, Settings};
use everbyte_device::{BlockDevice, Fua, MemoryDevice};
use everbyte_policy::sim::{Kind, Outcome, Spec, run};
use everbyte_policy::trace::generate::{GenerateOptions, Workload, generate};
use everbyte_policy::trace::{PageLimits, PageTraceBuilder, Request, RequestOp};
use everbyte_policy::{PageAddress, PageTrace};

use crate::{PAGE, POLICIES, medium, open, settings};

/// Requests taken of each workload where decisions are compared one by one: enough for several times
/// the smallest cache.
const REQUESTS: usize = 8000;

/// Sizes in percent of the touched pages.
const PERCENT: [u32; 4] = [10, 30, 60, 100];

/// Sizes for whole traces, at the largest difference; with the variable `EVERBYTE_CACHE_SIZES` all
/// of [`PERCENT`].
fn percent_of_whole() -> Vec<u32> {
    let all = std::env::var_os("EVERBYTE_CACHE_SIZES").is_some();
    if all { PERCENT.to_vec() } else { vec![10, 20] }
}

/// A workload's first requests, placed on a device of their pages.
struct Stream {
    requests: Vec<Request>,
    pages: PageTrace,
}

impl Stream {
    fn new(workload: Workload) -> Self {
        Self::first(workload, REQUESTS, 5)
    }

    /// The first `count` requests of `seed`.
    fn first(workload: Workload, count: usize, seed: u64) -> Self {
        let mut requests = Vec::new();
        let options = GenerateOptions { seed, ..GenerateOptions::default() };
        generate(workload, &options, &mut |request, _| {
            requests.push(*request);
            Ok(())
        })
        .unwrap();
        requests.truncate(count);
        requests.retain(|request| request.len > 0);
        let mut builder = PageTraceBuilder::new(PageLimits::default());
        requests.iter().for_each(|request| builder.push(request).unwrap());
        let mut pages = builder.finish();
        for request in &mut requests {
            let address = PageAddress { device: request.file, page: request.offset / PAGE };
            let number = pages.number_of(address).unwrap();
            request.offset = u64::from(number.0) * PAGE + request.offset % PAGE;
        }
        // On that device they follow each other.
        for (page, address) in (0..).zip(&mut pages.addresses) {
            *address = PageAddress { device: 0, page };
        }
        Self { requests, pages }
    }

    fn specs(&self) -> impl Iterator<Item = Spec> {
        PERCENT.into_iter().map(|percent| self.spec(percent))
    }

    fn spec(&self, percent: u32) -> Spec {
        let pages = u32::try_from(self.pages.pages()).unwrap();
        Spec::new(pages * percent / 100).unwrap()
    }

    /// Plays the requests; calls `after` after each.
    fn play(&self, policy: Kind, spec: &Spec, after: impl Fn(&Cache)) -> CacheStats {
        let cache = self.cache(policy, spec);
        self.requests.iter().for_each(|request| {
            ask(&cache, request);
            after(&cache);
        });
        cache.stats()
    }

    /// Plays the requests by `clients` threads. Each takes the next one.
    fn play_at_once(&self, clients: usize, policy: Kind, spec: &Spec) -> CacheStats {
        let (cache, next) = (self.cache(policy, spec), AtomicUsize::new(0));
        let client = || {
            while let Some(request) = self.requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                ask(&cache, request);
            }
        };
        std::thread::scope(|scope| (0..clients).for_each(|_| drop(scope.spawn(client))));
        cache.stats()
    }

    /// An empty cache.
    fn cache(&self, policy: Kind, spec: &Spec) -> Cache {
        let (capacity, size_bytes) = (spec.capacity(), self.pages.pages() as u64 * PAGE);
        let settings =
            Settings { policy, ..settings(size_bytes, capacity.dram.into(), capacity.scm.into()) };
        let backing = Arc::new(MemoryDevice::new(size_bytes));
        let blocks = settings.volume_page_bytes_max() / PAGE + 1024;
        open(&medium(blocks, &settings), backing).unwrap()
    }
}

fn ask(cache: &Cache, request: &Request) {
    let mut bytes = vec![5; usize::try_from(request.len).unwrap()];
    match request.op {
        RequestOp::Read => cache.read(request.offset, &mut bytes).unwrap(),
        RequestOp::Write => cache.write(request.offset, &bytes, Fua::No).unwrap(),
        other => panic!("the workloads have no {other:?}"),
    }
}

/// Hits in DRAM, hits in SCM, misses.
fn accesses(done: &CacheStats) -> [u64; 3] {
    [done.hits_dram, done.hits_scm, done.misses]
}

fn accesses_said(said: &Outcome) -> [u64; 3] {
    let (reads, writes) = (said.reads, said.writes);
    [reads.dram + writes.dram, reads.scm + writes.scm, reads.missed + writes.missed]
}

const WORKLOADS: [Workload; 3] = [Workload::Webserver, Workload::Web, Workload::Mixed];

/// All common counts.
fn expect_the_same(what: &str, done: &CacheStats, said: &Outcome) {
    assert_eq!(accesses(done), accesses_said(said), "{what}");
    let done: Vec<_> = done
        .actions
        .iter()
        .map(|count| (count.action.clone(), count.reason.clone(), count.count))
        .collect();
    let said = said.actions.iter().map(|c| (c.action.clone(), c.reason.clone(), c.count));
    assert_eq!(done, said.collect::<Vec<_>>(), "{what}");
}

#[test]
fn cache_without_write_back_equals_the_simulator() {
    for workload in WORKLOADS {
        let stream = Stream::new(workload);
        for policy in POLICIES {
            for spec in stream.specs() {
                let said = run(policy, &spec, &stream.pages);
                let done = stream.play(policy, &spec, |_| ());
                let what = format!("{workload}, {policy}, {} pages", spec.pages);
                expect_the_same(&what, &done, &said);
                assert_eq!((done.scm_errors, done.backing_errors), (0, 0), "{what}");
            }
        }
    }
}

/// Points of hits below and above the simulator's allowed for a policy with write-back, in a whole
/// trace.
const BOUNDS: [(Kind, f64, f64); 3] =
    [(Kind::ClockMigration, 0.0, 0.0), (Kind::Everbyte, 0.8, 2.5), (Kind::Hybrid, 1.5, 3.0)];

#[test]
fn hits_with_write_back_are_within_bounds() {
    let mut beyond = Vec::new();
    for workload in WORKLOADS {
        let stream = Stream::first(workload, usize::MAX, GenerateOptions::default().seed);
        let accesses = u32::try_from(stream.pages.accesses.len()).unwrap();
        for percent in percent_of_whole() {
            let spec = stream.spec(percent);
            for (policy, fewer_max, more_max) in BOUNDS {
                let said = u32::try_from(run(policy, &spec, &stream.pages).hits()).unwrap();
                let stats = stream.play(policy, &spec, |cache| {
                    cache.write_back_due().unwrap();
                });
                let done = u32::try_from(stats.hits()).unwrap();
                let more = 100.0 * (f64::from(done) - f64::from(said)) / f64::from(accesses);
                let what = format!("{policy}, {workload}, {percent}%: {more:+.2} points of hits");
                if more < -fewer_max || more > more_max {
                    beyond.push(what);
                }
            }
        }
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
}

#[test]
fn hits_are_reported_before_decisions() {
    let stream = Stream::new(Workload::Mixed);
    let spec = stream.specs().nth(1).unwrap();
    let said = run(Kind::Everbyte, &spec, &stream.pages);
    let sound = stream.play(Kind::Everbyte, &spec, |_| ());
    assert_eq!(accesses(&sound), accesses_said(&said));
    assert_eq!(accesses(&sound).iter().sum::<u64>(), stream.pages.accesses.len() as u64);
}

#[test]
fn concurrent_hits_are_all_counted() {
    for workload in WORKLOADS {
        let stream = Stream::new(workload);
        let accesses = stream.pages.accesses.len() as u64;
        for policy in [Kind::Everbyte, Kind::Hybrid] {
            for spec in stream.specs() {
                let said = run(policy, &spec, &stream.pages).hits();
                let stats = stream.play_at_once(4, policy, &spec);
                let done = stats.hits();
                let what = format!("{workload}, {policy}, {} pages: {said} hits said", spec.pages);
                let points = 100 * done.abs_diff(said) / accesses;
                assert!(points < 10, "{what}, {done} of {accesses}");
                assert_eq!(done + stats.misses, accesses, "{what}");
            }
        }
    }
}
