//! The workloads, on the engine as it is.

use everbyte_crash::schedule::Schedule;

use crate::explore::{self, Tried};
use crate::workload::{MAPPED, Step, Workload, b, durable, read, write};

/// Both writers on the same blocks, in place and by replacing.
pub(crate) fn same_blocks() -> Workload {
    Workload::new(
        "same blocks",
        vec![
            vec![write(b(MAPPED) + 60, 9), write(b(MAPPED), 4096)],
            vec![write(b(MAPPED) + 100, 65), write(b(MAPPED) + 4000, 200)],
            vec![Step::Flush],
            vec![read(b(MAPPED) + 50, 4200), read(b(MAPPED), 4096)],
        ],
    )
}

/// Both writers below one missing leaf, then discarding.
pub(crate) fn missing_leaf() -> Workload {
    Workload::new(
        "missing leaf",
        vec![
            vec![write(b(600), 9), write(b(600), 4096)],
            vec![write(b(601) + 5, 100), Step::Discard { at: b(600), len: 8192 }],
            vec![Step::Flush],
            vec![read(b(600), 8192)],
        ],
    )
}

/// Writers with flushes.
pub(crate) fn flushing_writers() -> Workload {
    Workload::new(
        "flushing writers",
        vec![
            vec![write(b(MAPPED), 4096), Step::Flush],
            vec![write(b(MAPPED + 1), 4096), write(b(MAPPED + 1) + 9, 65), Step::Flush],
            vec![Step::Flush],
        ],
    )
}

/// Two writers on the only lane.
pub(crate) fn one_lane() -> Workload {
    let tasks = vec![
        vec![write(b(MAPPED), 65), write(b(12), 4096)],
        vec![write(b(MAPPED + 1), 65), write(b(13), 9)],
    ];
    Workload::new("one lane", tasks).lanes(1)
}

/// Hardly any free blocks: freed ones are reused immediately.
pub(crate) fn little_space() -> Workload {
    let tasks = vec![
        vec![write(b(MAPPED), 4096), write(b(MAPPED), 4096)],
        vec![write(b(MAPPED + 1), 4096), write(b(MAPPED + 1) + 7, 80)],
        vec![Step::Flush, Step::Flush],
        vec![read(b(MAPPED), 8192)],
    ];
    Workload::new("little space", tasks).pool_blocks(31)
}

/// A log with room for one large request at a time.
pub(crate) fn full_log() -> Workload {
    let tasks = vec![
        vec![write(b(MAPPED), 8192), write(b(MAPPED + 2), 4096)],
        vec![write(b(MAPPED + 2), 8192), write(b(MAPPED), 65)],
        vec![Step::Flush],
        vec![read(b(MAPPED + 1), 8192)],
    ];
    Workload::new("full log", tasks).lanes(1).never_replacing()
}

/// A group concurrent with other writers and checkpoints.
pub(crate) fn group() -> Workload {
    let tasks = vec![
        vec![Step::Group { at: b(MAPPED), len: 3000 }],
        vec![write(b(MAPPED) + 2000, 4096), write(b(12), 9)],
        vec![Step::Flush, durable(b(MAPPED + 2), 65)],
    ];
    Workload::new("group", tasks)
}

/// Neighbouring entries of one line of the map.
pub(crate) fn neighbours() -> Workload {
    let tasks = vec![
        vec![write(b(MAPPED), 4096), Step::Discard { at: b(MAPPED + 2), len: 4096 }],
        vec![write(b(MAPPED + 1), 4096), write(b(MAPPED + 2), 9)],
        vec![Step::Flush],
    ];
    Workload::new("neighbours", tasks)
}

/// A block replaced while its earlier bytes are being flushed.
pub(crate) fn replaced_in_flush() -> Workload {
    let tasks = vec![vec![write(b(MAPPED), 65), write(b(MAPPED), 4096)], vec![Step::Flush]];
    Workload::new("replaced in a flush", tasks).two_delays()
}

/// Two writers and a checkpoint, as small as can be.
pub(crate) fn straggler() -> Workload {
    let tasks = vec![
        vec![write(b(MAPPED) + 9, 65)],
        vec![Step::Flush],
        vec![write(b(MAPPED), 100), Step::Flush],
    ];
    Workload::new("straggler", tasks).two_delays()
}

/// The FUA fast path concurrent with checkpoints and other writers.
pub(crate) fn fua_fast_path() -> Workload {
    let tasks = vec![
        vec![durable(b(MAPPED), 4096), write(b(MAPPED) + 9, 65), durable(b(MAPPED + 1), 9)],
        vec![write(b(MAPPED + 1), 4096), durable(b(MAPPED + 1) + 9, 65)],
        vec![Step::Flush],
        vec![read(b(MAPPED), 8192)],
    ];
    Workload::new("FUA fast path", tasks)
}

