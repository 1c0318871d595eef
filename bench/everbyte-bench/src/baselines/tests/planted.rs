//! Mistakes planted in the schemes, each with a workload to catch it. The same workload passes
//! without the mistake, so the failure comes from the mistake.

use everbyte_crash::{Explorer, Omission};
use everbyte_device::Fua;
use everbyte_plant::plant;

use super::crash::{b, broad, rewrite, write};
use super::scenario::{BLOCK, Case, Step, W};
use crate::baselines::Kind;
use crate::baselines::plant::Bug;

/// Messages of the oracle about a scheme with whole requests, and about a scheme with whole words.
const NO_STATE: &str = "none of the states: first differences in blocks [Some(0)";
const NO_STATE_OF_LAST: &str = "none of the states: first differences in blocks [Some(4)";
const MIXED: &str = "is neither old nor new";

/// A bug in a scheme's text, or a flush or a fence left out of it.
#[derive(Debug)]
enum Mistake {
    Bug(Bug),
    Omission(Omission),
}

impl From<Bug> for Mistake {
    fn from(bug: Bug) -> Self {
        Self::Bug(bug)
    }
}

impl From<Omission> for Mistake {
    fn from(omission: Omission) -> Self {
        Self::Omission(omission)
    }
}

/// The workload fails with the mistake as `expected` says, a part of the message, and without it
/// passes.
fn caught(kind: Kind, mistake: impl Into<Mistake>, steps: Vec<Step>, expected: &str) {
    let mistake = mistake.into();
    let name = format!("{kind:?}, {mistake:?}");
    let explorer = Explorer { shrink_runs_max: 20, cuts_max: 5, ..broad() };
    let case = Case::new(kind, steps);
    if let Err(failure) = explorer.explore(&case) {
        panic!("{name} is not planted yet: {failure}");
    }
    let found = match mistake {
        Mistake::Bug(bug) => {
            let _planted = plant(bug);
            explorer.explore(&case)
        }
        Mistake::Omission(omission) => explorer.explore(&Case { omission: Some(omission), ..case }),
    };
    match found {
        Ok(summary) => panic!("{name} was not caught: {summary}"),
        Err(failure) => assert!(failure.message.contains(expected), "{name} is caught: {failure}"),
    }
}

fn two_blocks() -> Step {
    Step::Atomic(vec![W(b(0), 200, 5), W(b(1), 200, 6)], Fua::Yes)
}

/// A logged write.
fn small() -> Step {
    write(b(0) + 5, 300, Fua::Yes)
}

/// A streamed write.
fn whole(fua: Fua) -> Step {
    write(b(0), BLOCK, fua)
}

#[test]
fn none() {
    let kind = Kind::None;
    caught(kind, Omission::flush("data"), vec![write(b(0), 64, Fua::Yes)], MIXED);
    caught(kind, Omission::fence_after_stream("data"), vec![whole(Fua::Yes)], MIXED);
}

#[test]
fn redo_published() {
    let kind = Kind::RedoPublished;
    let logged_and_copied = || vec![small(), Step::Checkpoint];
    // The commit word does not wait for the records.
    caught(kind, Omission::fence_after_flush("log"), vec![small()], NO_STATE);
    // A checkpoint empties the log before what it copied is durable.
    caught(kind, Omission::fence_after_flush("data"), logged_and_copied(), NO_STATE);
    caught(kind, Omission::flush("data").in_recovery(), vec![small()], NO_STATE);
    let replaced = vec![small(), rewrite(b(0), BLOCK, Fua::Yes)];
    caught(kind, Bug::PublishedOldOverNew, replaced, NO_STATE);
}

