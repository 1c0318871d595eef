//! The report, word for word: of the example's bug, a crash in recovery, threads and torn copies. A
//! change of the text shows here, and only here. `EVERBYTE_BLESS=1` rewrites the texts.

use everbyte_crash::{Explorer, Failure, Medium, PoolOffset, ReplayError, Scenario};

use crate::protocols::{publish, undo};
use crate::torn_counter::counter;
use crate::toy::{Toy, fence, flush, get, happened, put};

fn failing(explorer: &Explorer, scenario: &impl Scenario) -> Box<Failure> {
    let failure = explorer.explore(scenario).expect_err("a planted bug");
    let again = explorer.replay(scenario, &failure.replay).unwrap_err();
    let ReplayError::Failed(again) = again else { panic!("{again}") };
    assert_eq!(again.to_string(), failure.to_string(), "a replay tells the same");
    failure
}

/// Compares with the text kept under `name`.
fn golden(name: &str, report: &str) {
    let path = format!("{}/tests/explore/reports/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("EVERBYTE_BLESS").is_some() {
        std::fs::write(&path, report).unwrap();
    }
    assert_eq!(report, std::fs::read_to_string(&path).unwrap(), "{name}");
}

#[test]
fn bug_of_the_example_is_found() {
    let report = failing(&Explorer::default(), &counter(false)).to_string();
    golden("torn_counter", &report);
    let summary = Explorer::default().explore(&counter(true)).unwrap();
    assert!(summary.is_exhaustive(), "{summary}");
}

#[test]
fn documents_quote_actual_reports() {
    let report = failing(&Explorer::default(), &counter(false)).to_string();
    let page = include_str!("../../../../docs/examples.md");
    let quoted = page.split("```text\n").find(|block| block.starts_with("crash before")).unwrap();
    let quoted = quoted.split("```").next().unwrap();
    for line in quoted.lines().filter(|line| line.trim() != "...") {
        assert!(report.lines().any(|told| told == line), "{line:?} is not in:\n{report}");
    }

    let publish = publish(2).label(0..8, "value").label(64..72, "flag");
    let report = failing(&Explorer::default(), &publish).to_string();
    let doc = include_str!("../../src/lib.rs").replace("//! ", "");
    assert!(doc.contains(&report), "the crate's documentation has another report than\n{report}");
}

#[test]
fn nested_crashes_are_told_in_order() {
    let report = failing(&Explorer::default(), &undo(false)).to_string();
    golden("nested", &report);
}

#[test]
fn finding_without_doubt_is_reported_so() {
    let report = failing(&Explorer::default(), &publish(3)).to_string();
    golden("certain", &report);
}

/// A record copied in bulk by one thread, and a flag of another that vouches for it too early.
fn two_threads() -> Toy<Option<u64>> {
    Toy::new(
        |m, log| {
            for at in (1024..1024 + 15 * 64).step_by(64) {
                put(m, at, 7);
            }
            m.stream(PoolOffset(4096), &[3; 192]);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    put(m, 0, 1);
                    flush(m, 0);
                    fence(m);
                });
            });
            fence(m);
            log.note("done");
        },
        |m| Ok((get(m, 0) == 1).then(|| (0..24).map(|i| get(m, 4096 + 8 * i) & 1).sum())),
        |found, crash| match found {
            Some(24) => Ok(()),
            None if !happened(crash, "done") => Ok(()),
            other => Err(format!("found {other:?}")),
        },
    )
    .label(0..64, "flag")
    .label(1024..2048, "table")
    .label(4096..8192, "record")
}

#[test]
fn threads_and_gaps_are_told() {
    let explorer = Explorer { recent_max: 4, ..Explorer::default() };
    let report = failing(&explorer, &two_threads()).to_string();
    golden("threads", &report);
}

#[test]
fn without_shrinking_every_line_is_listed() {
    let explorer = Explorer { shrink_runs_max: 0, ..Explorer::default() };
    let report = failing(&explorer, &publish(2)).to_string();
    golden("as_found", &report);
}
