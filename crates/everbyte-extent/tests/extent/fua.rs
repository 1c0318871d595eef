//! The FUA fast path: writes durable without a checkpoint, and all its rejections.

use everbyte_extent::FuaOutcome::{Durable, NotAllowed};
use everbyte_media::{BLOCK, BLOCK_U64, Mapped, Medium};

use crate::new_pair;
use crate::pair::{BOTH, Pair, Settings, pattern};

/// A pair with four initial blocks of data per extent, unknown to all open epochs.
fn settled(settings: &Settings) -> Pair<Mapped> {
    let pair = new_pair(256, settings);
    for which in BOTH {
        pair.write(which, 0, &pattern(which as u64, 4 * BLOCK)).unwrap();
    }
    pair.volume().flush().unwrap();
    pair
}

/// Returns the bytes of extent `which` of a settled pair, with `data` at byte `at`.
fn with(which: usize, at: usize, data: &[u8]) -> Vec<u8> {
    let mut bytes = pattern(which as u64, 4 * BLOCK);
    bytes[at..at + data.len()].copy_from_slice(data);
    bytes
}

/// Tries the fast path; nothing of the extent may change if it is refused.
fn refused(pair: &Pair<Mapped>, which: usize, at: u64) -> bool {
    let before = pair.content(which).unwrap();
    let outcome = pair.write_fast(which, at, &[0xee; 10]).unwrap();
    assert!(outcome == Durable || pair.content(which).unwrap() == before, "a refusal has written");
    outcome == NotAllowed
}

#[test]
fn fua_write_survives_kill_without_checkpoint() {
    for checksums in [false, true] {
        for (at, data) in [(5000, vec![1; 100]), (4096, vec![2; BLOCK]), (4099, vec![3; 3000])] {
            for which in BOTH {
                let pair = settled(&Settings { checksums, ..Settings::default() });
                let checkpoints = pair.volume().checkpoints();
                assert_eq!(pair.write_fast(which, at, &data).unwrap(), Durable);
                assert_eq!(pair.volume().checkpoints(), checkpoints);
                let pair = pair.crashed();
                let expected = with(which, usize::try_from(at).unwrap(), &data);
                assert!(pair.read(which, 0, 4 * BLOCK).unwrap() == expected);
                pair.judge().unwrap();
            }
        }
    }
}

