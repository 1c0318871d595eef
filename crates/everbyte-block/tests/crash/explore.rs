//! How thoroughly workloads are explored.

use everbyte_crash::{Explorer, Failure, Summary};

use crate::steps::Case;

/// For many small workloads: every crash point, and a crash of few recoveries.
pub(crate) fn broad() -> Explorer {
    Explorer {
        runs_max: 10,
        samples: 3,
        nested_images_max: 1,
        nested_points_max: 3,
        nested_runs_max: 3,
        ..Explorer::default()
    }
}

/// For few workloads: more images, and recoveries crashed at most of their operations.
pub(crate) fn deep() -> Explorer {
    Explorer {
        runs_max: 32,
        samples: 8,
        nested_images_max: 2,
        nested_points_max: 40,
        nested_runs_max: 6,
        ..Explorer::default()
    }
}

/// One case in so many is explored once more with checksums of data: every block that is read after
/// a crash is then verified.
const CHECKSUMMED_EVERY: usize = 8;

/// Explores every case; panics with the whole report of the first that fails.
pub(crate) fn all(explorer: &Explorer, cases: impl IntoIterator<Item = Case>) {
    let (mut cases_done, mut images, mut nested) = (0, 0, 0);
    let twice = cases.into_iter().enumerate().flat_map(|(index, case)| {
        let again = index.is_multiple_of(CHECKSUMMED_EVERY).then(|| case.clone().checksummed());
        std::iter::once(case).chain(again)
    });
    for case in twice {
        let name = case.name.clone();
        let summary = one(explorer, &case).unwrap_or_else(|failure| panic!("{name}: {failure}"));
        assert!(summary.points > 10, "{name}: hardly anything was explored: {summary}");
        cases_done += 1;
        images += summary.images;
        nested += summary.nested_images;
        if std::env::var_os("EVERBYTE_CRASH_VERBOSE").is_some() {
            println!("{name}: {summary}");
        }
    }
    println!("{cases_done} workloads, {images} images, {nested} after crashes of recoveries");
}

/// Explores one case. Of one that fails, only the steps that it needs are told.
pub(crate) fn one(explorer: &Explorer, case: &Case) -> Result<Summary, Box<Failure>> {
    explorer.explore_steps(case)
}
