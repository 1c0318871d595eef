//! Change of a written block: logged or replaced, compared or not, below a tree or in a table.

use everbyte_extent::{Delta, DeviceOffset, LogicalBlock, Stored};
use everbyte_media::{BLOCK, BLOCK_U64, Mapped, Medium};

use crate::new_pair;
use crate::pair::{BOTH, Pair, Settings, pattern};

/// `old` with a byte changed in each of `lines` lines, spread over the block.
fn changed(old: &[u8], lines: usize) -> Vec<u8> {
    let mut new = old.to_vec();
    for line in 0..lines {
        // 27 and 64 have no common divisor, so no line is met twice.
        new[line * 27 % 64 * 64 + line % 64] ^= 0x80;
    }
    new
}

/// Writes all of the first block with so many lines changed; says whether it lies elsewhere then.
fn is_replaced(pair: &Pair<Mapped>, which: usize, old: &[u8], lines: usize) -> bool {
    let before = pair.entry(which, 0);
    let new = changed(old, lines);
    pair.write(which, 0, &new).unwrap();
    assert!(pair.read(which, 0, BLOCK).unwrap() == new);
    pair.entry(which, 0) != before
}

#[test]
fn half_of_lines_replace_block() {
    let old = pattern(1, BLOCK);
    for (threshold_lines, lines, replaced) in [
        (32, 31, false),
        (32, 32, true),
        (32, 33, true),
        (0, 1, true),
        (64, 63, false),
        (64, 64, true),
        (65, 64, false),
    ] {
        let pair = new_pair(256, &Settings { threshold_lines, ..Settings::default() });
        for which in BOTH {
            pair.write(which, 0, &old).unwrap();
            pair.volume().flush().unwrap();
            let log = pair.volume().log_bytes();
            assert_eq!(is_replaced(&pair, which, &old, lines), replaced, "{lines} lines");
            let logged = pair.volume().log_bytes() - log;
            let record = if replaced { 64 } else { 64 + 64 * lines as u64 };
            assert!(logged >= record, "{logged} bytes for {lines} lines");
            assert!(replaced || logged < record + 64 * 8, "{logged} bytes for {lines} lines");
        }
        let pair = pair.crashed();
        for which in BOTH.into_iter().skip(1) {
            assert!(pair.read(which, 0, BLOCK).unwrap() == old, "undone");
        }
    }
}

#[test]
fn lines_add_up_within_epoch_only() {
    let old = pattern(1, BLOCK);
    let pair = new_pair(256, &Settings::default());
    for which in BOTH {
        pair.write(which, 0, &old).unwrap();
        pair.volume().flush().unwrap();
        let home = pair.entry(which, 0);
        pair.write(which, 0, &pattern(2, 20 * 64)).unwrap();
        pair.volume().flush().unwrap();
        pair.write(which, 20 * 64, &pattern(3, 12 * 64)).unwrap();
        assert_eq!(pair.entry(which, 0), home, "20 lines before the checkpoint do not count");
        pair.write(which, 32 * 64, &pattern(4, 19 * 64)).unwrap();
        assert_eq!(pair.entry(which, 0), home, "31 lines");
        pair.write(which, 20 * 64, &pattern(5, 12 * 64)).unwrap();
        assert_eq!(pair.entry(which, 0), home, "the same ones again");
        pair.write(which, 60 * 64, &pattern(6, 1)).unwrap();
        assert_ne!(pair.entry(which, 0), home, "the 32nd");
    }
}

