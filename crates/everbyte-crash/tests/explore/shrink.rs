//! Failures are made as small as they can be, and fail again.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use everbyte_crash::{
    Crash, Explorer, Failure, Log, Medium, PoolOffset, ReplayError, Scenario, SimMedium, Steps,
};

use crate::toy::{Toy, fence, flush, get, persist, put};

const LINES: u64 = 40;

fn plan(failure: &Failure) -> String {
    failure.plan.to_string()
}

/// Many lines in doubt together, wrong if `wrong` holds for the persisted ones.
fn scattered(wrong: impl Fn(&[u64]) -> bool + 'static) -> Toy<Vec<u64>> {
    Toy::new(
        |m, _| (0..LINES).for_each(|line| put(m, line * 64, 1)),
        |m| Ok((0..LINES).filter(|line| get(m, line * 64) == 1).collect()),
        move |there: Vec<u64>, _| if wrong(&there) { Err(format!("{there:?}")) } else { Ok(()) },
    )
}

/// Few samples of images and of crash points.
fn sparse(seed: u64) -> Explorer {
    Explorer { seed, runs_max: 2, samples: 400, points_max: 1, ..Explorer::default() }
}

#[test]
fn as_few_lines_as_needed_are_kept_or_lost() {
    type Bug = (fn(&[u64]) -> bool, &'static str, &'static str);
    let bugs: [Bug; 4] = [
        (|there| there.contains(&5), "a", "there is line 5"),
        (|there| !there.contains(&5), "n", "there is no line 5"),
        (|there| there.contains(&5) && !there.contains(&3), "a+c0", "5 before 3"),
        (
            |there| there.contains(&5) && !there.iter().any(|l| (1..5).contains(l)),
            "n+140",
            "5 alone",
        ),
    ];
    for (wrong, wanted, name) in bugs {
        let failure = sparse(1).explore(&scattered(wrong)).expect_err(name);
        if wanted == "n" {
            assert_eq!((failure.point, plan(&failure).as_str()), (0, "a"), "{name}: {failure}");
        } else {
            assert_eq!((failure.point, plan(&failure).as_str()), (6, wanted), "{name}: {failure}");
        }
        let again = sparse(1).replay(&scattered(wrong), &failure.replay).unwrap_err();
        let ReplayError::Failed(again) = again else { panic!("{again}") };
        assert_eq!((&again.message, again.point), (&failure.message, failure.point));
    }
}

#[test]
fn shrinking_repeats_and_keeps_to_its_budget() {
    let bug = |there: &[u64]| there.contains(&7) && !there.contains(&2);
    let found = |runs: usize| {
        let tried = Rc::new(RefCell::new(0));
        let count = Rc::clone(&tried);
        let toy = scattered(move |there| {
            *count.borrow_mut() += 1;
            bug(there)
        });
        let explorer = Explorer { shrink_runs_max: runs, ..sparse(3) };
        let failure = explorer.explore(&toy).unwrap_err();
        let tried = *tried.borrow();
        (failure.to_string(), tried)
    };
    assert_eq!(found(1000), found(1000));
    let unshrunk = found(0).1;
    for runs in [1, 3, 10] {
        assert!(found(runs).1 <= unshrunk + runs, "{runs}");
    }
}

#[test]
fn points_before_the_first_event_stay_out() {
    let toy = || {
        Toy::new(
            |m, log| {
                (0..10).for_each(|line| put(m, line * 64, 1));
                log.note("begun");
                (10..LINES).for_each(|line| put(m, line * 64, 1));
            },
            |m| Ok(get(m, 0)),
            |found, _| if found == 1 { Err("there".to_owned()) } else { Ok(()) },
        )
    };
    let explorer = Explorer { from_first_event: true, ..sparse(1) };
    assert_eq!(explorer.explore(&toy()).unwrap_err().point, 10);
    assert_eq!(sparse(1).explore(&toy()).unwrap_err().point, 1);
}

/// Recovery counts its attempts. The fault shows after a second one, or after the workload's last
/// store.
#[test]
fn recoveries_crash_only_if_they_must() {
    let toy = |shows_without: bool| {
        Toy::new(
            |m, _| {
                persist(m, 0, 1);
                persist(m, 128, 1);
            },
            |m| {
                let attempts = get(m, 64);
                persist(m, 64, attempts + 1);
                persist(m, 192, 1);
                Ok((attempts, get(m, 128)))
            },
            move |(attempts, last), _| {
                let wrong = attempts == 1 || (shows_without && last == 1);
                if wrong { Err("wrong".to_owned()) } else { Ok(()) }
            },
        )
    };
    let failure = Explorer::default().explore(&toy(true)).unwrap_err();
    assert_eq!((failure.nested.len(), failure.point), (0, 4), "{failure}");
    let failure = Explorer::default().explore(&toy(false)).unwrap_err();
    assert_eq!((failure.nested.len(), failure.point, failure.nested[0].at), (1, 0, 1), "{failure}");
}

