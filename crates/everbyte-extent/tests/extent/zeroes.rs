//! Bytes that read as zeroes: holes, unmapped ranges and their edges, kept space.

use everbyte_extent::{DeviceOffset, LogicalBlock, Stored};
use everbyte_media::{BLOCK, BLOCK_U64, Mapped};

use crate::new_pair;
use crate::pair::{BOTH, Pair, Settings, pattern};

/// Free blocks of the pool.
fn free_blocks(pair: &Pair<Mapped>) -> u64 {
    pair.volume().flush().unwrap();
    pair.judge().unwrap();
    pair.pool.info().free_bytes / BLOCK_U64
}

#[test]
fn new_extent_reads_zeroes_up_to_end() {
    let pair = new_pair(256, &Settings::default());
    for which in BOTH {
        let size = pair.extents[which].size_bytes();
        assert!(pair.content(which).unwrap().iter().all(|&byte| byte == 0));
        assert!(pair.read(which, size, 0).is_ok());
        for (at, len) in [(size, 1), (size - 1, 2), (u64::MAX, 2)] {
            let error = pair.read(which, at, len).unwrap_err().to_string();
            assert_eq!(error, format!("the extent ends at byte {size}"));
        }
    }
}

#[test]
fn unmap_clears_exact_range() {
    let pair = new_pair(256, &Settings::default());
    for which in BOTH {
        let size = pair.extents[which].size_bytes();
        for (round, (at, len)) in [
            (0, 1),
            (1, 4094),
            (4095, 2),
            (4000, 9000),
            (4096, 8192),
            (size - 1, 1),
            (size - 5000, 5000),
            (0, size),
        ]
        .into_iter()
        .enumerate()
        {
            for reserve in [false, true] {
                let whole = usize::try_from(size).unwrap();
                let mut expected = pattern(round as u64, whole);
                pair.write(which, 0, &expected).unwrap();
                pair.zero(which, at, len, reserve).unwrap();
                let (at, len) = (usize::try_from(at).unwrap(), usize::try_from(len).unwrap());
                expected[at..at + len].fill(0);
                assert!(pair.content(which).unwrap() == expected, "{at}+{len} {reserve}");
            }
        }
    }
    pair.judge().unwrap();
}

#[test]
fn partial_last_block_is_unmapped() {
    let pair = new_pair(256, &Settings::default());
    for which in BOTH {
        let last = pair.extents[which].size_blocks() - 1;
        let rest = pair.extents[which].size_bytes() - last * BLOCK_U64;
        pair.write(which, last * BLOCK_U64, &vec![7; usize::try_from(rest).unwrap()]).unwrap();
        let before = free_blocks(&pair);
        pair.zero(which, last * BLOCK_U64, rest, false).unwrap();
        assert_eq!(pair.entry(which, last), None);
        assert_eq!(free_blocks(&pair), before + 1);
    }
}

#[test]
fn zeroing_part_of_hole_fills_only_if_reserved() {
    let pair = new_pair(256, &Settings::default());
    for which in BOTH {
        // A leaf to inspect.
        pair.write(which, 0, &[1]).unwrap();
        pair.zero(which, 2 * BLOCK_U64 + 9, 100, false).unwrap();
        assert_eq!(pair.entry(which, 2), None);
        pair.zero(which, 2 * BLOCK_U64 + 9, 100, true).unwrap();
        assert!(pair.entry(which, 2).is_some());
        let block = pair.read(which, 2 * BLOCK_U64, BLOCK).unwrap();
        assert!(block.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn reserved_zeroes_keep_space_read_zero() {
    let pair = new_pair(256, &Settings::default());
    for which in BOTH {
        // Over a hole, and over data whose bytes stay in the block.
        pair.write(which, BLOCK_U64, &pattern(5, BLOCK)).unwrap();
        let held = pair.entry(which, 1).unwrap().block;
        pair.zero(which, 0, 2 * BLOCK_U64, true).unwrap();
        let kept = [0, 1].map(|block| pair.entry(which, block).unwrap());
        assert!(kept.iter().all(|entry| entry.flags.zero));
        assert_eq!(kept[1].block, held, "it keeps its block");
        assert!(pair.read(which, 0, 2 * BLOCK).unwrap().iter().all(|&byte| byte == 0));
        let before = free_blocks(&pair);
        pair.zero(which, 0, 2 * BLOCK_U64, true).unwrap();
        pair.write(which, 9, &[3; 20]).unwrap();
        pair.write(which, BLOCK_U64 + 9, &[3; 20]).unwrap();
        assert_eq!(free_blocks(&pair), before, "writing there takes nothing");
        let mut expected = [0; BLOCK];
        expected[9..29].fill(3);
        for block in [0, 1] {
            assert!(pair.read(which, block * BLOCK_U64, BLOCK).unwrap() == expected);
            assert!(!pair.entry(which, block).unwrap().flags.zero);
        }
    }
}

#[test]
fn undo_of_write_restores_reserved_zeroes() {
    for checksums in [false, true] {
        let pair = new_pair(256, &Settings { checksums, ..Settings::default() });
        for which in BOTH {
            pair.write(which, 0, &pattern(5, BLOCK)).unwrap();
        }
        pair.volume().flush().unwrap();
        for which in BOTH {
            // Data to zeroes to data in one epoch: undo brings the first data back.
            pair.zero(which, 0, BLOCK_U64, true).unwrap();
            pair.write(which, 100, &[1; 10]).unwrap();
        }
        let pair = pair.crashed();
        for which in BOTH {
            assert!(pair.read(which, 0, BLOCK).unwrap() == pattern(5, BLOCK));
            pair.zero(which, 0, BLOCK_U64, true).unwrap();
        }
        pair.volume().flush().unwrap();
        for which in BOTH {
            pair.write(which, 100, &[1; 10]).unwrap();
        }
        let pair = pair.crashed();
        for which in BOTH {
            assert!(pair.read(which, 0, BLOCK).unwrap().iter().all(|&byte| byte == 0));
        }
        pair.judge().unwrap();
    }
}

#[test]
fn whole_leaf_unmap_frees_leaf_and_blocks() {
    let settings = Settings { sizes: [6 << 20, 5000], ..Settings::default() };
    let pair = new_pair(4096, &settings);
    pair.write(0, 0, &[9; 10]).unwrap();
    let before = free_blocks(&pair);
    for block in [512, 700, 1023] {
        pair.write(0, block * BLOCK_U64 + 5, &[8; 10]).unwrap();
    }
    let (_, next) = pair.extents[0].stored_run(DeviceOffset(1024 * BLOCK_U64)).unwrap();
    assert!(next > LogicalBlock(1500), "nothing comes after the second leaf");
    pair.zero(0, 2 << 20, 2 << 20, false).unwrap();
    assert_eq!(free_blocks(&pair), before, "three blocks and the leaf");
    let (stored, next) = pair.extents[0].stored_run(DeviceOffset(512 * BLOCK_U64)).unwrap();
    assert_eq!(stored, Stored::Hole);
    assert!(next > LogicalBlock(1500), "the leaf is not there to be looked into");
    assert!(pair.read(0, 2 << 20, 2 << 20).unwrap().iter().all(|&byte| byte == 0));
    pair.write(0, 700 * BLOCK_U64, &[7; 3]).unwrap();
    assert_eq!(pair.read(0, 700 * BLOCK_U64, 4).unwrap(), [7, 7, 7, 0], "and can be made anew");
    assert_eq!(pair.read(0, 0, 10).unwrap(), [9; 10]);
}
