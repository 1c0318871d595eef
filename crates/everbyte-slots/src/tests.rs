//! Both trees against a plain set, and the lock-free one under threads.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::run::index;
use crate::{ByteTree, SlotError, SlotTree, WordTree};

/// Operations of both trees for a single caller.
trait Slots: std::fmt::Debug {
    /// Slots per leaf node, as a power of two, if a failed `free_run` leaves the nodes before the
    /// failing one freed.
    const FREES_IN_PART: Option<u32>;
    fn new(capacity: u64) -> Self;
    fn free_run(&mut self, start: u64, len: u64) -> Result<(), SlotError>;
    fn take_run(&mut self, start: u64, len: u64) -> Result<(), SlotError>;
    fn free(&mut self, slot: u64) -> Result<(), SlotError>;
    fn take(&mut self, slot: u64) -> Result<(), SlotError>;
    fn alloc(&mut self, hint: u64) -> Option<u64>;
    fn alloc_run(&mut self, len: u64, hint: u64) -> Option<u64>;
    fn alloc_batch(&mut self, hint: u64, want: usize) -> Vec<u64>;
    fn is_free(&self, slot: u64) -> bool;
    fn free_count(&self) -> u64;
    /// Saves the tree and loads it into a new one, if it can be saved.
    fn reload(&mut self);
    /// Number of nodes with a wrong bit in the parent.
    fn wrong_hints(&self) -> usize;
}

/// Calls the tree's inherent methods of the same name.
macro_rules! forward {
    () => {
        fn new(capacity: u64) -> Self {
            Self::new(capacity)
        }
        fn is_free(&self, slot: u64) -> bool {
            self.is_free(slot)
        }
        fn free_count(&self) -> u64 {
            self.free_count()
        }
        forward! {
            free_run(start: u64, len: u64) -> Result<(), SlotError>;
            take_run(start: u64, len: u64) -> Result<(), SlotError>;
            free(slot: u64) -> Result<(), SlotError>;
            take(slot: u64) -> Result<(), SlotError>;
            alloc(hint: u64) -> Option<u64>;
            alloc_run(len: u64, hint: u64) -> Option<u64>;
        }
    };
    ($($name:ident($($arg:ident: $t:ty),*) -> $out:ty;)*) => {
        $(fn $name(&mut self, $($arg: $t),*) -> $out {
            (*self).$name($($arg),*)
        })*
    };
}

impl Slots for ByteTree {
    const FREES_IN_PART: Option<u32> = None;
    forward!();
    fn alloc_batch(&mut self, mut hint: u64, want: usize) -> Vec<u64> {
        let next = |_| {
            hint = self.alloc(hint)?;
            Some(hint)
        };
        (0..want).map_while(next).collect()
    }
    fn reload(&mut self) {
        *self = self.clone();
    }
    fn wrong_hints(&self) -> usize {
        self.wrong_nodes()
    }
}

impl<const LOG: u32> Slots for WordTree<LOG> {
    const FREES_IN_PART: Option<u32> = Some(LOG);
    forward!();
    fn alloc_batch(&mut self, hint: u64, want: usize) -> Vec<u64> {
        let mut out = vec![u64::MAX];
        let got = (*self).alloc_batch(hint, want, &mut out);
        assert_eq!(out.len(), 1 + got);
        out.split_off(1)
    }
    fn reload(&mut self) {
        let mut other = Self::new(self.capacity());
        // Loading must remove the earlier state.
        other.free_run(0, self.capacity()).expect("a new tree has no free slot");
        other.load_words(self.words()).expect("the words are of a tree of this size");
        *self = other;
    }
    fn wrong_hints(&self) -> usize {
        let (hidden, stale) = (*self).wrong_hints();
        hidden + stale
    }
}

/// The plain model: the free slots.
#[derive(Debug)]
struct Model {
    capacity: u64,
    free: BTreeSet<u64>,
}

impl Model {
    fn check(&self, start: u64, len: u64) -> Result<(), SlotError> {
        if start.checked_add(len).is_none_or(|end| end > self.capacity) {
            return Err(SlotError::OutOfRange { start, len, capacity: self.capacity });
        }
        Ok(())
    }

    fn free_run(&mut self, start: u64, len: u64, in_part: Option<u32>) -> Result<(), SlotError> {
        self.check(start, len)?;
        let wrong = self.free.range(start..start + len).next().copied();
        match (wrong, in_part) {
            (None, _) => self.free.extend(start..start + len),
            (Some(slot), Some(log)) => self.free.extend(start..slot >> log << log),
            (Some(_), None) => {}
        }
        wrong.map_or(Ok(()), |slot| Err(SlotError::AlreadyFree { slot }))
    }