#[test]
fn threshold_is_learned_per_extent() {
    const BLOCKS: u64 = 32;
    let settings = Settings { sizes: [BLOCKS * BLOCK_U64 + 1; 2], ..Settings::default() };
    let pair = new_pair(1024, &settings);
    for which in BOTH {
        for block in 0..BLOCKS {
            pair.write(which, block * BLOCK_U64, &pattern(block, BLOCK)).unwrap();
        }
    }
    pair.volume().flush().unwrap();
    let epoch = pair.volume().current_epoch();
    // A quarter of each block of the first extent, and then the other quarters.
    for part in 0..4 {
        for block in 0..BLOCKS {
            let at = block * BLOCK_U64 + part * 1024;
            pair.write(0, at, &pattern(100 + block, 1024)).unwrap();
        }
    }
    assert_eq!(pair.volume().current_epoch(), epoch, "the log has room for all of it");
    pair.volume().flush().unwrap();
    let mut replaced = [0, 0];
    for which in BOTH {
        for block in 0..BLOCKS {
            let before = pair.entry(which, block);
            pair.write(which, block * BLOCK_U64, &pattern(200 + block, 1024)).unwrap();
            replaced[which] += u64::from(pair.entry(which, block) != before);
        }
    }
    assert_eq!(replaced, [BLOCKS - BLOCKS / 16, 0], "but for a sample of one in sixteen");
}

#[test]
fn unchanged_bytes_are_stored_without_delta() {
    for (delta, stored) in [(Delta::On, false), (Delta::Off, true)] {
        let pair = new_pair(256, &Settings { delta, ..Settings::default() });
        for which in BOTH {
            let data = pattern(which as u64, 2 * BLOCK + 100);
            pair.write(which, 50, &data).unwrap();
            pair.volume().flush().unwrap();
            let before = pair.medium().counters();
            pair.write(which, 50, &data).unwrap();
            let cost = pair.medium().counters().since(&before);
            assert_eq!(cost.bytes_stored > 0, stored, "{delta:?}");
            assert!(pair.read(which, 50, data.len()).unwrap() == data);
        }
    }
}

/// Returns the status of each block of extent `which`.
fn status(pair: &Pair<Mapped>, which: usize) -> Vec<&'static str> {
    let mut said = Vec::new();
    let end = pair.extents[which].size_blocks();
    while (said.len() as u64) < end {
        let at = DeviceOffset(said.len() as u64 * BLOCK_U64);
        let (stored, next) = pair.extents[which].stored_run(at).unwrap();
        let word = match stored {
            Stored::Hole => "hole",
            Stored::Zero => "zero",
            Stored::Data(_) => "data",
        };
        let to = usize::try_from(next.min(LogicalBlock(end)).0).unwrap();
        assert!(to > said.len(), "it does not go on");
        said.resize(to, word);
    }
    said
}

#[test]
fn equal_requests_get_equal_choices() {
    let size = (2 << 20) + 70_001;
    for (delta, checksums) in [(Delta::On, false), (Delta::Off, true)] {
        let settings = Settings { sizes: [size; 2], delta, checksums, ..Settings::default() };
        let pair = new_pair(4096, &settings);
        for seed in 0..200_u64 {
            let at = seed * 99_991 % size;
            let len = (seed * 331 % 9000).min(size - at);
            for which in BOTH {
                match seed % 7 {
                    4 => pair.zero(which, at, len, true).unwrap(),
                    5 => pair.zero(which, at & !4095, len * 10 % (size - at), false).unwrap(),
                    6 if seed % 3 == 0 => pair.zero(which, 0, 2 << 20, false).unwrap(),
                    _ => {
                        let data = pattern(seed, usize::try_from(len).unwrap());
                        pair.write(which, at, &data).unwrap();
                    }
                }
            }
            if seed % 10 == 0 {
                let [tree, table] = BOTH.map(|which| status(&pair, which));
                assert!(tree == table, "after request {seed}");
                let [tree, table] = BOTH.map(|which| pair.content(which).unwrap());
                assert!(tree == table, "after request {seed}");
                pair.volume().flush().unwrap();
            }
        }
        let said = status(&pair, 0);
        assert!(["hole", "zero", "data"].iter().all(|word| said.contains(word)), "{said:?}");
        pair.judge().unwrap();
    }
}
