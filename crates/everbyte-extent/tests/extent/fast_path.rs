//! The fast path: the effect and the cost of a plan, or a refusal without effect.

use std::sync::Arc;

use everbyte_crash::SimMedium;
use everbyte_extent::FastPath::{Done, Ineligible};
use everbyte_extent::{Delta, DeviceOffset};
use everbyte_media::{BLOCK, BLOCK_U64, Mapped, Medium};

use crate::new_pair;
use crate::pair::{BOTH, Pair, Settings, pattern};

const BLOCKS: u64 = 6;

/// A pair with four initial blocks of data per extent, unknown to all open epochs. Their entries were looked
/// up once, so their places are known.
fn settled(settings: &Settings) -> Pair<Mapped> {
    let pair = new_pair(256, settings);
    for which in BOTH {
        pair.write(which, 0, &pattern(which as u64, 4 * BLOCK)).unwrap();
        pair.content(which).unwrap();
    }
    pair.volume().flush().unwrap();
    pair
}

/// Tries the fast path, and checks that a rejection changes nothing.
fn is_refused<M: Medium>(pair: &Pair<M>, which: usize, at: u64, data: &[u8]) -> bool {
    let (before, stored) = (pair.content(which), pair.medium().counters().bytes_stored);
    let is_refused = pair.try_fast_path(which, at, data).unwrap() == Ineligible;
    let after = (pair.content(which), pair.medium().counters().bytes_stored);
    assert!(!is_refused || (after.0.ok() == before.ok() && after.1 == stored), "it has written");
    is_refused
}

/// Requests within a block, most of them after earlier ones of their epoch.
fn requests() -> impl Iterator<Item = (u64, Vec<u8>)> {
    (0..120_u64).map(|round| {
        let len = [8, 64, 700, 2100, BLOCK][usize::try_from(round * 7 % 5).unwrap()];
        let start = round * 331 % (BLOCK - len + 1) as u64;
        let at = round * 5 % BLOCKS * BLOCK_U64 + start;
        // Every fourth request is made once more.
        (at, pattern(round / 4, len))
    })
}

#[test]
fn write_has_effect_and_cost_of_plan() {
    for delta in [Delta::On, Delta::Off] {
        for threshold_lines in [1, 32, 65] {
            let settings = Settings { delta, threshold_lines, ..Settings::default() };
            let [planned, fast] = [(); 2].map(|()| settled(&settings));
            for which in BOTH {
                for (round, (at, data)) in requests().enumerate() {
                    let what = format!("{settings:?}, extent {which}, round {round}");
                    let costs = [&planned, &fast].map(|pair| {
                        let before = pair.medium().counters();
                        if std::ptr::eq(pair, &raw const planned) {
                            pair.write(which, at, &data).unwrap();
                        } else {
                            assert_eq!(
                                pair.try_fast_path(which, at, &data).unwrap(),
                                Done,
                                "{what}"
                            );
                        }
                        let cost = pair.medium().counters().since(&before);
                        (cost.bytes_stored, cost.lines_stored, cost.lines_flushed, cost.fences)
                    });
                    assert_eq!(costs[0], costs[1], "{what}");
                    if round % 30 == 29 {
                        for pair in [&planned, &fast] {
                            pair.volume().flush().unwrap();
                        }
                    }
                }
                assert!(fast.content(which).unwrap() == planned.content(which).unwrap());
            }
            fast.judge().unwrap();
        }
    }
}

