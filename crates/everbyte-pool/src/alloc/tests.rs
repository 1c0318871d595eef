//! The allocator against a model of plain sets.

use std::collections::BTreeSet;

use everbyte_media::BlockNo;
use proptest::prelude::*;

use super::*;

fn run(start: u64, len: u64) -> BlockRun {
    BlockRun { start: BlockNo(start), len }
}

/// An allocator of `blocks`, all of them free.
fn with_blocks(blocks: std::ops::Range<u64>) -> Allocator {
    let alloc = Allocator::new(blocks.end);
    alloc.add(run(blocks.start, blocks.end - blocks.start)).unwrap();
    alloc
}

#[test]
fn free_runs_are_as_long_as_they_can_be() {
    let alloc = Allocator::new(400);
    let runs = [(0, 1), (5, 60), (126, 3), (192, 64), (300, 1), (399, 1)];
    for (start, len) in runs {
        alloc.free_run(BlockRun { start: BlockNo(start), len }).unwrap();
    }
    let found: Vec<_> = alloc.free_runs().map(|run| (run.start.0, run.len)).collect();
    assert_eq!(found, runs);
}

/// A step of a model test. Numbers are taken modulo the number of candidates.
#[derive(Clone, Debug)]
enum Step {
    Alloc,
    Batch { hint: u64, want: usize },
    Run(u64),
    Aligned { log: u32, hint: u64 },
    Take(u64, u64),
    Free(u64, u64),
}

const FIRST: u64 = 70;
const END: u64 = 1400;

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Alloc),
        (0..END, 1usize..70).prop_map(|(hint, want)| Step::Batch { hint, want }),
        (1u64..200).prop_map(Step::Run),
        (0u32..10, 0..END).prop_map(|(log, hint)| Step::Aligned { log, hint }),
        (FIRST..END, 1u64..100).prop_map(|(start, len)| Step::Take(start, len)),
        (FIRST..END, 1u64..400).prop_map(|(start, len)| Step::Free(start, len)),
    ]
}

/// Takes the blocks from `start` on out of the model. All of them must have been free.
fn taken(free: &mut BTreeSet<u64>, start: u64, len: u64) -> bool {
    (start..start + len).all(|block| free.remove(&block))
}

fn longest_run(free: &BTreeSet<u64>) -> u64 {
    let (mut longest, mut len, mut last) = (0, 0, None);
    for &block in free {
        len = if last.is_some_and(|last| last + 1 == block) { len + 1 } else { 1 };
        (longest, last) = (longest.max(len), Some(block));
    }
    longest
}

