//! Extents that become smaller and larger: the kept bytes, and the bytes that come back as zeroes.

use everbyte_media::{BLOCK, BLOCK_U64};

use crate::new_pair;
use crate::pair::{BOTH, Settings, pattern};

fn bytes(size: u64) -> usize {
    usize::try_from(size).unwrap()
}

#[test]
fn regrown_range_reads_zeroes_after_shrink() {
    for checksums in [false, true] {
        let pair = new_pair(256, &Settings { checksums, ..Settings::default() });
        for which in BOTH {
            let size = pair.extents[which].size_bytes();
            let data = pattern(which as u64, bytes(size));
            // To a multiple of nothing, a block's end, a byte beyond it, nearly nothing.
            for smaller in [20_001, 16_384, 12_289, 1] {
                pair.write(which, 0, &data).unwrap();
                pair.resize(which, smaller).unwrap();
                assert!(pair.content(which).unwrap() == data[..bytes(smaller)]);
                assert!(pair.read(which, smaller, 1).is_err());
                pair.resize(which, size).unwrap();
                let mut expected = data[..bytes(smaller)].to_vec();
                expected.resize(bytes(size), 0);
                assert!(pair.content(which).unwrap() == expected, "{which} by way of {smaller}");
            }
        }
        pair.judge().unwrap();
    }
}

#[test]
fn shrink_frees_blocks_of_one_extent() {
    let pair = new_pair(512, &Settings { sizes: [300_001, 300_001], ..Settings::default() });
    let other = pattern(8, 300_001);
    for which in BOTH {
        pair.write(which, 0, &other).unwrap();
    }
    pair.volume().flush().unwrap();
    for which in BOTH {
        let before = pair.pool.info().free_bytes;
        pair.resize(which, 3 * BLOCK_U64 + 1).unwrap();
        pair.volume().flush().unwrap();
        let freed = (pair.pool.info().free_bytes - before) / BLOCK_U64;
        assert_eq!(freed, 74 - 4, "of 74 blocks 4 are left");
        assert!(pair.content(which).unwrap() == other[..3 * BLOCK + 1]);
        if which == 0 {
            assert!(pair.content(1).unwrap() == other);
        }
    }
    pair.judge().unwrap();
}

#[test]
fn tree_grows_by_writes_not_by_size() {
    let settings = Settings { sizes: [9000, 9000], ..Settings::default() };
    let pair = new_pair(512, &settings);
    pair.write(0, 0, &[1; 10]).unwrap();
    pair.volume().flush().unwrap();
    let before = pair.pool.info().free_bytes;
    pair.resize(0, 1 << 40).unwrap();
    assert_eq!(pair.pool.info().free_bytes, before, "a size takes no space");
    for at in [3 << 20, 3 << 30, (1 << 40) - 10] {
        pair.write(0, at, &pattern(at, 10)).unwrap();
        assert_eq!(pair.read(0, 0, 11).unwrap(), [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
        assert_eq!(pair.read(0, at, 10).unwrap(), pattern(at, 10));
    }
    pair.judge().unwrap();
    pair.resize(0, 9000).unwrap();
    pair.resize(0, 1 << 40).unwrap();
    for at in [3 << 20, 3 << 30, (1 << 40) - 10] {
        assert_eq!(pair.read(0, at, 10).unwrap(), [0; 10]);
    }
    pair.judge().unwrap();
}
