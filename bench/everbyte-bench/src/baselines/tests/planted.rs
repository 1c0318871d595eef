//! Mistakes planted in the schemes, each with a workload in which it must be caught. The same
//! workload passes without the mistake, so it is the mistake that is caught.

use everbyte_crash::Explorer;
use everbyte_device::Fua;
use everbyte_pool::plant as pool;

use super::crash::{b, broad, rewrite, write};
use super::scenario::{BLOCK, Case, Step, W};
use crate::baselines::Kind;
use crate::baselines::plant::{Bug, plant};

/// A bug of a scheme, or of the pool below rollback.
#[derive(Clone, Copy, Debug)]
enum Mistake {
    Scheme(Bug),
    Pool(pool::Bug),
}

/// Switches a bug on until dropped, also by a panic.
struct Planted;

impl Planted {
    fn new(mistake: Mistake) -> Self {
        match mistake {
            Mistake::Scheme(bug) => plant(Some(bug)),
            Mistake::Pool(bug) => pool::plant(Some(bug)),
        }
        Self
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        plant(None);
        pool::plant(None);
    }
}

fn caught(kind: Kind, bug: Bug, steps: Vec<Step>) {
    caught_by(kind, Mistake::Scheme(bug), steps);
}

fn caught_by(kind: Kind, bug: Mistake, steps: Vec<Step>) {
    let explorer = Explorer { shrink_runs_max: 20, cuts_max: 5, ..broad() };
    let case = Case::new(kind, steps);
    if let Err(failure) = explorer.explore(&case) {
        panic!("{bug:?} is not planted yet: {failure}");
    }
    let planted = Planted::new(bug);
    let found = explorer.explore(&case);
    drop(planted);
    match found {
        Ok(summary) => panic!("{bug:?} was not caught: {summary}"),
        Err(failure) => println!("{bug:?} is caught: {}", failure.message),
    }
}

fn two_blocks() -> Step {
    Step::Atomic(vec![W(b(0), 200, 5), W(b(1), 200, 6)], Fua::Yes)
}

#[test]
fn none() {
    caught(Kind::None, Bug::NoneNotFlushed, vec![write(b(0), 64, Fua::Yes)]);
    caught(Kind::None, Bug::NoneNotFenced, vec![write(b(0), BLOCK, Fua::Yes)]);
}

#[test]
fn redo_published() {
    let kind = Kind::RedoPublished;
    let small = || write(b(0) + 5, 300, Fua::Yes);
    caught(kind, Bug::PublishedCommitEarly, vec![small()]);
    caught(kind, Bug::PublishedEmptiedEarly, vec![small(), Step::Checkpoint]);
    caught(kind, Bug::PublishedRecoveryNotFlushed, vec![small()]);
    let replaced = vec![small(), rewrite(b(0), BLOCK, Fua::Yes)];
    caught(kind, Bug::PublishedOldOverNew, replaced);
}

#[test]
fn redo_improved() {
    let kind = Kind::RedoImproved;
    let small = || write(b(0) + 5, 300, Fua::Yes);
    caught(kind, Bug::ImprovedUnchecked, vec![small()]);
    caught(kind, Bug::ImprovedPointerEarly, vec![write(b(0), BLOCK, Fua::Yes)]);
    caught(kind, Bug::ImprovedNotFenced, vec![small()]);
    let again = vec![small(), Step::Checkpoint, rewrite(b(0) + 5, 300, Fua::Yes), small()];
    let generations = [again.clone(), vec![Step::Checkpoint], again].concat();
    caught(kind, Bug::ImprovedGenerationLate, generations);
    let in_place = vec![write(b(0), BLOCK, Fua::Yes), rewrite(b(0), BLOCK, Fua::Yes)];
    caught(kind, Bug::ImprovedInPlace, in_place);
}

#[test]
fn block_journal() {
    let small = || write(b(0) + 5, 300, Fua::Yes);
    caught(Kind::JournalData, Bug::JournalUnchecked, vec![small()]);
    caught(Kind::JournalData, Bug::JournalEmptiedEarly, vec![small(), Step::Checkpoint]);
    caught(Kind::JournalOrdered, Bug::JournalEmptiedEarly, vec![write(b(6), 9, Fua::Yes)]);
    // Only a block that held something before shows that it was named too early.
    let reused = [Step::Discard { at: b(0), len: b(4), fua: Fua::Yes }];
    let reused = reused.into_iter().chain((5..15).map(|n| write(b(n), BLOCK, Fua::Yes)));
    caught(Kind::JournalOrdered, Bug::JournalMetadataFirst, reused.collect());
    let freed = vec![
        Step::Discard { at: b(0), len: b(1), fua: Fua::No },
        write(b(6), BLOCK, Fua::No),
        Step::Flush,
    ];
    caught(Kind::JournalOrdered, Bug::JournalFreedEarly, freed);
}

/// `everbyte-block` has the others.
#[test]
fn rollback() {
    let write = || vec![write(b(0), 64, Fua::No), Step::Flush];
    caught_by(Kind::Rollback, Mistake::Pool(pool::Bug::NoLogFence), write());
    caught_by(Kind::Rollback, Mistake::Pool(pool::Bug::CompletedBeforeData), write());
}

#[test]
fn shadow() {
    let kind = Kind::Shadow;
    caught(kind, Bug::ShadowPointerEarly, vec![write(b(0), BLOCK, Fua::No)]);
    caught(kind, Bug::ShadowNoCommonRoot, vec![two_blocks()]);
    caught(kind, Bug::ShadowTwoWords, vec![write(b(0) + 4, 8, Fua::Yes)]);
    let reused = vec![write(b(0), BLOCK, Fua::No), write(b(1), BLOCK, Fua::No)];
    caught(kind, Bug::ShadowFreedEarly, reused);
}