/// A journal whose entries are words. Each step appends one; the third kind forgets to flush.
#[derive(Clone)]
struct Journal {
    steps: Vec<Append>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Append {
    Sound,
    Unflushed,
    /// Can only follow another one.
    Twice,
}

const AT: u64 = 4096;

impl Scenario for Journal {
    type Event = u64;
    type Recovered = Vec<u64>;

    fn medium_len(&self) -> u64 {
        16384
    }

    fn prepare(&self, _: &Arc<SimMedium>) {}

    fn run(&self, medium: &Arc<SimMedium>, log: &Log<u64>) {
        for (i, step) in self.steps.iter().enumerate() {
            let at = AT + 64 * i as u64;
            put(medium, at, 1);
            match step {
                Append::Sound => flush(medium, at),
                Append::Unflushed => {}
                Append::Twice => {
                    assert_ne!(i, 0, "there is nothing to append twice");
                    flush(medium, at);
                }
            }
            fence(medium);
            log.note(i as u64);
        }
    }

    fn recover(&self, medium: Arc<SimMedium>) -> Result<Vec<u64>, String> {
        Ok((0..20).filter(|i| get(&medium, AT + 64 * i) == 1).collect())
    }

    fn check(&self, found: Vec<u64>, crash: &Crash<'_, u64>) -> Result<(), String> {
        match crash.events.iter().find(|event| !found.contains(&event.event)) {
            Some(lost) => Err(format!("entry {} is lost", lost.event)),
            None => Ok(()),
        }
    }
}

impl Steps for Journal {
    fn steps(&self) -> usize {
        self.steps.len()
    }

    fn only(&self, kept: &[usize]) -> Self {
        Self { steps: kept.iter().map(|&i| self.steps[i]).collect() }
    }
}

#[test]
fn steps_that_a_failure_does_not_need_are_dropped() {
    let mut steps = vec![Append::Sound; 9];
    steps[3] = Append::Twice;
    let sound = Journal { steps: steps.clone() };
    Explorer::default().explore_steps(&sound).unwrap();
    steps[5] = Append::Unflushed;
    let journal = Journal { steps };
    let failure = Explorer::default().explore_steps(&journal).unwrap_err();
    assert_eq!(failure.kept.as_deref(), Some(&[5][..]), "{failure}");
    assert_eq!(failure.message, "entry 0 is lost");
    assert!(failure.replay.starts_with("s5:"), "{failure}");
    assert!(failure.to_string().contains("cut down to its steps [5]"), "{failure}");

    let explorer = Explorer::default();
    let again = explorer.replay_steps(&journal, &failure.replay).unwrap_err();
    let ReplayError::Failed(again) = again else { panic!("{again}") };
    assert_eq!(again.to_string(), failure.to_string());
    explorer.replay_steps(&sound, &failure.replay).expect_err("it makes more operations");
    for wrong in ["s9:0:2/2:n", "s5:0:2/9:n"] {
        let error = explorer.replay_steps(&journal, wrong).unwrap_err();
        assert!(matches!(error, ReplayError::Stale(_)), "{error}");
    }
    let error = explorer.replay(&journal, &failure.replay).unwrap_err();
    assert!(matches!(error, ReplayError::Stale(_)), "{error}");
}

#[test]
fn cutting_keeps_to_its_budget() {
    let mut steps = vec![Append::Sound; 9];
    steps[5] = Append::Unflushed;
    let journal = Journal { steps };
    let explorer = Explorer { cuts_max: 0, ..Explorer::default() };
    let failure = explorer.explore_steps(&journal).unwrap_err();
    assert_eq!(failure.kept, None);
    explorer.replay_steps(&journal, &failure.replay).expect_err("it needs no cut");
}

/// Words of one line with a torn copy as the bug: the exception stays.
#[test]
fn torn_lines_stay_torn() {
    let toy = Toy::new(
        |m, _| {
            (0..10).for_each(|line| put(m, 1024 + line * 64, 1));
            m.stream(PoolOffset(0), &[1; 16]);
        },
        |m| Ok(((0..10).map(|line| get(m, 1024 + line * 64)).sum::<u64>(), [get(m, 0), get(m, 8)])),
        |(_, [a, b]), _| if (a == 0) == (b == 0) { Ok(()) } else { Err("torn".to_owned()) },
    );
    let explorer = Explorer { runs_max: 2, samples: 100, ..Explorer::default() };
    let failure = explorer.explore(&toy).unwrap_err();
    assert!(plan(&failure).starts_with("a+0."), "{failure}");
    assert!(failure.to_string().contains("TORN"), "{failure}");
}