    fn take_run(&mut self, start: u64, len: u64) -> Result<(), SlotError> {
        self.check(start, len)?;
        if let Some(slot) = (start..start + len).find(|slot| !self.free.contains(slot)) {
            return Err(SlotError::AlreadyUsed { slot });
        }
        (start..start + len).for_each(|slot| assert!(self.free.remove(&slot)));
        Ok(())
    }

    fn alloc(&mut self, hint: u64) -> Option<u64> {
        let hint = if hint < self.capacity { hint } else { 0 };
        let slot = *self.free.range(hint..).next().or(self.free.first())?;
        self.free.remove(&slot);
        Some(slot)
    }

    fn alloc_batch(&mut self, mut hint: u64, want: usize) -> Vec<u64> {
        let next = |_| {
            hint = self.alloc(hint)?;
            Some(hint)
        };
        (0..want).map_while(next).collect()
    }

    fn alloc_run(&mut self, len: u64, hint: u64) -> Option<u64> {
        let hint = if hint < self.capacity { hint } else { 0 };
        let start = self.find_run(len, hint).or_else(|| self.find_run(len, 0))?;
        self.take_run(start, len).expect("the run was found free");
        Some(start)
    }

    fn find_run(&self, len: u64, from: u64) -> Option<u64> {
        let (mut start, mut run) = (0, 0);
        for &slot in self.free.range(from..) {
            if run == 0 || slot != start + run {
                (start, run) = (slot, 0);
            }
            run += 1;
            if run == len {
                return Some(start);
            }
        }
        None
    }
}

#[derive(Debug, Clone)]
enum Op {
    Free(u64),
    Take(u64),
    FreeRun(u64, u64),
    TakeRun(u64, u64),
    Alloc(u64),
    AllocBatch(u64, usize),
    AllocRun(u64, u64),
    Reload,
}

/// Slots all over the tree, around the edges of nodes, and a few beyond the end.
fn slots(capacity: u64) -> impl Strategy<Value = u64> + Clone {
    let edges = (0..=capacity / 64, 0..4_u64).prop_map(|(node, by)| (node * 64 + by).max(2) - 2);
    prop_oneof![4 => 0..capacity, 4 => edges, 1 => capacity - 1..capacity + 2, 1 => Just(u64::MAX)]
}

fn ops(capacity: u64) -> impl Strategy<Value = Op> {
    let slot = slots(capacity);
    let len = prop_oneof![0..6_u64, 60..70_u64, 1..300_u64, 0..=capacity, Just(u64::MAX)];
    let run = (slot.clone(), len);
    prop_oneof![
        1 => slot.clone().prop_map(Op::Free),
        1 => slot.clone().prop_map(Op::Take),
        2 => run.clone().prop_map(|(start, len)| Op::FreeRun(start, len)),
        2 => run.clone().prop_map(|(start, len)| Op::TakeRun(start, len)),
        2 => slot.clone().prop_map(Op::Alloc),
        2 => (slot, 0..200_usize).prop_map(|(hint, want)| Op::AllocBatch(hint, want)),
        2 => run.prop_map(|(hint, len)| Op::AllocRun(len, hint)),
        1 => Just(Op::Reload),
    ]
}

/// Does the same to tree and model; their answers must agree.
fn step<T: Slots>(tree: &mut T, model: &mut Model, op: &Op) -> Result<(), TestCaseError> {
    match *op {
        Op::Free(slot) => prop_assert_eq!(tree.free(slot), model.free_run(slot, 1, None)),
        Op::Take(slot) => prop_assert_eq!(tree.take(slot), model.take_run(slot, 1)),
        Op::FreeRun(start, len) => {
            let expected = model.free_run(start, len, T::FREES_IN_PART);
            prop_assert_eq!(tree.free_run(start, len), expected);
        }
        Op::TakeRun(start, len) => {
            prop_assert_eq!(tree.take_run(start, len), model.take_run(start, len));
        }
        Op::Alloc(hint) => prop_assert_eq!(tree.alloc(hint), model.alloc(hint)),
        Op::AllocBatch(hint, want) => {
            prop_assert_eq!(tree.alloc_batch(hint, want), model.alloc_batch(hint, want));
        }
        Op::AllocRun(len, hint) => {
            prop_assert_eq!(tree.alloc_run(len, hint), model.alloc_run(len, hint));
        }
        Op::Reload => tree.reload(),
    }
    prop_assert_eq!(tree.free_count(), model.free.len() as u64);
    Ok(())
}

/// State of a test's tree at the start.
#[derive(Debug, Clone, Copy)]
enum Start {
    Used,
    Free,
    /// Every n-th slot is used, from 0 on.
    Sieve(u64),
}

