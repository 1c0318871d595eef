//! Too many images, and findings that are not wrong answers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use everbyte_crash::{Explorer, Medium, PoolOffset, ReplayError};

use crate::toy::{Toy, fence, flush, get, persist, put};

const LINES: u64 = 40;

/// Many lines in doubt together. `wrong` selects the persisted sets that break the code.
fn scattered(wrong: fn(&[u64]) -> bool) -> Toy<Vec<u64>> {
    Toy::new(
        |m, _| (0..LINES).for_each(|line| put(m, line * 64, 1)),
        |m| Ok((0..LINES).filter(|line| get(m, line * 64) == 1).collect()),
        move |there: Vec<u64>, _| if wrong(&there) { Err(format!("{there:?}")) } else { Ok(()) },
    )
}

fn tight() -> Explorer {
    Explorer { runs_max: 10, ..Explorer::default() }
}

fn wide() -> Explorer {
    Explorer { runs_max: 100, ..Explorer::default() }
}

#[test]
fn sampling_is_reported() {
    let summary = tight().explore(&scattered(|_| false)).unwrap();
    assert!(!summary.is_exhaustive());
    assert!(summary.sampled >= LINES - 4, "{summary}");
    assert!(summary.to_string().contains("sampled"));
}

#[test]
fn summed_explorations_keep_the_cut_mark() {
    let few = Toy::new(|m, _| put(m, 0, 1), |m| Ok(get(m, 0)), |_, _| Ok(()));
    let [cut, whole] = [tight().explore(&scattered(|_| false)), tight().explore(&few)];
    let (cut, whole) = (cut.unwrap(), whole.unwrap());
    let mut total = whole;
    total += whole;
    assert!(total.is_exhaustive());
    assert_eq!((total.points, total.images), (2 * whole.points, 2 * whole.images));
    total += cut;
    assert!(!total.is_exhaustive());
    assert_eq!(total.sampled, cut.sampled);
    assert_eq!(total.nested_images, 2 * whole.nested_images + cut.nested_images);
}

#[test]
fn sampling_finds_what_depth_first_does_not_reach() {
    let bugs: [fn(&[u64]) -> bool; 4] = [
        |there| there.len() == 40,
        |there| there == [17],
        |there| there.len() == 39 && !there.contains(&3),
        |there| there.len() > 12 && there.len() < 28 && there.contains(&0),
    ];
    for wrong in bugs {
        let failure = wide().explore(&scattered(wrong)).unwrap_err();
        let again = Explorer::default().replay(&scattered(wrong), &failure.replay).unwrap_err();
        let ReplayError::Failed(again) = again else { panic!("{again}") };
        assert_eq!(again.message, failure.message);
        assert_eq!(again.choices, failure.choices);
        Explorer::default().replay(&scattered(|_| false), &failure.replay).unwrap();
    }
}

/// Two halves of one line, which are read one by one before all other lines.
#[test]
fn samples_tear_lines_that_are_read_in_parts() {
    let toy = Toy::new(
        |m, _| {
            m.stream(PoolOffset(0), &[1; 16]);
            (0..LINES).for_each(|line| put(m, 1024 + line * 64, 1));
        },
        |m| {
            let halves = [get(m, 0), get(m, 8)];
            (0..LINES).for_each(|line| assert!(get(m, 1024 + line * 64) < 2));
            Ok(halves)
        },
        |[first, second], _| match (first == 0) == (second == 0) {
            true => Ok(()),
            false => Err("torn".to_owned()),
        },
    );
    // Right after the stream depth first would find it.
    let explorer = Explorer { runs_max: 2, samples: 100, points_max: 1, ..Explorer::default() };
    assert_eq!(explorer.explore(&toy).expect_err("half of all samples tear it").message, "torn");
}

/// An oracle that uses the end of the workload instead of an event.
#[test]
fn end_of_workload_is_a_crash_point() {
    let toy = |is_flushed: bool| {
        Toy::new(
            move |m, _| {
                put(m, 0, 1);
                if is_flushed {
                    flush(m, 0);
                }
                fence(m);
            },
            |m| Ok(get(m, 0)),
            |value, crash| match value == 1 || crash.point < crash.points {
                true => Ok(()),
                false => Err("lost".to_owned()),
            },
        )
    };
    Explorer::default().explore(&toy(true)).unwrap();
    let failure = Explorer::default().explore(&toy(false)).expect_err("the flush is missing");
    assert_eq!(failure.message, "lost");
}