#[test]
fn write_is_undone_by_crash_kept_by_flush() {
    for which in BOTH {
        for is_flushed in [false, true] {
            let pair = settled(&Settings::default());
            let before = pair.content(which).unwrap();
            for (at, len) in [(100, 200), (4096, BLOCK), (8300, 3000), (4 * BLOCK_U64, 9)] {
                assert_eq!(pair.try_fast_path(which, at, &pattern(at, len)).unwrap(), Done);
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
fn checksums_zeroes_unknown_entries_are_refused() {
    let checksums = Settings { checksums: true, ..Settings::default() };
    assert!(is_refused(&settled(&checksums), 0, 5, &[1; 9]));
    let pair = settled(&Settings { sizes: [8 << 20, 33_333], ..Settings::default() });
    assert!(is_refused(&pair, 0, 5, &[]), "no bytes");
    assert!(is_refused(&pair, 0, 4 << 20, &[1; 9]), "there is no leaf");
    for which in BOTH {
        pair.zero(which, BLOCK_U64, BLOCK_U64, true).unwrap();
        assert!(is_refused(&pair, which, BLOCK_U64 + 5, &[1; 9]));
        assert!(is_refused(&pair, which, BLOCK_U64, &[1; BLOCK]));
    }
}

#[test]
fn full_log_is_refused() {
    let settings = Settings { threshold_lines: 65, ..Settings::default() };
    for which in BOTH {
        let pair = new_pair(512, &Settings { sizes: [60 * BLOCK_U64; 2], ..settings });
        pair.write(which, 0, &pattern(1, 60 * BLOCK)).unwrap();
        pair.content(which).unwrap();
        pair.volume().flush().unwrap();
        let new = pattern(2, BLOCK);
        let refused_at = (0..60).find(|block| {
            let at = block * BLOCK_U64;
            pair.try_fast_path(which, at, &new).unwrap() == Ineligible
        });
        let refused_at = refused_at.expect("half a lane has room for fifteen blocks") * BLOCK_U64;
        assert!(refused_at >= 10 * BLOCK_U64);
        assert!(is_refused(&pair, which, refused_at, &new));
        pair.write(which, refused_at, &new).unwrap();
        assert!(pair.read(which, refused_at, BLOCK).unwrap() == new);
        pair.judge().unwrap();
    }
}

#[test]
fn full_pool_refuses_replacement_not_changes() {
    let pair = settled(&Settings { sizes: [4 << 20, 33_333], ..Settings::default() });
    let mut at = 4 * BLOCK_U64;
    while pair.write(0, at, &pattern(at, BLOCK)).is_ok() {
        at += BLOCK_U64;
    }
    pair.volume().flush().unwrap();
    for which in BOTH {
        assert!(is_refused(&pair, which, 0, &pattern(9, BLOCK)), "it would be replaced");
        assert_eq!(pair.try_fast_path(which, BLOCK_U64 + 5, &[9; 500]).unwrap(), Done);
        assert!(pair.read(which, BLOCK_U64 + 5, 500).unwrap() == [9; 500]);
    }
    assert!(is_refused(&pair, 1, 5 * BLOCK_U64, &[1; 9]), "a hole needs a block");
    pair.judge().unwrap();
}

#[test]
fn poisoned_range_is_refused() {
    let pair = Pair::make(&Arc::new(SimMedium::new(256 * BLOCK_U64)), &Settings::default());
    for which in BOTH {
        pair.write(which, 0, &pattern(which as u64, 4 * BLOCK)).unwrap();
    }
    pair.volume().flush().unwrap();
    let block = pair.entry(0, 1).unwrap().block;
    pair.medium().inject_poison(block.offset().plus(2048), 64);
    // Whether it is known already, or found by what would be kept of the block.
    for round in 0..2 {
        assert!(is_refused(&pair, 0, BLOCK_U64, &[1; 1900]), "round {round}");
        assert!(is_refused(&pair, 0, BLOCK_U64 + 2000, &[0; 100]), "zeroes stand for it");
    }
    assert!(pair.write(0, BLOCK_U64, &[1; 1900]).is_err());
    pair.write(0, BLOCK_U64, &[1; BLOCK]).unwrap();
    assert!(pair.read(0, BLOCK_U64, BLOCK).unwrap() == [1; BLOCK]);
}

#[test]
fn pinned_block_is_replaced_view_is_kept() {
    for which in BOTH {
        let pair = settled(&Settings { threshold_lines: 65, ..Settings::default() });
        let old = pair.read(which, BLOCK_U64, BLOCK).unwrap();
        let place = pair.entry(which, 1).unwrap();
        let view = pair.extents[which].view(DeviceOffset(BLOCK_U64), BLOCK).unwrap();
        assert_eq!(pair.try_fast_path(which, BLOCK_U64 + 5, &[9; 10]).unwrap(), Done);
        assert_ne!(pair.entry(which, 1).unwrap(), place);
        let mut seen = vec![0; BLOCK];
        assert_eq!(view.read(0, &mut seen).unwrap(), BLOCK);
        assert!(seen == old);
        assert!(pair.read(which, BLOCK_U64 + 5, 10).unwrap() == [9; 10]);
        drop(view);
        pair.judge().unwrap();
    }
}
