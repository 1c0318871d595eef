//! Contiguous leaves in the pool: the conditions for a run of 2 MiB, and no loss with it.

use everbyte_extent::{DeviceOffset, LogicalBlock, Stored};
use everbyte_media::{BLOCK_U64, Mapped, PoolOffset};

use crate::new_pair;
use crate::pair::{Pair, Settings};

const LEAF: u64 = 2 << 20;

fn large() -> Pair<Mapped> {
    let settings = Settings { sizes: [3 * LEAF, 5000], ..Settings::default() };
    new_pair(4096, &settings)
}

/// The blocks with data of the leaf at `offset`, in order.
fn blocks(pair: &Pair<Mapped>, offset: u64) -> Vec<PoolOffset> {
    let blocks = (0..512).filter_map(|block| {
        let at = DeviceOffset(offset + block * BLOCK_U64);
        match pair.extents[0].stored_run(at).unwrap() {
            (Stored::Data(at), LogicalBlock(_)) => Some(at),
            _ => None,
        }
    });
    blocks.collect()
}

fn is_run(blocks: &[PoolOffset]) -> bool {
    let start = blocks[0].0;
    blocks.len() == 512
        && start.is_multiple_of(LEAF)
        && (start..).step_by(4096).zip(blocks).all(|(at, block)| at == block.0)
}

fn free_blocks(pair: &Pair<Mapped>) -> u64 {
    pair.volume().flush().unwrap();
    pair.pool.info().free_bytes / BLOCK_U64
}

#[test]
fn whole_leaf_write_gets_aligned_run() {
    let pair = large();
    let data = vec![7; usize::try_from(LEAF).unwrap()];
    pair.write(0, LEAF, &data).unwrap();
    assert!(is_run(&blocks(&pair, LEAF)));
    assert_eq!(pair.read(0, LEAF, LEAF.try_into().unwrap()).unwrap(), data);
    // One block of it goes elsewhere, when it is replaced, and the others stay.
    pair.volume().flush().unwrap();
    pair.write(0, LEAF + 5 * BLOCK_U64, &[8; 4096]).unwrap();
    let after = blocks(&pair, LEAF);
    assert!(!is_run(&after));
    assert_eq!(after[4].0 + 2 * BLOCK_U64, after[6].0);
    // Blocks that have data make a leaf one that is written block by block.
    pair.write(0, 5 * BLOCK_U64, &[1]).unwrap();
    pair.write(0, 0, &data).unwrap();
    assert!(!is_run(&blocks(&pair, 0)));
    pair.judge().unwrap();
}

#[test]
fn reserved_leaf_gets_aligned_run() {
    let pair = large();
    pair.zero(0, LEAF, LEAF, true).unwrap();
    for block in (0..512).rev() {
        pair.write(0, LEAF + block * BLOCK_U64, &[9; 4096]).unwrap();
    }
    assert!(is_run(&blocks(&pair, LEAF)));
    pair.judge().unwrap();
}

#[test]
fn run_freed_in_parts_is_whole_again() {
    let pair = large();
    pair.write(0, 0, &[1]).unwrap();
    let before = free_blocks(&pair);
    let data = vec![7; usize::try_from(LEAF).unwrap()];
    // As a leaf; in two parts; one block first, in the epoch in which it was taken or a later one.
    for (parts, is_settled) in [
        (vec![(0, LEAF)], true),
        (vec![(0, LEAF)], false),
        (vec![(0, LEAF / 2), (LEAF / 2, LEAF / 2)], true),
        (vec![(8192, 4096), (0, LEAF)], true),
        (vec![(8192, 4096), (0, LEAF)], false),
    ] {
        pair.write(0, LEAF, &data).unwrap();
        assert!(is_run(&blocks(&pair, LEAF)), "{parts:?}");
        if is_settled {
            pair.volume().flush().unwrap();
        }
        for &(offset, len) in &parts {
            pair.zero(0, LEAF + offset, len, false).unwrap();
        }
        pair.volume().flush().unwrap();
        assert!(blocks(&pair, LEAF).is_empty());
        pair.judge().unwrap();
        assert!(free_blocks(&pair) >= before - 1, "{parts:?}");
    }
}

#[test]
fn leaf_without_free_run_uses_single_blocks() {
    let settings = Settings { sizes: [LEAF, LEAF], ..Settings::default() };
    // Room for a leaf, and no multiple of 2 MiB before its end.
    let pair = new_pair(1100, &settings);
    let data = vec![7; usize::try_from(LEAF).unwrap()];
    pair.write(0, 0, &[1]).unwrap();
    pair.write(1, 0, &data).unwrap();
    assert_eq!(pair.read(1, 0, LEAF.try_into().unwrap()).unwrap(), data);
    pair.judge().unwrap();
}