#[test]
fn endless_recovery_is_a_finding() {
    let toy = Toy::new(
        |m, _| put(m, 0, 1),
        |m| {
            while get(m, 0) == 1 {}
            Ok(())
        },
        |(), _| Ok(()),
    );
    let explorer = Explorer { calls_max: 1000, ..Explorer::default() };
    let failure = explorer.explore(&toy).expect_err("it runs in circles");
    assert!(failure.message.contains("have made 1000 calls"), "{failure}");
    assert!(failure.message.contains("circles"), "{failure}");
}

/// Crashes of different recoveries of one point of the workload get separate samples.
#[test]
fn crashes_of_recoveries_have_their_own_samples() {
    let seen = Rc::new(RefCell::new(BTreeSet::new()));
    let noted = Rc::clone(&seen);
    let toy = Toy::new(
        |m, _| (0..LINES).for_each(|line| put(m, line * 64, 1)),
        |m| {
            (0..20).for_each(|step| put(m, 8192 + step * 64, 1));
            Ok((0..LINES).map(|line| get(m, line * 64)).collect::<Vec<_>>())
        },
        move |there, crash| {
            let count = there.iter().sum::<u64>();
            if crash.nested > 0 && (5..LINES - 5).contains(&count) {
                noted.borrow_mut().insert(there);
            }
            Ok(())
        },
    );
    let explorer = Explorer {
        points_max: 1,
        runs_max: 1,
        nested_runs_max: 1,
        samples: 4,
        nested_points_max: 20,
        ..Explorer::default()
    };
    explorer.explore(&toy).unwrap();
    let seen = seen.borrow().len();
    assert!(seen > 2 * 4, "{seen} random images after 20 crashes");
}

#[test]
fn explorations_repeat() {
    let bug = || scattered(|there| there.len() > 15 && there.len() < 25);
    let first = tight().explore(&bug()).unwrap_err();
    assert_eq!(first.to_string(), tight().explore(&bug()).unwrap_err().to_string());
}

#[test]
fn panics_are_findings() {
    let toy = |sound: bool| {
        Toy::new(
            |m, _| persist(m, 0, 1),
            move |m| {
                assert!(sound || get(m, 0) == 0, "planted at {}", m.ops());
                Ok(())
            },
            |(), _| Ok(()),
        )
    };
    Explorer::default().explore(&toy(true)).unwrap();
    let failure = Explorer::default().explore(&toy(false)).unwrap_err();
    assert_eq!(failure.message, "panicked: planted at 0");
    assert_eq!(failure.point, 1);
}

#[test]
fn moody_code_is_a_finding() {
    let reads = Cell::new(0);
    let toy = Toy::new(
        |m, _| (0..4).for_each(|line| put(m, line * 64, 1)),
        move |m| {
            reads.set(reads.get() + 1);
            get(m, reads.get() % 4 * 64);
            get(m, (reads.get() + 1) % 4 * 64);
            Ok(())
        },
        |(), _| Ok(()),
    );
    let failure = Explorer::default().explore(&toy).unwrap_err();
    assert!(failure.message.contains("not deterministic"), "{failure}");
}

#[test]
fn replays_of_other_code_are_told() {
    let toy = || Toy::new(|m, _| persist(m, 0, 1), |m| Ok(get(m, 0)), |_, _| Ok(()));
    let explorer = Explorer::default();
    explorer.replay(&toy(), "0:1/3:c1").unwrap();
    for (text, stale) in [("0:1/4:c1", true), ("0:1/3:c@5:c", true), ("hello", false)] {
        let error = explorer.replay(&toy(), text).unwrap_err();
        assert_eq!(matches!(error, ReplayError::Stale(_)), stale, "{error}");
    }
}

#[test]
fn few_points_are_spread_and_the_end_is_kept() {
    let seen = |points_max: usize, seed: u64| {
        let points = Rc::new(RefCell::new(BTreeSet::new()));
        let noted = Rc::clone(&points);
        let toy = Toy::new(
            |m, log| {
                put(m, 0, 1);
                log.note("begun");
                (1..10).for_each(|i| persist(m, i * 64, i));
            },
            |_| Ok(()),
            move |(), crash| {
                noted.borrow_mut().insert(crash.point);
                Ok(())
            },
        );
        let explorer = Explorer { seed, points_max, from_first_event: true, ..Explorer::default() };
        let summary = explorer.explore(&toy).unwrap();
        assert!(!summary.is_exhaustive(), "the points before the first event were left out");
        points.take()
    };
    let all = seen(usize::MAX, 0);
    assert_eq!((all.first(), all.last()), (Some(&1), Some(&28)));
    let few = seen(4, 0);
    assert!(few.len() <= 4 && few.contains(&28), "{few:?}");
    assert!((1..20).any(|seed| seen(4, seed) != few), "other seeds pick other points");
}