/// Batches on the FUA fast path concurrent with checkpoints, other writers and each other.
pub(crate) fn durable_batches() -> Workload {
    let batch = |first, second, len| Step::DurableBatch { at: [b(first), b(second)], len };
    let tasks = vec![
        vec![batch(MAPPED, MAPPED + 1, 4096), write(b(MAPPED) + 9, 65)],
        vec![batch(MAPPED + 1, 12, 65), durable(b(MAPPED), 4096)],
        vec![Step::Flush],
        vec![read(b(MAPPED), 8192)],
    ];
    Workload::new("durable batches", tasks).delayed_max(60)
}

/// The FUA fast path below a new root; the root is undone with the epoch that made it.
pub(crate) fn fua_below_new_root() -> Workload {
    let tasks = vec![
        vec![Step::Grow { blocks: 302_048 }, Step::Reserve { at: b(300_000), len: 4096 }],
        vec![durable(b(MAPPED), 9), durable(b(MAPPED + 1), 4096), read(b(MAPPED), 8192)],
        vec![Step::Flush],
    ];
    Workload::new("FUA below a new root", tasks).delayed_max(60)
}

/// FUA fast-path writes of the same lines, from several lanes and epochs.
pub(crate) fn short_overlaps() -> Workload {
    let tasks = vec![
        vec![durable(b(MAPPED), 65), durable(b(MAPPED) + 9, 65)],
        vec![durable(b(MAPPED) + 30, 65), write(b(MAPPED), 9)],
        vec![Step::Flush],
        vec![read(b(MAPPED), 200)],
    ];
    Workload::new("short overlaps", tasks)
}

/// A whole leaf unlinked with other threads in it.
pub(crate) fn unlinked_leaf() -> Workload {
    const LEAF: u64 = 512 * 4096;
    let tasks = vec![
        vec![write(b(600), 9), write(b(601), 4096)],
        vec![Step::Discard { at: LEAF, len: LEAF }],
        vec![Step::Flush],
        vec![read(b(600), 8192)],
    ];
    Workload::new("unlinked leaf", tasks).delayed_max(100)
}

/// A durable write of an entry unmapped by the flushing epoch.
pub(crate) fn durable_after_discard() -> Workload {
    let discard = Step::Discard { at: b(MAPPED), len: 4096 };
    let tasks = vec![vec![discard, durable(b(MAPPED), 9)], vec![Step::Flush]];
    Workload::new("durable after a discard", tasks).two_delays()
}

/// A whole block streamed before the pool turns out to have none for the next write of the same batch.
pub(crate) fn given_up() -> Workload {
    let tasks = vec![
        vec![
            Step::Discard { at: b(MAPPED), len: 8192 },
            Step::Atomic { at: [b(MAPPED + 3), b(MAPPED + 4)], len: 4096 },
        ],
        vec![write(b(MAPPED + 2), 4096)],
    ];
    // Superblocks and table 6, log 8, two nodes, mapped 4, and one.
    Workload::new("given up", tasks).lanes(1).pool_blocks(21).not_comparing().delayed_max(100)
}

/// Reserved blocks, written and discarded by others.
pub(crate) fn reserved() -> Workload {
    let reserve = |block| Step::Reserve { at: b(block), len: 8192 };
    let tasks = vec![
        vec![reserve(MAPPED), write(b(MAPPED) + 9, 65)],
        vec![write(b(MAPPED + 1) + 100, 65), reserve(12)],
        vec![Step::Flush],
        vec![read(b(MAPPED), 8192)],
    ];
    Workload::new("reserved", tasks).delayed_max(60)
}

/// Batches without comparison, with whole blocks over fresh ones, concurrent with atomic multi-writes.
pub(crate) fn batches() -> Workload {
    let batch = |first, second| Step::Batch { at: [b(first), b(second)], len: 4096 };
    let tasks = vec![
        vec![batch(MAPPED, 12), batch(MAPPED, MAPPED + 1)],
        vec![Step::Atomic { at: [b(12) + 9, b(MAPPED) + 100], len: 65 }],
        vec![Step::Flush],
        vec![read(b(MAPPED), 8192)],
    ];
    Workload::new("batches", tasks).not_comparing().delayed_max(60)
}

/// Direct writes of overlapping blocks, concurrent with a checkpoint and a reader.
pub(crate) fn direct_writes() -> Workload {
    let tasks = vec![
        vec![write(b(MAPPED), 8192), write(b(MAPPED + 1), 8192)],
        vec![write(b(MAPPED + 1), 12288), write(b(12), 8192)],
        vec![Step::Flush],
        vec![read(b(MAPPED), 12288)],
    ];
    Workload::new("direct writes", tasks).not_comparing().delayed_max(60)
}

