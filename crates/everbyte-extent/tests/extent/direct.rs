//! The direct path: the effect and the cost of a plan, or a refusal without effect.

use std::sync::Arc;

use everbyte_crash::SimMedium;
use everbyte_extent::{Delta, DeviceOffset};
use everbyte_media::{BLOCK, BLOCK_U64, Counters, Mapped, Medium};
use everbyte_plant::plant;
use everbyte_pool::plant::Bug;

use crate::new_pair;
use crate::pair::{BOTH, Pair, Settings, pattern};

/// Blocks of each extent.
const BLOCKS: u64 = 16;
/// Blocks of data in a settled pair.
const MAPPED: u64 = 12;

pub(crate) fn settings() -> Settings {
    Settings { sizes: [BLOCKS * BLOCK_U64; 2], delta: Delta::Off, ..Settings::default() }
}

/// A pair with twelve initial blocks of data per extent, unknown to all open epochs. Their entries were looked
/// up once, so their places are known.
pub(crate) fn settled(settings: &Settings) -> Pair<Mapped> {
    let pair = new_pair(256, settings);
    settle(&pair);
    pair
}

fn settle<M: Medium>(pair: &Pair<M>) {
    for which in BOTH {
        let data = pattern(which as u64, BLOCK * usize::try_from(MAPPED).unwrap());
        pair.write(which, 0, &data).unwrap();
        pair.content(which).unwrap();
    }
    pair.volume().flush().unwrap();
}

/// Counts of `write`, with the bytes of log.
fn cost<M: Medium>(pair: &Pair<M>, write: impl FnOnce()) -> (Counters, u64) {
    let before = (pair.medium().counters(), pair.volume().log_bytes());
    write();
    (pair.medium().counters().since(&before.0), pair.volume().log_bytes() - before.1)
}

/// Returns true if the direct path refuses a write, and checks that the refusal has no effect.
fn is_refused<M: Medium>(pair: &Pair<M>, which: usize, at: u64, data: &[u8]) -> bool {
    let before = pair.content(which).ok();
    let mut is_refused = false;
    let (cost, log) = cost(pair, || {
        is_refused = pair.try_direct_path(which, at, data).unwrap().is_none();
    });
    let has_stored = cost.bytes_stored > 0 || cost.fences > 0 || log > 0;
    assert!(!is_refused || (pair.content(which).ok() == before && !has_stored), "it has written");
    is_refused
}

/// Writes on the direct path, which must take the write.
fn write<M: Medium>(pair: &Pair<M>, which: usize, block: u64, data: &[u8]) {
    assert!(!is_refused(pair, which, block * BLOCK_U64, data), "blocks from {block} on");
    assert!(pair.read(which, block * BLOCK_U64, data.len()).unwrap() == data);
}

/// Requests of 2 to 5 whole blocks over old and fresh blocks and holes.
fn requests() -> impl Iterator<Item = (u64, Vec<u8>)> {
    (0..60_u64).map(|round| {
        let count = 2 + round * 7 % 4;
        let first = round * 5 % (BLOCKS - count + 1);
        (first * BLOCK_U64, pattern(round, BLOCK * usize::try_from(count).unwrap()))
    })
}

#[test]
fn direct_write_has_effect_and_cost_of_plan() {
    for threshold_lines in [0, 32, 64] {
        let settings = Settings { threshold_lines, ..settings() };
        let [planned, direct] = [(); 2].map(|()| settled(&settings));
        for which in BOTH {
            for (round, (at, data)) in requests().enumerate() {
                let plan = cost(&planned, || {
                    planned.write_prefetched(which, at, &data).unwrap();
                });
                let epoch = direct.volume().current_epoch();
                let done = cost(&direct, || {
                    let written = direct.try_direct_path(which, at, &data).unwrap();
                    assert_eq!(written, Some(epoch), "extent {which}, round {round}");
                });
                assert_eq!(plan, done, "{settings:?}, extent {which}, round {round}");
                if round % 15 == 14 {
                    for pair in [&planned, &direct] {
                        pair.volume().flush().unwrap();
                    }
                }
            }
            assert!(direct.content(which).unwrap() == planned.content(which).unwrap());
        }
        direct.judge().unwrap();
    }
}

