//! Free slots of a store: a slot tree of order 64 or 8, or a custom allocator.
//!
//! Invariant: a caller owns an allocated slot until it frees it. Callable in signal handlers: it
//! allocates no memory, and the lock of the tree of order 8 is never held over an access to a
//! region. Has no contents of slots.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, TryLockError};

use everbyte_slots::{ByteTree, RunTree};

/// Maximum number of slots in the state of a unit.
pub(crate) const SLOTS_MAX: u64 = 1 << 36;

/// The number of a slot in its store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotNo(pub u64);

/// The tree of free slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SlotOrder {
    /// Order 8, a byte per node, for one thread at a time: the tree of "Memory extension with a
    /// next-generation storage device".
    Order8,
    /// Order 64, a word per node, lock-free.
    #[default]
    Order64,
}

/// Searches for single free slots and their cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlotSearches {
    /// Searches.
    pub searches: u64,
    /// Visited nodes of the tree.
    pub visits: u64,
}

/// A custom allocator of slots, for comparisons.
///
/// # Contract
/// - A caller owns an allocated slot until it frees it.
/// - Every method runs in signal handlers too: none allocates, sleeps on a lock or panics, or touches a
///   region's memory.
pub trait FreeSlots: Send + Sync + 'static {
    /// Slots, free and used.
    fn capacity(&self) -> u64;

    /// Free slots; for a moment it may be too many, never too few.
    fn free_count(&self) -> u64;

    /// Allocates a free slot and adds the visited nodes to `visits`. `None` if no slot is free.
    fn alloc(&self, hint: SlotNo, visits: &mut u64) -> Option<SlotNo>;

    /// Frees a slot owned by the caller.
    fn free(&self, slot: SlotNo);
}

/// The free slots of a store.
pub(crate) struct SlotMap {
    tree: Tree,
    capacity: u64,
    searches: AtomicU64,
    visits: AtomicU64,
}

enum Tree {
    Order8(Mutex<ByteTree>),
    Order64(Box<RunTree>),
    Other(Box<dyn FreeSlots>),
}

impl SlotMap {
    /// A map of `capacity` slots, all used.
    pub(crate) fn new(order: SlotOrder, capacity: u64) -> Self {
        let tree = match order {
            SlotOrder::Order8 => Tree::Order8(Mutex::new(ByteTree::new(capacity))),
            SlotOrder::Order64 => Tree::Order64(Box::new(RunTree::new(capacity))),
        };
        Self::of(tree, capacity)
    }

    /// Slots of a custom allocator, in its present state.
    pub(crate) fn other(slots: Box<dyn FreeSlots>) -> Self {
        let capacity = slots.capacity();
        Self::of(Tree::Other(slots), capacity)
    }