#[test]
fn fua_fills_hole_with_settled_entry() {
    for which in BOTH {
        let pair = settled(&Settings::default());
        pair.zero(which, 2 * BLOCK_U64, BLOCK_U64, false).unwrap();
        pair.zero(which, 3 * BLOCK_U64, BLOCK_U64, true).unwrap();
        for block in [2, 3] {
            assert!(refused(&pair, which, block * BLOCK_U64), "its entry has a record");
        }
        pair.volume().flush().unwrap();
        for block in [2, 3, 4] {
            assert_eq!(pair.write_fast(which, block * BLOCK_U64 + 7, &[9; 5]).unwrap(), Durable);
        }
        let pair = pair.crashed();
        for block in [2, 3, 4] {
            let found = pair.read(which, block * BLOCK_U64, BLOCK).unwrap();
            assert_eq!(found[..20], [0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        pair.judge().unwrap();
    }
}

#[test]
fn fua_refuses_two_blocks_accepts_none() {
    let pair = settled(&Settings::default());
    assert!(refused(&pair, 0, 4090));
    assert_eq!(pair.write_fast(0, 4090, &[]).unwrap(), Durable);
    assert_eq!(pair.write_fast(0, 4090, &[1; 6]).unwrap(), Durable, "to the block's last byte");
}

#[test]
fn fua_refuses_logged_block_until_durable() {
    for which in BOTH {
        let pair = settled(&Settings::default());
        pair.write(which, 100, &[7; 3]).unwrap();
        assert!(refused(&pair, which, 2000), "undo would take back other lines of the block");
        assert!(!refused(&pair, which, 5000));
        assert!(!refused(&pair, 1 - which, 2000), "the other extent's block is another one");
        pair.volume().flush().unwrap();
        assert!(!refused(&pair, which, 2000));
    }
}

#[test]
fn fua_refuses_logged_entry() {
    for which in BOTH {
        let pair = settled(&Settings::default());
        // The block stays as it is; only the entry's flags change.
        pair.zero(which, BLOCK_U64, BLOCK_U64, true).unwrap();
        assert!(refused(&pair, which, BLOCK_U64 + 9));
        pair.volume().flush().unwrap();
        assert!(!refused(&pair, which, BLOCK_U64 + 9));
    }
}

#[test]
fn fua_refuses_records_of_sealed_epoch() {
    for which in BOTH {
        let pair = settled(&Settings::default());
        pair.write(which, 100, &[7; 3]).unwrap();
        pair.zero(which, BLOCK_U64, BLOCK_U64, true).unwrap();
        let guard = pair.volume().lock_checkpoint();
        let pending = pair.volume().begin_checkpoint(&guard).unwrap();
        assert!(refused(&pair, which, 2000), "a record of the block");
        assert!(refused(&pair, which, BLOCK_U64 + 9), "a record of the entry");
        assert!(!refused(&pair, which, 2 * BLOCK_U64));
        pending.finish().unwrap();
        drop(guard);
        assert!(!refused(&pair, which, 2000) && !refused(&pair, which, BLOCK_U64 + 9));
    }
}

#[test]
fn fua_refuses_fresh_block() {
    for which in BOTH {
        let pair = settled(&Settings::default());
        pair.write(which, BLOCK_U64, &[9; BLOCK]).unwrap();
        assert!(refused(&pair, which, BLOCK_U64 + 100), "undo takes it away");
        pair.volume().flush().unwrap();
        assert!(!refused(&pair, which, BLOCK_U64 + 100));
    }
}

#[test]
fn fua_refuses_below_fresh_node() {
    let settings = Settings { sizes: [8 << 20, 8 << 20], ..Settings::default() };
    let pair = new_pair(512, &settings);
    assert!(refused(&pair, 0, 0), "there is no node yet");
    pair.write(0, 0, &[1; 10]).unwrap();
    assert!(refused(&pair, 0, 9 * BLOCK_U64), "the leaf is new");
    pair.volume().flush().unwrap();
    assert!(!refused(&pair, 0, 9 * BLOCK_U64));
    assert!(refused(&pair, 0, 2 << 20), "the branch is missing");
}

#[test]
fn fua_accepts_old_leaf_below_new_root() {
    let settings = Settings { sizes: [9000, 9000], ..Settings::default() };
    let pair = new_pair(512, &settings);
    pair.write(0, 0, &[1; 10]).unwrap();
    pair.resize(0, 8 << 20).unwrap();
    assert_eq!(pair.write_fast(0, 5, &[2; 10]).unwrap(), Durable);
    // The tree gets a new top. Undo takes it away, and leaves the old leaf where it was.
    pair.write(0, 4 << 20, &[3; 10]).unwrap();
    assert!(refused(&pair, 0, (4 << 20) + 5), "the new leaf goes as well");
    assert_eq!(pair.write_fast(0, 7, &[4; 10]).unwrap(), Durable);
    pair.volume().flush().unwrap();
    assert!(!refused(&pair, 0, (4 << 20) + 5));
}

#[test]
fn fua_write_of_stored_bytes_is_free() {
    for which in BOTH {
        let pair = settled(&Settings::default());
        let before = pair.medium().counters();
        let same = pattern(which as u64, 4 * BLOCK);
        assert_eq!(pair.write_fast(which, 100, &same[100..3000]).unwrap(), Durable);
        let cost = pair.medium().counters().since(&before);
        assert_eq!((cost.bytes_stored, cost.fences, cost.lines_flushed), (0, 0, 0));
    }
}

#[test]
fn fua_in_full_pool_redoes_lines() {
    let pair = settled(&Settings { sizes: [4 << 20, 33_333], ..Settings::default() });
    let mut at = 4 * BLOCK_U64;
    while pair.write(0, at, &pattern(at, BLOCK)).is_ok() {
        at += BLOCK_U64;
    }
    pair.volume().flush().unwrap();
    assert_eq!(pair.write_fast(1, 0, &pattern(9, BLOCK)).unwrap(), NotAllowed);
    assert_eq!(pair.write_fast(1, 0, &pattern(9, 500)).unwrap(), Durable);
    let pair = pair.crashed();
    assert!(pair.read(1, 0, 4 * BLOCK).unwrap() == with(1, 0, &pattern(9, 500)));
}

#[test]
fn fua_refuses_full_log_keeps_records() {
    let settings = Settings { threshold_lines: 65, ..Settings::default() };
    let pair = settled(&settings);
    let mut round = 0;
    while pair.write_fast(0, 0, &pattern(round, BLOCK)).unwrap() == Durable {
        round += 1;
        assert!(round < 1000, "the log has no end");
    }
    assert!(round > 10, "{round} records of a block fit in half a lane");
    let pair = pair.crashed();
    assert!(pair.read(0, 0, 4 * BLOCK).unwrap() == with(0, 0, &pattern(round - 1, BLOCK)));
}