#[test]
fn redo_improved() {
    let kind = Kind::RedoImproved;
    caught(kind, Bug::ImprovedUnchecked, vec![small()], NO_STATE);
    // A pointer is logged before the new block is known to be durable.
    caught(kind, Omission::fence_after_stream("data"), vec![whole(Fua::Yes)], NO_STATE);
    caught(kind, Omission::fence_after_stream("log"), vec![small()], NO_STATE);
    let again = vec![small(), Step::Checkpoint, rewrite(b(0) + 5, 300, Fua::Yes), small()];
    let generations = [again.clone(), vec![Step::Checkpoint], again].concat();
    // The next generation fills the log before its number is durable.
    caught(kind, Omission::flush("head"), generations, "opened again, it is not the same");
    let in_place = vec![whole(Fua::Yes), rewrite(b(0), BLOCK, Fua::Yes)];
    caught(kind, Bug::ImprovedInPlace, in_place, NO_STATE);
}

#[test]
fn block_journal() {
    let (data, ordered) = (Kind::JournalData, Kind::JournalOrdered);
    caught(data, Bug::JournalUncommitted, vec![small()], "it names no block");
    // The commit block does not wait for what it commits.
    caught(data, Omission::fence_after_stream("log"), vec![small()], NO_STATE);
    // A checkpoint empties the journal before what it copied, blocks or their table, is durable.
    let copied = Omission::fence_after_stream("data");
    caught(data, copied.clone(), vec![small(), Step::Checkpoint], NO_STATE);
    let new_block = vec![write(b(6), 9, Fua::Yes)];
    caught(ordered, Omission::fence_after_stream("table"), new_block, MIXED);
    // The commit block does not wait for the data. Only a block that held something before shows
    // that it was named too early.
    let reused = [Step::Discard { at: b(0), len: b(4), fua: Fua::Yes }];
    let reused = reused.into_iter().chain((5..15).map(|n| write(b(n), BLOCK, Fua::Yes)));
    caught(ordered, Omission::fence_after_stream("log"), reused.collect(), MIXED);
    let freed = vec![
        Step::Discard { at: b(0), len: b(1), fua: Fua::No },
        write(b(6), BLOCK, Fua::No),
        Step::Flush,
    ];
    caught(ordered, Bug::JournalFreedEarly, freed, MIXED);
}

#[test]
fn rollback_published() {
    let kind = Kind::RollbackPublished;
    let over = || vec![write(b(0), 300, Fua::No), rewrite(b(0) + 100, 300, Fua::No)];
    caught(kind, Bug::PublishedStoredEarly, vec![small()], NO_STATE);
    caught(kind, Bug::PublishedUndoneForward, over(), NO_STATE);
    // The commit word does not wait for the records.
    caught(kind, Omission::fence_after_flush("log"), over(), NO_STATE);
    // A checkout empties the log before what is new is durable.
    caught(kind, Omission::fence_after_flush("data"), vec![small(), Step::Flush], NO_STATE);
    caught(kind, Omission::flush("data").in_recovery(), over(), NO_STATE);
}

/// `everbyte-block` has the others.
#[test]
fn rollback() {
    let write = || vec![write(b(0), 64, Fua::No), Step::Flush];
    caught(Kind::Rollback, Omission::fence_after_stream("log"), write(), NO_STATE);
    caught(Kind::Rollback, Omission::fence_after_flush("data"), write(), NO_STATE);
}

#[test]
fn shadow() {
    let kind = Kind::Shadow;
    // The pointer does not wait for the copy.
    caught(kind, Omission::fence_after_stream("data"), vec![whole(Fua::No)], NO_STATE);
    caught(kind, Bug::ShadowNoCommonRoot, vec![two_blocks()], NO_STATE);
    caught(kind, Bug::ShadowTwoWords, vec![write(b(0) + 4, 8, Fua::Yes)], NO_STATE);
    let reused = vec![whole(Fua::No), write(b(1), BLOCK, Fua::No)];
    caught(kind, Bug::ShadowFreedEarly, reused, NO_STATE);
    let appended = || vec![write(b(4), 100, Fua::Yes), write(b(4) + 100, 50, Fua::Yes)];
    caught(kind, Bug::ShadowSizeEarly, appended(), NO_STATE_OF_LAST);
    caught(kind, Bug::ShadowTailKept, appended(), NO_STATE_OF_LAST);
}