#[test]
fn direct_write_is_undone_by_crash_kept_by_flush() {
    for which in BOTH {
        for is_flushed in [false, true] {
            let pair = settled(&settings());
            let before = pair.content(which).unwrap();
            for (block, count) in [(0, 3), (1, 4), (10, 5)] {
                write(&pair, which, block, &pattern(block + 50, count * BLOCK));
            }
            let after = pair.content(which).unwrap();
            if is_flushed {
                pair.volume().flush().unwrap();
            }
            let pair = pair.crashed();
            let expected = if is_flushed { after } else { before };
            assert!(pair.content(which).unwrap() == expected, "flushed: {is_flushed}");
            pair.judge().unwrap();
        }
    }
}

#[test]
fn replaced_blocks_cost_one_record_one_fence() {
    let pair = settled(&settings());
    let data = pattern(9, 4 * BLOCK);
    let (first, log) = cost(&pair, || write(&pair, 0, 0, &data));
    assert_eq!((first.fences, first.lines_flushed, log), (1, 0, 64 + 64), "four words");
    assert_eq!(first.bytes_stored, 4 * (BLOCK_U64 + 8) + log);
    assert_eq!(first.lines_stored, 4 * (64 + 1) + 2);
    let (again, log) = cost(&pair, || write(&pair, 0, 0, &pattern(10, 4 * BLOCK)));
    assert_eq!((again.fences, again.lines_flushed, log), (1, 0, 0), "the blocks are fresh");
    assert_eq!((again.bytes_stored, again.lines_stored), (4 * BLOCK_U64, 4 * 64));
    let (mixed, log) = cost(&pair, || write(&pair, 0, 2, &pattern(11, 4 * BLOCK)));
    assert_eq!((mixed.fences, log), (1, 64 + 64), "two fresh blocks and two old ones");
    assert_eq!(mixed.bytes_stored, 4 * BLOCK_U64 + 2 * 8 + log);
    pair.judge().unwrap();
}

#[test]
fn blocks_apart_in_pool_leave_neighbours_alone() {
    let pair = settled(&settings());
    // Every second block of the second extent becomes free, between blocks that stay.
    for block in (0..MAPPED).step_by(2) {
        pair.zero(1, block * BLOCK_U64, BLOCK_U64, false).unwrap();
    }
    pair.volume().flush().unwrap();
    let pair = pair.reopened();
    let others = pair.content(1).unwrap();
    for round in 0..6 {
        let data = pattern(round + 70, 5 * BLOCK);
        pair.content(0).unwrap();
        write(&pair, 0, round, &data);
        pair.volume().flush().unwrap();
        let places: Vec<u64> =
            (0..5).map(|block| pair.entry(0, round + block).unwrap().block.0).collect();
        if round == 0 {
            assert!(places.windows(2).any(|pair| pair[1] != pair[0] + 1), "{places:?}");
        }
    }
    assert!(pair.content(1).unwrap() == others);
    pair.judge().unwrap();
}

#[test]
fn special_cases_need_a_plan() {
    let two = pattern(7, 2 * BLOCK);
    let pair = settled(&settings());
    assert!(is_refused(&pair, 0, 0, &[]), "no bytes");
    assert!(is_refused(&pair, 0, 0, &two[..BLOCK]), "one block");
    assert!(is_refused(&pair, 0, 0, &two[..BLOCK + 64]), "a part of a block");
    assert!(is_refused(&pair, 0, 64, &two[64..]), "not at the start of a block");
    for which in BOTH {
        pair.zero(which, BLOCK_U64, BLOCK_U64, true).unwrap();
        assert!(is_refused(&pair, which, 0, &two), "a block that reads as zeroes");
        assert!(!is_refused(&pair, which, 2 * BLOCK_U64, &two));
    }
    let checksums = settled(&Settings { checksums: true, ..settings() });
    assert!(is_refused(&checksums, 0, 0, &two));
    let compared = settled(&Settings { delta: Delta::On, ..settings() });
    assert!(is_refused(&compared, 0, 0, &two));
    let logged = settled(&Settings { threshold_lines: 65, ..settings() });
    assert!(is_refused(&logged, 0, 0, &two), "a whole block is logged");
    let sparse = new_pair(512, &Settings { sizes: [8 << 20, 33_333], ..settings() });
    assert!(is_refused(&sparse, 0, 4 << 20, &two), "there is no leaf");
}