/// Runs `cases` random histories on a tree of `capacity` slots against the model.
fn compare<T: Slots>(capacity: u64, cases: u32) {
    let start =
        prop_oneof![Just(Start::Used), Just(Start::Free), (2..100_u64).prop_map(Start::Sieve)];
    let history = (start, prop::collection::vec(ops(capacity), 1..60));
    let config = Config { failure_persistence: None, ..Config::with_cases(cases) };
    let result = TestRunner::new(config).run(&history, |(start, ops)| {
        let (mut tree, mut model) = (T::new(capacity), Model { capacity, free: BTreeSet::new() });
        if !matches!(start, Start::Used) {
            step(&mut tree, &mut model, &Op::FreeRun(0, capacity))?;
        }
        if let Start::Sieve(every) = start {
            for slot in (0..capacity).step_by(index(every)) {
                step(&mut tree, &mut model, &Op::Take(slot))?;
            }
        }
        for op in &ops {
            step(&mut tree, &mut model, op)?;
        }
        prop_assert_eq!(tree.wrong_hints(), 0);
        for slot in 0..capacity + 1 {
            prop_assert_eq!(tree.is_free(slot), model.free.contains(&slot), "slot {}", slot);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("capacity {capacity}: {error}");
    }
}

fn compare_all<T: Slots>() {
    for capacity in [1, 7, 8, 9, 63, 64, 65, 512, 513] {
        compare::<T>(capacity, 300);
    }
    for capacity in [4096, 4097] {
        compare::<T>(capacity, 100);
    }
    compare::<T>(262_145, 12);
}

#[test]
fn byte_tree_agrees_with_a_set() {
    compare_all::<ByteTree>();
}

#[test]
fn slot_tree_agrees_with_a_set() {
    compare_all::<SlotTree>();
}

#[test]
fn lower_order_trees_agree_with_set() {
    for capacity in [1, 2, 3, 5, 8, 64, 300] {
        compare::<WordTree<1>>(capacity, 150);
        compare::<WordTree<2>>(capacity, 150);
        compare::<WordTree<3>>(capacity, 150);
    }
}

/// A tree without slots can neither allocate nor free.
#[test]
fn empty_tree_has_no_slots() {
    fn check<T: Slots>() {
        let mut tree = T::new(0);
        assert_eq!(tree.free_run(0, 0), Ok(()));
        let refused = Err(SlotError::OutOfRange { start: 0, len: 1, capacity: 0 });
        assert_eq!((tree.free(0), tree.take(0)), (refused, refused));
        assert_eq!((tree.alloc(0), tree.alloc_run(1, 0), tree.alloc_run(0, 0)), (None, None, None));
        assert_eq!(tree.alloc_batch(0, 5), []);
        tree.reload();
        assert_eq!((tree.free_count(), tree.is_free(0)), (0, false));
    }
    check::<ByteTree>();
    check::<SlotTree>();
}

/// Hints that mark empty words as nonempty, as races can leave them: they cost a visit, never a
/// slot, and are cleared by the next visit.
#[test]
fn stale_hints_cost_no_slot() {
    // 300 slots: levels of 75, 19, 5 and 2 words, and the root.
    for (level, words) in [75, 19, 5, 2].into_iter().enumerate() {
        let tree = WordTree::<2>::new(300);
        tree.free_run(7, 3).unwrap();
        tree.free(290).unwrap();
        (0..words).for_each(|word| tree.raise(level, word));
        assert!(tree.wrong_hints().1 > 0 || words == 2);
        assert_eq!(tree.alloc_run(1, 20), Some(290));
        assert_eq!(tree.alloc_run(4, 0), None);
        assert_eq!(tree.alloc_run(2, 100), Some(7));
        tree.free(290).unwrap();
        (0..words).for_each(|word| tree.raise(level, word));
        assert_eq!([10, 290, 5].map(|hint| tree.alloc(hint)), [Some(290), Some(9), None]);
        assert_eq!(tree.wrong_hints(), (0, 0));
    }
}

/// The figures in the documentation, for 32 GiB of 4 KiB slots.
#[test]
fn memory_matches_documentation() {
    let slots = (32 << 30) / 4096;
    assert_eq!(ByteTree::new(slots).memory_bytes(), 1_198_373);
    assert_eq!(SlotTree::new(slots).memory_bytes(), 1_065_224);
}

/// 2 GiB of leaves must cost only the used pages. The bound is wide, because other tests run in
/// parallel.
#[test]
fn memory_grows_with_used_slots() {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let before = resident();
    let tree = SlotTree::new(1 << 34);
    for slot in [0, 1 << 33, (1 << 34) - 1] {
        tree.free(slot).unwrap();
    }
    assert_eq!(tree.alloc(1), Some(1 << 33));
    assert_eq!(tree.alloc(1), Some((1 << 34) - 1));
    assert_eq!(tree.alloc(1), Some(0));
    assert_eq!(tree.alloc(1), None);
    assert!(resident().saturating_sub(before) < 512 << 20);
}

#[test]
fn oversized_saved_words_are_refused() {
    let mut tree = SlotTree::new(65);
    assert_eq!(tree.load_words([1, 1]), Ok(()));
    assert_eq!(tree.words().collect::<Vec<_>>(), [1, 1]);
    let count = |found| Err(SlotError::WordCount { expected: 2, found });
    assert_eq!(tree.load_words([1]), count(1));
    assert_eq!(tree.load_words([1, 1, 0, 0]), count(3));
    let outside = |start, len| Err(SlotError::OutOfRange { start, len, capacity: 65 });
    assert_eq!(tree.set_word(1, 2), outside(64, 2));
    assert_eq!(tree.set_word(2, 0), outside(128, 0));
    assert_eq!(tree.set_word(u64::MAX, 1), outside(u64::MAX, 1));
    assert_eq!(tree.set_word(0, u64::MAX), Ok(()));
    assert_eq!(tree.set_word(1, 0), Ok(()));
    assert_eq!((tree.free_count(), tree.wrong_hints()), (64, (0, 0)));
    assert_eq!(tree.alloc(64), Some(0));
}

/// Records the owner of each slot, to catch a double allocation or a free by another thread.
struct SlotOwners(Vec<AtomicBool>);

impl SlotOwners {
    fn new(capacity: u64) -> Self {
        Self((0..capacity).map(|_| AtomicBool::new(false)).collect())
    }

    fn gain(&self, slot: u64) {
        let had = self.0[index(slot)].swap(true, Ordering::Relaxed);
        assert!(!had, "slot {slot} has two owners");
    }

    fn lose(&self, slot: u64) {
        let had = self.0[index(slot)].swap(false, Ordering::Relaxed);
        assert!(had, "slot {slot} had no owner");
    }
}

/// One thread's share of the stress: random calls with up to 100 slots held. Returns the slots held
/// at the end.
fn churn<const LOG: u32>(
    tree: &WordTree<LOG>,
    owned: &SlotOwners,
    calls: u64,
    seed: u64,
) -> Vec<u64> {
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
        (state >> 33) % below
    };
    let mut held: Vec<u64> = Vec::new();
    for _ in 0..calls {
        let old = held.len();
        let hint = random(tree.capacity() + 1);
        if held.len() >= 100 || random(2) == 0 {
            for _ in 0..random(8).min(held.len() as u64) {
                let at = index(random(held.len() as u64));
                let slot = held.swap_remove(at);
                owned.lose(slot);
                tree.free(slot).expect("the slot is this thread's");
            }
            continue;
        }
        match random(4) {
            0 => held.extend(tree.alloc(hint)),
            1 => drop(tree.alloc_batch(hint, index(random(9)), &mut held)),
            2 => {
                let len = 1 + random(5);
                held.extend(tree.alloc_run(len, hint).into_iter().flat_map(|at| at..at + len));
            }
            _ => held.extend(tree.take(hint).is_ok().then_some(hint)),
        }
        held[old..].iter().for_each(|&slot| owned.gain(slot));
    }
    held
}

/// `threads` threads fight over few slots; in the end every slot is owned or can be found.
fn stress<const LOG: u32>(capacity: u64, threads: u64) {
    let tree = WordTree::<LOG>::new(capacity);
    tree.free_run(0, capacity).expect("a new tree has no free slot");
    let owned = SlotOwners::new(capacity);
    let held: Vec<u64> = std::thread::scope(|scope| {
        let (tree, owned) = (&tree, &owned);
        let churn = |seed| scope.spawn(move || churn(tree, owned, 100_000 / threads, seed));
        let all: Vec<_> = (1..=threads).map(churn).collect();
        all.into_iter()
            .flat_map(|thread| thread.join().expect("the thread's checks hold"))
            .collect()
    });
    assert_eq!(tree.free_count() + held.len() as u64, capacity);
    assert_eq!(tree.wrong_hints().0, 0);
    for slot in held {
        owned.lose(slot);
        tree.free(slot).expect("the slot is this thread's");
    }
    for expected in 0..capacity {
        assert_eq!(tree.alloc(expected), Some(expected));
    }
    assert_eq!((tree.alloc(0), tree.free_count()), (None, 0));
}

#[test]
fn threads_never_share_a_slot() {
    stress::<6>(200, 4);
    stress::<6>(5000, 3);
    stress::<2>(100, 2);
    stress::<1>(67, 4);
}