/// Does a step, and says whether the model agrees.
fn agree(alloc: &Allocator, free: &mut BTreeSet<u64>, step: &Step) -> bool {
    match *step {
        Step::Alloc => match alloc.alloc() {
            Some(block) => taken(free, block.0, 1),
            None => free.is_empty(),
        },
        Step::Batch { hint, want } => {
            let mut out = vec![7];
            let got = alloc.alloc_batch(hint, want, &mut out);
            let expected = want.min(free.len());
            got == expected
                && out.len() == 1 + got
                && out[1..].iter().all(|block| free.remove(block))
        }
        Step::Run(len) => match alloc.alloc_run(len) {
            Some(found) => found.len == len && taken(free, found.start.0, len),
            None => longest_run(free) < len,
        },
        Step::Aligned { log, hint } => {
            let len = 1 << log;
            match alloc.alloc_aligned(len, hint) {
                Some(found) => {
                    let (start, aligned) = (found.start.0, found.start.0.is_multiple_of(len));
                    found.len == len && aligned && taken(free, start, len)
                }
                // It may be that there is one, but none in 2 MiB that are all free.
                None => (0..END / 512).all(|region| {
                    (region * 512..(region + 1) * 512).any(|block| !free.contains(&block))
                }),
            }
        }
        Step::Take(start, len) => {
            let blocks = || start..start + len;
            let can_be = blocks().all(|block| free.contains(&block));
            let done = alloc.take(run(start, len)).is_ok();
            if done {
                blocks().for_each(|block| assert!(free.remove(&block)));
            }
            done == can_be
        }
        Step::Free(start, len) => {
            let end = (start + len).min(END);
            let can_be = (start..end).all(|block| !free.contains(&block));
            // This test frees only used blocks; the next test frees others.
            if can_be {
                free.extend(start..end);
                alloc.free_run(run(start, end - start)).is_ok()
            } else {
                true
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn allocator_matches_free_set(
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let alloc = with_blocks(FIRST..END);
        let mut free: BTreeSet<u64> = (FIRST..END).collect();
        for step in &steps {
            prop_assert!(agree(&alloc, &mut free, step), "{:?}, free: {:?}", step, free);
            prop_assert_eq!(alloc.free_blocks(), free.len() as u64);
        }
        let listed: Vec<u64> =
            alloc.free_runs().flat_map(BlockRun::blocks).map(|block| block.0).collect();
        prop_assert_eq!(&listed, &free.iter().copied().collect::<Vec<_>>());
        // A shutdown saves the current state.
        let words: Vec<u64> = alloc.words().collect();
        let mut loaded = Allocator::new(END);
        loaded.load_words(&words).unwrap();
        prop_assert!((0..END).all(|block| loaded.is_free(BlockNo(block)) == free.contains(&block)));
        prop_assert_eq!(loaded.free_blocks(), free.len() as u64);
        prop_assert_eq!(
            loaded.alloc_aligned(512, 0).is_some(),
            alloc.alloc_aligned(512, 0).is_some(),
            "whole regions are known again"
        );
    }
}

#[test]
fn runs_up_to_2_mib_are_aligned() {
    let alloc = with_blocks(100..4096);
    for log in 0..10 {
        let len = 1 << log;
        let found = alloc.alloc_aligned(len, 0).unwrap();
        assert_eq!((found.len, found.start.0 % len), (len, 0), "{len} blocks");
        alloc.free_run(found).unwrap();
    }
    assert_eq!(alloc.alloc_aligned(1024, 0), None);
    assert_eq!(alloc.alloc_aligned(3, 0), None);
    let mut regions = BTreeSet::new();
    while let Some(found) = alloc.alloc_aligned(512, 0) {
        assert!(regions.insert(found.start.0));
    }
    assert_eq!(regions.into_iter().collect::<Vec<_>>(), [512, 1024, 1536, 2048, 2560, 3072, 3584]);
    assert_eq!(alloc.free_blocks(), 412, "what begins within a region is left");
    assert_eq!(alloc.alloc_aligned(1, 4095), None, "no region is all free, nor has the hint's any");
    assert!(alloc.alloc_aligned(256, 300).is_some());
}

#[test]
fn double_free_and_range_errors_are_reported() {
    let alloc = with_blocks(10..20);
    assert_eq!(alloc.free(BlockNo(15)), Err(SlotError::AlreadyFree { slot: 15 }));
    alloc.take(run(12, 3)).unwrap();
    assert_eq!(alloc.take(run(14, 1)), Err(SlotError::AlreadyUsed { slot: 14 }));
    assert_eq!(alloc.take(run(11, 4)), Err(SlotError::AlreadyUsed { slot: 12 }));
    assert_eq!(alloc.free_run(run(11, 2)), Err(SlotError::AlreadyFree { slot: 11 }));
    assert!(matches!(alloc.take(run(9, 1)), Err(SlotError::AlreadyUsed { slot: 9 })));
    assert!(matches!(alloc.take(run(19, 2)), Err(SlotError::OutOfRange { .. })));
    assert!(matches!(alloc.free(BlockNo(1 << 40)), Err(SlotError::OutOfRange { .. })));
    assert!(matches!(alloc.free_run(run(u64::MAX, 2)), Err(SlotError::OutOfRange { .. })));
}

#[test]
fn low_space_begins_below_a_tenth() {
    let alloc = with_blocks(10..110);
    assert_eq!((alloc.total_blocks(), alloc.capacity(), alloc.is_low()), (100, 110, false));
    alloc.take(run(10, 90)).unwrap();
    assert!(!alloc.is_low(), "10 of 100");
    assert!(alloc.alloc().is_some() && alloc.is_low(), "9 of 100");
    assert_eq!(alloc.alloc_batch(0, 64, &mut Vec::new()), 9);
    assert_eq!((alloc.alloc(), alloc.free_blocks()), (None, 0));
    assert_eq!(alloc.alloc_run(1), None);
}
