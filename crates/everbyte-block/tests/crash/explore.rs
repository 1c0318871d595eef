//! Limits of the exploration of workloads.

use everbyte_crash::{Explorer, Failure, Summary};
use everbyte_testkit::crash_seed;

use crate::steps::Case;

/// There is time for more images of each crash point.
pub(crate) fn is_night() -> bool {
    std::env::var_os("EVERBYTE_CRASH_CASES").is_some()
}

/// For many small workloads: every crash point, and a crash of few recoveries.
pub(crate) fn broad() -> Explorer {
    let (runs_max, samples) = if is_night() { (10, 3) } else { (6, 2) };
    Explorer {
        seed: crash_seed(),
        runs_max,
        samples,
        nested_images_max: 1,
        nested_points_max: 3,
        nested_runs_max: 3,
        ..Explorer::default()
    }
}

/// For few workloads: more images, and recoveries crashed at most of their operations.
pub(crate) fn deep() -> Explorer {
    let (runs_max, samples) = if is_night() { (32, 8) } else { (16, 4) };
    Explorer {
        seed: crash_seed(),
        runs_max,
        samples,
        nested_images_max: 2,
        nested_points_max: 40,
        nested_runs_max: 6,
        ..Explorer::default()
    }
}

/// For tiny workloads: every distinguishable image of every crash point, to the last word of a line.
pub(crate) fn every_image() -> Explorer {
    Explorer { subsets_max: 8, runs_max: usize::MAX, nested_depth: 0, ..Explorer::default() }
}

/// Explores one case; panics with the report if it fails, or if anything was left out.
pub(crate) fn whole(explorer: &Explorer, case: &Case) {
    let begun = std::time::Instant::now();
    let name = &case.name;
    let summary = one(explorer, case).unwrap_or_else(|failure| panic!("{name}: {failure}"));
    println!("{name}: {summary} {:?}", begun.elapsed());
    assert!(summary.is_exhaustive(), "{name}: {summary}");
}

/// One case in so many is explored once more with checksums of data: every block read after a crash is then
/// verified.
const CHECKSUMMED_EVERY: usize = 8;

/// Explores every case; panics with the whole report of the first failure.
pub(crate) fn all(explorer: &Explorer, cases: impl IntoIterator<Item = Case>) {
    each(cases.into_iter().map(|case| (explorer.clone(), case)));
}

/// The same, each with a separate explorer.
pub(crate) fn each(cases: impl IntoIterator<Item = (Explorer, Case)>) {
    let (mut cases_done, mut cut_short, mut total) = (0, 0, Summary::default());
    let twice = cases.into_iter().enumerate().flat_map(|(index, (explorer, case))| {
        let again = index.is_multiple_of(CHECKSUMMED_EVERY).then(|| case.clone().checksummed());
        let again = again.map(|case| (explorer.clone(), case));
        std::iter::once((explorer, case)).chain(again)
    });
    for (explorer, case) in twice {
        let name = case.name.clone();
        let summary = one(&explorer, &case).unwrap_or_else(|failure| panic!("{name}: {failure}"));
        assert!(summary.points > 10, "{name}: hardly anything was explored: {summary}");
        cases_done += 1;
        cut_short += u64::from(!summary.is_exhaustive());
        total += summary;
        if std::env::var_os("EVERBYTE_CRASH_VERBOSE").is_some() {
            println!("{name}: {summary}");
        }
    }
    println!("{cases_done} workloads, of which a bound cut {cut_short} short: {total}");
}

/// Explores one case. The report of a failing case has only its necessary steps.
pub(crate) fn one(explorer: &Explorer, case: &Case) -> Result<Summary, Box<Failure>> {
    explorer.explore_steps(case)
}
