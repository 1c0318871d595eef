//! One tiny workload for each promise about crashes. Every image of it is tried: nothing is sampled, and
//! nothing left out. By day the images of a deletion are an exception.

use everbyte_block::Delta;
use everbyte_crash::Explorer;
use everbyte_testkit::{crash_seed, number};

use crate::explore;
use crate::steps::{Case, End, HOLE, MAPPED, Step, b, w, w2};

/// Non-zero bytes of each mapped block. Zero words of a record are certain where the log was zero, so with
/// few of these a record of old bytes leaves few images. The variable `EVERBYTE_CRASH_FILLED` changes it, up
/// to a line.
const FILLED: u64 = 16;

/// A case in a pool as small as can be.
fn tiny(name: &str, steps: Vec<Step>) -> Case {
    Case::new(name, steps).setup(|setup| {
        setup.pool_blocks = 40;
        setup.mapped = 2;
        setup.filled = usize::try_from(number("EVERBYTE_CRASH_FILLED", FILLED)).unwrap();
    })
}

/// Explores one workload after another.
fn whole<const N: usize>(cases: [(&str, Vec<Step>); N]) {
    let cases = cases.map(|(name, steps)| tiny(name, steps));
    cases.iter().for_each(|case| explore::whole(&explore::every_image(), case));
}

/// A change in place with a line in the log.
fn word() -> Step {
    Step::Write(w(b(MAPPED), 8))
}

fn fua(at: u64, len: usize) -> Step {
    Step::Write(w(at, len).fua())
}

fn discard(fua: bool) -> Step {
    Step::Discard { at: b(MAPPED), len: 4096, fua }
}

#[test]
fn crash_images_of_flush_have_earlier_writes() {
    whole([
        ("a change in place", vec![word(), Step::Flush]),
        ("a change in place, and the same again", vec![word(), word(), Step::Flush]),
        ("two changes of a word", vec![word(), Step::Write(w2(b(MAPPED), 8)), Step::Flush]),
        ("a new block", vec![Step::Write(w(b(HOLE), 4096)), Step::Flush]),
        ("a replaced block", vec![Step::Write(w(b(MAPPED), 4096)), Step::Flush]),
        ("a discarded block", vec![discard(false), Step::Flush]),
        ("after damage", vec![word(), Step::Damage, Step::Flush]),
    ]);
}

/// A write between the seal of an epoch and its end is either absent or whole.
#[test]
fn crash_images_of_checkpoint_show_one_epoch() {
    let again = Step::Write(w2(b(MAPPED), 8));
    whole([("a word", vec![word(), Step::Split(vec![again])])]);
}

/// If a write is present, an earlier write answered before it was sent is present, too: in one epoch, across
/// a checkpoint, and in the epoch after the one in a checkpoint.
#[test]
fn crash_images_with_write_have_earlier_writes() {
    let beside = || Step::Write(w(b(MAPPED + 1), 8));
    whole([
        ("two in place", vec![word(), beside(), Step::Flush]),
        ("in place and a new block", vec![word(), Step::Write(w(b(HOLE), 4096)), Step::Flush]),
        ("one before a seal, one after it", vec![word(), Step::Split(vec![beside()])]),
    ]);
}

#[test]
fn crash_images_after_fua_write_have_it() {
    whole([
        ("in place", vec![fua(b(MAPPED), 8)]),
        ("a replaced block", vec![fua(b(MAPPED), 4096)]),
        ("a new block", vec![fua(b(HOLE), 4096)]),
        ("beside a change in place", vec![word(), fua(b(MAPPED), 8)]),
        ("of zeroes", vec![discard(true)]),
    ]);
}

/// Of a durable write of two blocks every image is tried: it has both blocks or none.
#[test]
fn crash_images_of_durable_blocks_have_all_or_none() {
    let cases = [
        ("two blocks", vec![fua(b(MAPPED), 8192)]),
        (
            "two blocks, and one again",
            vec![fua(b(MAPPED), 8192), Step::Write(w2(b(MAPPED), 4096).fua())],
        ),
    ];
    for (name, steps) in cases {
        let case = tiny(name, steps).setup(|setup| setup.options.delta = Delta::Off);
        explore::whole(&explore::every_image(), &case);
    }
}

#[test]
fn crash_images_have_request_whole_or_not() {
    whole([
        ("a block in place and a new one", vec![Step::Write(w(b(MAPPED + 2) - 8, 16))]),
        ("a batch", vec![Step::Batch(vec![w(b(MAPPED), 4096), w(b(MAPPED + 1), 4096)])]),
    ]);
}

#[test]
fn crash_images_have_atomic_writes_whole_or_not() {
    let blocks = [MAPPED, MAPPED + 1].map(|block| w(b(block), 4096).fua());
    whole([("as one", vec![Step::Atomic(blocks.to_vec())])]);
}

#[test]
fn crash_images_have_group_whole_or_not() {
    let blocks = || vec![w(b(HOLE), 8), w(b(HOLE + 1), 8)];
    whole([
        ("committed", vec![Step::Group(blocks(), End::Commit)]),
        ("rolled back", vec![Step::Group(blocks(), End::RollBack)]),
    ]);
}

#[test]
fn crash_images_of_close_have_everything() {
    whole([("shut down", vec![word(), Step::Reopen])]);
}

#[test]
fn crash_images_of_deletion_have_one_owner() {
    let create = Step::Create { name: "b", blocks: 1 };
    let case = tiny("made and deleted", vec![create, Step::Delete("b")]);
    if explore::is_night() {
        return explore::whole(&explore::every_image(), &case);
    }
    // All images take minutes, because a deletion stores to many lines.
    let explorer = Explorer { seed: crash_seed(), runs_max: 64, ..explore::every_image() };
    let summary = explore::one(&explorer, &case).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(summary.points > 10, "hardly anything was explored: {summary}");
}

#[test]
fn crash_images_of_recovery_recover() {
    let explorer = Explorer {
        nested_depth: 1,
        nested_images_max: usize::MAX,
        nested_points_max: usize::MAX,
        nested_runs_max: usize::MAX,
        ..explore::every_image()
    };
    explore::whole(&explorer, &tiny("a crash of each recovery", vec![word()]));
}