/// Durable writes of several blocks that overlap, from several lanes and epochs.
pub(crate) fn durable_direct_writes() -> Workload {
    let tasks = vec![
        vec![durable(b(MAPPED), 8192), durable(b(MAPPED + 1), 4096)],
        vec![durable(b(MAPPED + 1), 8192), write(b(MAPPED), 8192)],
        vec![Step::Flush],
        vec![read(b(MAPPED), 12288)],
    ];
    Workload::new("durable direct writes", tasks).not_comparing().delayed_max(100)
}

/// A group rolled back concurrently with other writers.
pub(crate) fn rolled_back() -> Workload {
    let tasks = vec![
        vec![write(b(12), 9), Step::RolledBack { at: b(MAPPED) + 9, len: 3000 }],
        vec![write(b(MAPPED) + 2000, 4096), write(b(12), 4096)],
        vec![Step::Flush],
    ];
    Workload::new("rolled back", tasks).delayed_max(60)
}

/// A volume that grows under its writers by a level of its map.
pub(crate) fn growing() -> Workload {
    let tasks = vec![
        vec![write(b(MAPPED), 65), write(b(600), 4096)],
        vec![Step::Grow { blocks: 302_048 }],
        vec![write(b(MAPPED + 1) + 9, 4096), Step::Flush],
    ];
    Workload::new("growing", tasks).delayed_max(60)
}

/// A reader of a block replaced, freed, and reused for another one.
pub(crate) fn reused_under_reader() -> Workload {
    let tasks = vec![
        vec![read(b(MAPPED), 4096), read(b(MAPPED), 4096)],
        vec![write(b(MAPPED), 4096), Step::Flush, write(b(MAPPED + 1), 4096)],
    ];
    // Superblocks and table 6, log 8, two nodes, mapped 4, and one.
    let workload = Workload::new("reused under a reader", tasks).lanes(1).pool_blocks(21);
    workload.not_comparing().delayed_max(100)
}

/// A reader below a leaf taken off the map, freed, and reused for data.
pub(crate) fn leaf_reused_under_reader() -> Workload {
    const LEAF: u64 = 512 * 4096;
    let tasks = vec![
        // The first to read leaves a note of where the leaf is.
        vec![write(b(600), 9), read(b(600), 9), read(b(600), 4096)],
        vec![
            Step::Discard { at: LEAF, len: LEAF },
            Step::Flush,
            write(b(MAPPED), 4096),
            write(b(MAPPED + 1), 4096),
        ],
    ];
    // As above, and one more. To take off a leaf takes locks by the hundred.
    let workload = Workload::new("leaf reused under a reader", tasks).lanes(1).pool_blocks(22);
    workload.not_comparing().delayed_within(100)
}

/// A reader of two blocks written together.
pub(crate) fn read_across() -> Workload {
    let tasks = vec![
        vec![read(b(MAPPED), 4096), read(b(MAPPED), 8192)],
        vec![write(b(MAPPED) + 4000, 200), write(b(MAPPED), 8192)],
    ];
    Workload::new("read across", tasks)
}

/// Volumes created and deleted concurrently with a writer.
pub(crate) fn guests() -> Workload {
    let tasks = vec![
        vec![Step::ComeAndGo],
        vec![write(b(MAPPED), 4096), write(b(12), 8192)],
        vec![Step::Flush],
    ];
    Workload::new("guests", tasks).delayed_max(40)
}

/// Two volumes that take blocks from each other.
pub(crate) fn two_volumes() -> Workload {
    let discard = Step::Discard { at: b(12), len: 4096 };
    let tasks = vec![
        vec![write(b(12), 9), write(b(12) + 9, 65), discard, Step::Flush],
        vec![write(b(MAPPED), 4096), write(b(MAPPED) + 9, 65), Step::Flush],
    ];
    // Superblocks and table 6, logs 16, four nodes, mapped 8, and three.
    let workload = Workload::new("two volumes", tasks).on_volumes(&[0, 1]);
    workload.lanes(1).pool_blocks(37).delayed_max(100)
}

/// A volume that shrinks under its writers by a level of its map.
pub(crate) fn shrinking() -> Workload {
    let tasks = vec![
        vec![write(b(MAPPED), 65), write(b(12), 4096)],
        vec![write(b(600), 9), Step::Shrink { blocks: 14 }],
        vec![write(b(13) + 9, 65), Step::Flush],
    ];
    Workload::new("shrinking", tasks).delayed_max(60)
}