#[test]
fn sampled_write_is_left_to_the_plan() {
    let pair = settled(&Settings { delta: Delta::Auto, ..settings() });
    let mut refused = 0;
    for round in 0..1500 {
        let (at, data) = (round % 6 * 2 * BLOCK_U64, pattern(round, 2 * BLOCK));
        if is_refused(&pair, 0, at, &data) {
            pair.write_prefetched(0, at, &data).unwrap();
            refused += 1;
        }
        if round % 100 == 99 {
            pair.volume().flush().unwrap();
        }
    }
    assert!((3..=30).contains(&refused), "{refused} writes were compared");
}

#[test]
fn direct_path_refuses_full_log() {
    let pair = new_pair(1024, &Settings { sizes: [1 << 20; 2], ..settings() });
    pair.write(0, 0, &pattern(1, 1 << 20)).unwrap();
    pair.content(0).unwrap();
    pair.volume().flush().unwrap();
    let room_bytes = || pair.volume().join().unwrap().room_bytes();
    // A record of a word, and then records of a line until two words have no room.
    pair.write(0, 0, &pattern(2, BLOCK)).unwrap();
    let (epoch, mut round) = (pair.volume().current_epoch(), 0);
    while room_bytes() >= 128 {
        let at = (1 + round % 250) * BLOCK_U64 + round / 250 * 64;
        pair.write(0, at, &pattern(round, 8)).unwrap();
        round += 1;
    }
    let (at, two) = (252 * BLOCK_U64, pattern(3, 2 * BLOCK));
    assert!(is_refused(&pair, 0, at, &two));
    assert_eq!(pair.volume().current_epoch(), epoch);
    pair.write(0, at, &two).unwrap();
    assert!(pair.read(0, at, 2 * BLOCK).unwrap() == two);
    assert!(!is_refused(&pair, 0, at, &two), "the log is empty again");
    pair.judge().unwrap();
}

#[test]
fn direct_path_refuses_full_pool() {
    let pair = settled(&Settings { sizes: [4 << 20, BLOCKS * BLOCK_U64], ..settings() });
    let mut at = MAPPED * BLOCK_U64;
    while pair.write(0, at, &pattern(at, BLOCK)).is_ok() {
        at += BLOCK_U64;
    }
    pair.volume().flush().unwrap();
    assert!(is_refused(&pair, 0, 0, &pattern(9, 2 * BLOCK)));
    assert!(is_refused(&pair, 0, at, &pattern(9, 2 * BLOCK)), "holes");
    pair.judge().unwrap();
}

#[test]
fn direct_path_refuses_poisoned_range() {
    let pair = Pair::make(&Arc::new(SimMedium::new(256 * BLOCK_U64)), &settings());
    settle(&pair);
    let two = pattern(3, 2 * BLOCK);
    write(&pair, 0, 0, &two);
    let block = pair.entry(0, 5).unwrap().block;
    pair.medium().inject_poison(block.offset().plus(2048), 64);
    assert!(is_refused(&pair, 0, 4 * BLOCK_U64, &two));
    pair.write(0, 4 * BLOCK_U64, &two).unwrap();
    assert!(pair.read(0, 4 * BLOCK_U64, 2 * BLOCK).unwrap() == two);
    assert_ne!(pair.entry(0, 5).unwrap().block, block);
}

/// A view of a fresh block, and a write over the block. Returns true if the view keeps its bytes.
fn is_view_kept(which: usize) -> bool {
    let pair = settled(&settings());
    let (old, new) = (pattern(21, 2 * BLOCK), pattern(22, 2 * BLOCK));
    write(&pair, which, 0, &old);
    let view = pair.extents[which].view(DeviceOffset(0), BLOCK).unwrap();
    if pair.try_direct_path(which, 0, &new).unwrap().is_none() {
        pair.write_prefetched(which, 0, &new).unwrap();
    }
    assert!(pair.read(which, 0, 2 * BLOCK).unwrap() == new);
    let mut seen = vec![0; BLOCK];
    assert_eq!(view.read(0, &mut seen).unwrap(), BLOCK);
    seen == old[..BLOCK]
}

#[test]
fn pinned_block_of_direct_write_is_kept() {
    for which in BOTH {
        assert!(is_view_kept(which));
        let planted = plant(Bug::PinIgnoredByPlanner);
        assert!(!is_view_kept(which), "the bug is not caught");
        drop(planted);
    }
}
