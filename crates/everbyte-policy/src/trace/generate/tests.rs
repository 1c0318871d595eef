//! Generators against the paper's table, and against themselves.

use super::*;
use crate::trace::{RequestOp, Summary};

fn made(workload: Workload, options: &GenerateOptions) -> (Vec<(Request, String)>, Summary) {
    let mut requests = Vec::new();
    let mut summary = Summary::default();
    generate(workload, options, &mut |request, name| {
        summary.add(request).unwrap();
        requests.push((*request, name.to_owned()));
        Ok(())
    })
    .unwrap();
    (requests, summary)
}

#[test]
fn figures_of_the_paper_hold_for_any_seed() {
    for (workload, footprint_kb, write_bytes) in [
        (Workload::Web, 20_428, 1599_u64),
        (Workload::Mixed, 57_320, 1625),
        (Workload::Webserver, 39_540, 3035),
    ] {
        for seed in [0, 1, 42, u64::MAX] {
            for requests in [None, Some(20_000)] {
                let options = GenerateOptions { seed, requests, ..GenerateOptions::default() };
                let (made, summary) = made(workload, &options);
                assert_eq!(summary.footprint_pages() * 4, footprint_kb, "{workload} {seed}");
                let off = summary.written_bytes.abs_diff(summary.writes * write_bytes);
                assert!(
                    off * 100 <= summary.writes * write_bytes,
                    "{workload} {seed}: {} writes of {} bytes",
                    summary.writes,
                    summary.written_bytes / summary.writes
                );
                assert!(made.len() as u64 >= requests.unwrap_or(workload.requests()));
                assert_eq!(summary.times_going_back, 0);
            }
        }
    }
}

#[test]
fn workloads_have_the_traits_of_their_programs() {
    let (_, web) = made(Workload::Web, &GenerateOptions::default());
    let share = web.small_writes * 100 / web.writes;
    assert!((40..75).contains(&share), "{share}% small writes");
    assert!(web.flushes * 10 > web.writes, "databases flush");
    let (requests, server) = made(Workload::Webserver, &GenerateOptions::default());
    assert_eq!(server.flushes, 0);
    assert!(requests.iter().all(
        |(r, name)| (r.op == RequestOp::Write) == (name == "weblog") || r.op == RequestOp::Read
    ));
    assert!(server.read_bytes > 10 * server.written_bytes);
}

#[test]
fn seeds_decide() {
    for workload in Workload::ALL {
        let options = |seed| GenerateOptions {
            seed,
            requests: Some(5000),
            pages: 100,
            ..GenerateOptions::default()
        };
        let (first, _) = made(workload, &options(7));
        assert_eq!(first, made(workload, &options(7)).0, "{workload}");
        let differs = first != made(workload, &options(8)).0;
        assert_eq!(differs, !matches!(workload, Workload::Scan | Workload::Loop), "{workload}");
    }
}

#[test]
fn patterns_are_what_they_are_called() {
    let options =
        GenerateOptions { requests: Some(20_000), pages: 1000, ..GenerateOptions::default() };
    let (_, scan) = made(Workload::Scan, &options);
    assert_eq!((scan.footprint_pages(), scan.reads), (20_000, 20_000));
    let (round, summary) = made(Workload::Loop, &options);
    assert_eq!(summary.footprint_pages(), 1000);
    assert!(round.iter().zip(&round[1000..]).all(|((a, _), (b, _))| a.offset == b.offset));
    let (zipf, _) = made(Workload::Zipf, &options);
    let mut counts = vec![0_u32; 1000];
    for (request, _) in &zipf {
        counts[usize::try_from(request.offset / 4096).unwrap()] += 1;
    }
    counts.sort_unstable_by(|a, b| b.cmp(a));
    // With exponent 1 over 1000 pages, rank 1 has 13.4% of the requests and rank 10 a tenth of it.
    assert!((2400..2950).contains(&counts[0]), "{}", counts[0]);
    assert!((200..330).contains(&counts[9]), "{}", counts[9]);
    let reads = zipf.iter().filter(|(request, _)| request.op == RequestOp::Read).count();
    assert!((13_500..14_500).contains(&reads), "{reads}");
}

#[test]
fn senseless_options_are_refused() {
    let default = GenerateOptions::default();
    let skewed = [f64::NAN, f64::INFINITY, -1e300, -100.0, -0.5];
    let skewed = skewed.map(|skew| GenerateOptions { skew, ..default });
    for options in [GenerateOptions { pages: 0, ..default }].iter().chain(&skewed) {
        assert!(generate(Workload::Zipf, options, &mut |_, _| Ok(())).is_err(), "{options:?}");
    }
    let full = |_: &Request, _: &str| Err(io::Error::other("full"));
    assert!(generate(Workload::Web, &GenerateOptions::default(), &mut { full }).is_err());
}
