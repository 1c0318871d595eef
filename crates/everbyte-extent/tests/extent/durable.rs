//! The durable direct path: several whole blocks durable without a checkpoint, and all its rejections.

use everbyte_extent::Delta;
use everbyte_extent::FuaOutcome::{Durable, NotAllowed};
use everbyte_media::{BLOCK, BLOCK_U64, Mapped, Medium};

use crate::direct::{settings, settled};
use crate::new_pair;
use crate::pair::{BOTH, Pair, Settings, pattern};

/// Tries the path; nothing of the extent may change if it is refused.
fn is_refused(pair: &Pair<Mapped>, which: usize, block: u64, data: &[u8]) -> bool {
    let before = pair.content(which).unwrap();
    let outcome = pair.write_blocks_durably(which, block * BLOCK_U64, data).unwrap();
    assert!(outcome == Durable || pair.content(which).unwrap() == before, "a refusal has written");
    outcome == NotAllowed
}

fn two(seed: u64) -> Vec<u8> {
    pattern(seed, 2 * BLOCK)
}

#[test]
fn durable_blocks_survive_kill_without_checkpoint() {
    for which in BOTH {
        let pair = settled(&settings());
        let checkpoints = pair.volume().checkpoints();
        let mut expected = pair.content(which).unwrap();
        // Old blocks, blocks with a redo record, holes.
        for (seed, (block, count)) in (50..).zip([(0, 3), (1, 4), (10, 5), (2, 2)]) {
            let (data, at) = (pattern(seed, count * BLOCK), block * BLOCK);
            assert!(!is_refused(&pair, which, block as u64, &data));
            expected[at..at + data.len()].copy_from_slice(&data);
        }
        assert_eq!(pair.volume().checkpoints(), checkpoints);
        assert!(pair.content(which).unwrap() == expected);
        let pair = pair.crashed();
        assert!(pair.content(which).unwrap() == expected);
        pair.judge().unwrap();
    }
}

#[test]
fn durable_blocks_cost_two_fences_one_record() {
    let pair = settled(&settings());
    for (blocks, record) in [(2, 128), (4, 128), (5, 128), (6, 192), (12, 256)] {
        let before = (pair.medium().counters(), pair.volume().log_bytes());
        let data = pattern(blocks, BLOCK * usize::try_from(blocks).unwrap());
        assert!(!is_refused(&pair, 0, 0, &data));
        let cost = pair.medium().counters().since(&before.0);
        assert_eq!((cost.fences, cost.lines_flushed), (2, 0), "{blocks} blocks");
        assert_eq!(pair.volume().log_bytes() - before.1, record);
        assert_eq!(cost.bytes_stored, blocks * (BLOCK_U64 + 8) + record);
        assert_eq!(cost.lines_stored, blocks * 65 + record / 64);
    }
    pair.judge().unwrap();
}

#[test]
fn single_block_after_redone_entries_is_recorded() {
    let pair = settled(&settings());
    let cost = |write: &dyn Fn()| {
        let before = (pair.medium().counters(), pair.volume().log_bytes());
        write();
        let cost = pair.medium().counters().since(&before.0);
        (cost.fences, cost.lines_flushed, pair.volume().log_bytes() - before.1)
    };
    let one = |seed| {
        let data = pattern(seed, BLOCK);
        assert_eq!(pair.write_fast(0, BLOCK_U64, &data).unwrap(), Durable);
    };
    assert_eq!(cost(&|| one(1)), (2, 1, 0), "an entry without a record");
    assert!(!is_refused(&pair, 0, 0, &two(2)));
    assert_eq!(cost(&|| one(3)), (2, 0, 64), "an entry with a record");
    let guard = pair.volume().lock_checkpoint();
    let pending = pair.volume().begin_checkpoint(&guard).unwrap();
    assert_eq!(cost(&|| one(4)), (2, 0, 64), "the sealed epoch has records");
    pending.finish().unwrap();
    drop(guard);
    assert_eq!(cost(&|| one(5)), (2, 0, 64), "the next epoch has one");
    pair.volume().flush().unwrap();
    assert_eq!(cost(&|| one(6)), (2, 1, 0), "no open epoch has one");
    let pair = pair.crashed();
    assert!(pair.read(0, BLOCK_U64, BLOCK).unwrap() == pattern(6, BLOCK));
    pair.judge().unwrap();
}

#[test]
fn open_records_refuse_durable_blocks() {
    for which in BOTH {
        let pair = settled(&settings());
        pair.write(which, 100, &[7; 3]).unwrap();
        pair.write(which, 4 * BLOCK_U64, &pattern(9, BLOCK)).unwrap();
        pair.zero(which, 8 * BLOCK_U64, BLOCK_U64, false).unwrap();
        let check = || {
            assert!(is_refused(&pair, which, 0, &two(1)), "a record of a line");
            assert!(is_refused(&pair, which, 3, &two(1)), "a fresh block");
            assert!(is_refused(&pair, which, 7, &two(1)), "a record of an entry");
            assert!(!is_refused(&pair, which, 1, &two(1)));
        };
        check();
        let guard = pair.volume().lock_checkpoint();
        let pending = pair.volume().begin_checkpoint(&guard).unwrap();
        check();
        pending.finish().unwrap();
        drop(guard);
        for block in [0, 3, 7] {
            assert!(!is_refused(&pair, which, block, &two(2)), "durable by now");
        }
        pair.judge().unwrap();
    }
}

#[test]
fn special_cases_refuse_durable_blocks() {
    let pair = settled(&settings());
    assert!(is_refused(&pair, 0, 0, &two(1)[..BLOCK]), "one block");
    assert!(is_refused(&pair, 0, 0, &two(1)[..BLOCK + 8]), "a part of a block");
    pair.zero(0, BLOCK_U64, BLOCK_U64, true).unwrap();
    pair.volume().flush().unwrap();
    assert!(is_refused(&pair, 0, 0, &two(1)), "a block that reads as zeroes");
    let checksums = settled(&Settings { checksums: true, ..settings() });
    assert!(is_refused(&checksums, 0, 0, &two(1)));
    let compared = settled(&Settings { delta: Delta::On, ..settings() });
    assert!(is_refused(&compared, 0, 0, &two(1)));
    let sparse = new_pair(512, &Settings { sizes: [8 << 20, 33_333], ..settings() });
    assert!(is_refused(&sparse, 0, 9, &two(1)), "there is no leaf");
    sparse.write(0, 0, &[1; 10]).unwrap();
    sparse.read(0, 0, 9).unwrap();
    assert!(is_refused(&sparse, 0, 9, &two(1)), "the leaf is fresh");
    sparse.volume().flush().unwrap();
    assert!(!is_refused(&sparse, 0, 9, &two(1)));
}

#[test]
fn full_log_refuses_durable_blocks_keeps_records() {
    let pair = settled(&settings());
    let mut round = 0;
    while !is_refused(&pair, 0, 0, &two(round)) {
        round += 1;
        assert!(round < 1000, "the log has no end");
    }
    // A pool of 256 blocks gets low before its log is full.
    assert!(round > 10, "{round} writes");
    let pair = pair.crashed();
    assert!(pair.read(0, 0, 2 * BLOCK).unwrap() == two(round - 1));
    pair.judge().unwrap();
}