/// Damage found by one thread during the writes and flushes of others.
pub(crate) fn damaged() -> Workload {
    let tasks = vec![
        vec![write(b(MAPPED), 65), Step::Flush],
        vec![write(b(MAPPED + 1), 4096), Step::Damage],
        vec![write(b(12), 9), Step::Flush],
    ];
    Workload::new("damaged", tasks).delayed_max(60)
}

fn passes(workload: &Workload) {
    let mut tried = Tried::default();
    if let Err(failure) = explore::all(workload, None, &mut tried) {
        panic!("{failure}");
    }
    let Tried { schedules, places_left_out, switches, images, nested, crashed, points } = tried;
    println!(
        "{}: {schedules} orders, {places_left_out} places of a delay left out, {switches} switches, crashed at \
         {crashed} of {points} points, {images} images",
        workload.name
    );
    assert!(schedules > 100 && images > 4 * schedules, "hardly anything was explored");
    let crashes_expected = if workload.is_nested { 5 * schedules } else { 0 };
    assert!(nested >= crashes_expected, "{nested} crashes of recoveries");
}

#[test]
fn orders_repeat() {
    let (once, again) = (same_blocks(), same_blocks());
    let mut distinct = std::collections::BTreeSet::new();
    for seed in 0..12 {
        let run = |workload| {
            let mut tried = Tried::default();
            let points = explore::one(workload, Schedule::Seeded(seed), None, &mut tried).unwrap();
            (points, tried.switches, tried.images)
        };
        assert_eq!(run(&once), run(&again), "seed {seed}");
        distinct.insert(run(&once));
    }
    assert!(distinct.len() > 6, "seeds hardly differ: {distinct:?}");
}

#[test]
fn same_blocks_passes() {
    passes(&same_blocks());
}

#[test]
fn missing_leaf_passes() {
    passes(&missing_leaf());
}

#[test]
fn flushing_writers_passes() {
    passes(&flushing_writers());
}

#[test]
fn single_lane_passes() {
    passes(&one_lane());
}

#[test]
fn little_space_passes() {
    passes(&little_space());
}

#[test]
fn full_log_passes() {
    passes(&full_log());
}

#[test]
fn group_passes() {
    passes(&group());
}

#[test]
fn neighbours_passes() {
    passes(&neighbours());
}

#[test]
fn replaced_in_flush_passes() {
    passes(&replaced_in_flush());
}

#[test]
fn straggler_passes() {
    passes(&straggler());
}

#[test]
fn fua_fast_path_passes() {
    passes(&fua_fast_path());
}

#[test]
fn durable_batches_pass() {
    passes(&durable_batches());
    passes(&durable_batches().checksummed());
}

#[test]
fn fua_below_new_root_passes() {
    passes(&fua_below_new_root());
}

#[test]
fn durable_after_discard_passes() {
    passes(&durable_after_discard());
}

#[test]
fn given_up_passes() {
    passes(&given_up());
}

#[test]
fn reserved_passes() {
    passes(&reserved());
}

#[test]
fn batches_passes() {
    passes(&batches());
}

#[test]
fn durable_direct_writes_pass() {
    passes(&durable_direct_writes());
    passes(&durable_direct_writes().delayed_max(15).nested());
}

#[test]
fn direct_writes_pass() {
    passes(&direct_writes());
}

#[test]
fn rolled_back_passes() {
    passes(&rolled_back());
}

#[test]
fn growing_passes() {
    passes(&growing());
}

#[test]
fn shrinking_passes() {
    passes(&shrinking());
}

#[test]
fn damaged_passes() {
    passes(&damaged());
}

/// Two writers on the same blocks, and crashes of the recoveries of their images.
pub(crate) fn crashing_recoveries() -> Workload {
    same_blocks().delayed_max(15).nested()
}

#[test]
fn crashing_recoveries_pass() {
    passes(&crashing_recoveries());
    passes(&short_overlaps().delayed_max(15).nested());
}

#[test]
fn reused_under_reader_passes() {
    passes(&reused_under_reader());
}

#[test]
fn read_across_passes() {
    passes(&read_across());
}

#[test]
fn leaf_reused_under_reader_passes() {
    passes(&leaf_reused_under_reader());
}

#[test]
fn guests_passes() {
    passes(&guests());
}

#[test]
fn two_volumes_passes() {
    passes(&two_volumes());
}

/// Slots of neighbouring blocks share lines, and readers verify.
#[test]
fn checksums_pass() {
    passes(&same_blocks().checksummed().delayed_max(60));
    passes(&fua_fast_path().checksummed().delayed_max(60));
}

#[test]
fn short_overlaps_passes() {
    passes(&short_overlaps());
}

#[test]
fn unlinked_leaf_passes() {
    passes(&unlinked_leaf());
}