    fn of(tree: Tree, capacity: u64) -> Self {
        Self { tree, capacity, searches: AtomicU64::new(0), visits: AtomicU64::new(0) }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Free slots; for a moment it may be too many, never too few.
    pub(crate) fn free_count(&self) -> u64 {
        match &self.tree {
            Tree::Order8(tree) => hold(tree).free_count(),
            Tree::Order64(tree) => tree.slots().free_count(),
            Tree::Other(slots) => slots.free_count(),
        }
    }

    pub(crate) fn searches(&self) -> SlotSearches {
        SlotSearches { searches: self.searches.load(Relaxed), visits: self.visits.load(Relaxed) }
    }

    /// True if allocated runs begin at multiples of their length.
    pub(crate) fn aligns_runs(&self) -> bool {
        matches!(self.tree, Tree::Order64(_))
    }

    /// Takes the next free slot at or after `hint`, else the first.
    pub(crate) fn alloc(&self, hint: SlotNo) -> Option<SlotNo> {
        let mut visits = 0;
        let slot = match &self.tree {
            Tree::Order8(tree) => hold(tree).alloc_counted(hint.0, &mut visits),
            Tree::Order64(tree) => tree.alloc_counted(hint.0, &mut visits),
            Tree::Other(slots) => slots.alloc(hint, &mut visits).map(|slot| slot.0),
        };
        self.searches.fetch_add(1, Relaxed);
        self.visits.fetch_add(visits, Relaxed);
        slot.map(SlotNo)
    }

    /// Takes `len` adjacent slots, a power of two up to 512, if some are easily found.
    pub(crate) fn alloc_run(&self, len: u64, hint: SlotNo) -> Option<SlotNo> {
        let start = match &self.tree {
            Tree::Order8(tree) => {
                let mut tree = hold(tree);
                // In a nearly full map the search would take time linear in its leaves.
                let has_room = tree.free_count() > self.capacity / 8;
                has_room.then(|| tree.alloc_run(len, hint.0)).flatten()
            }
            Tree::Order64(tree) => tree.alloc_aligned(len, hint.0),
            Tree::Other(_) => None,
        };
        start.map(SlotNo)
    }

    /// Frees a slot owned by the caller.
    pub(crate) fn free(&self, slot: SlotNo) {
        self.free_run(slot, 1);
    }

    /// Frees slots owned by the caller or never allocated.
    pub(crate) fn free_run(&self, start: SlotNo, len: u64) {
        let freed = match &self.tree {
            Tree::Order8(tree) => hold(tree).free_run(start.0, len),
            Tree::Order64(tree) => tree.free_run(start.0, len),
            Tree::Other(slots) => {
                (start.0..start.0 + len).for_each(|slot| slots.free(SlotNo(slot)));
                Ok(())
            }
        };
        debug_assert!(freed.is_ok(), "a slot was freed twice: {freed:?}");
    }
}

/// Takes the lock without sleeping, because a signal handler must not sleep.
fn hold(tree: &Mutex<ByteTree>) -> MutexGuard<'_, ByteTree> {
    loop {
        match tree.try_lock() {
            Ok(tree) => return tree,
            Err(TryLockError::Poisoned(tree)) => return tree.into_inner(),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

/// A number of units or slots as an index.
#[expect(clippy::cast_possible_truncation, reason = "usize is u64 on the only architecture")]
pub(crate) const fn index(number: u64) -> usize {
    number as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_hand_out_single_slots_and_runs() {
        for order in [SlotOrder::Order8, SlotOrder::Order64] {
            let map = SlotMap::new(order, 2048);
            assert_eq!(map.alloc(SlotNo(0)), None, "new slots are used");
            map.free_run(SlotNo(0), 2048);
            assert_eq!(map.alloc(SlotNo(700)), Some(SlotNo(700)));
            let run = map.alloc_run(16, SlotNo(0)).unwrap();
            assert_eq!(map.free_count(), 2048 - 17);
            for slot in run.0..run.0 + 16 {
                map.free(SlotNo(slot));
            }
            map.free(SlotNo(700));
            assert_eq!(map.free_count(), 2048, "{order:?}");
        }
    }

    #[test]
    fn a_search_in_a_nearly_full_map_looks_at_a_few_nodes_a_level() {
        const SLOTS: u64 = 8 << 20;
        for (order, levels) in [(SlotOrder::Order8, 8), (SlotOrder::Order64, 4)] {
            let map = SlotMap::new(order, SLOTS);
            for nth in 0..SLOTS / 1000 {
                map.free(SlotNo(nth * 1000));
            }
            let mut hint = 12_345;
            for _ in 0..1000 {
                let slot = map.alloc(SlotNo(hint)).unwrap();
                map.free(slot);
                hint = (hint * 48_271 + 1) % SLOTS;
            }
            let SlotSearches { searches, visits } = map.searches();
            let has_few = visits <= searches * 2 * levels;
            assert!(searches == 1000 && has_few, "{order:?}: {visits} in {searches}");
        }
    }
}
