//! Free slots of a store: a slot tree, or a custom allocator.
//!
//! Invariant: a caller owns an allocated slot until it frees it. Callable in signal handlers: it
//! allocates no memory and has no lock. Has no contents of slots.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use everbyte_slots::RunTree;

/// Maximum number of slots in the state of a unit.
pub(crate) const SLOTS_MAX: u64 = 1 << 36;

/// The number of a slot in its store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotNo(pub u64);

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

    /// Allocates `len` adjacent slots, a power of two up to 512. `None` if a search finds none soon.
    fn alloc_run(&self, _len: u64, _hint: SlotNo) -> Option<SlotNo> {
        None
    }

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
    Words(Box<RunTree>),
    Custom(Box<dyn FreeSlots>),
}

impl SlotMap {
    /// A map of `capacity` slots, all used.
    pub(crate) fn new(capacity: u64) -> Self {
        Self::of(Tree::Words(Box::new(RunTree::new(capacity))), capacity)
    }

    /// Slots of a custom allocator, in its present state.
    pub(crate) fn custom(slots: Box<dyn FreeSlots>) -> Self {
        let capacity = slots.capacity();
        Self::of(Tree::Custom(slots), capacity)
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
            Tree::Words(tree) => tree.slots().free_count(),
            Tree::Custom(slots) => slots.free_count(),
        }
    }

    pub(crate) fn searches(&self) -> SlotSearches {
        SlotSearches { searches: self.searches.load(Relaxed), visits: self.visits.load(Relaxed) }
    }

    /// True if allocated runs begin at multiples of their length.
    pub(crate) fn aligns_runs(&self) -> bool {
        matches!(self.tree, Tree::Words(_))
    }

    /// Takes the next free slot at or after `hint`, else the first.
    pub(crate) fn alloc(&self, hint: SlotNo) -> Option<SlotNo> {
        let mut visits = 0;
        let slot = match &self.tree {
            Tree::Words(tree) => tree.alloc_counted(hint.0, &mut visits),
            Tree::Custom(slots) => slots.alloc(hint, &mut visits).map(|slot| slot.0),
        };
        self.searches.fetch_add(1, Relaxed);
        self.visits.fetch_add(visits, Relaxed);
        slot.map(SlotNo)
    }

    /// Takes `len` adjacent slots, a power of two up to 512, if some are easily found.
    pub(crate) fn alloc_run(&self, len: u64, hint: SlotNo) -> Option<SlotNo> {
        let start = match &self.tree {
            Tree::Words(tree) => tree.alloc_aligned(len, hint.0),
            Tree::Custom(slots) => slots.alloc_run(len, hint).map(|slot| slot.0),
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
            Tree::Words(tree) => tree.free_run(start.0, len),
            Tree::Custom(slots) => {
                (start.0..start.0 + len).for_each(|slot| slots.free(SlotNo(slot)));
                Ok(())
            }
        };
        debug_assert!(freed.is_ok(), "a slot was freed twice: {freed:?}");
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
    fn slots_and_runs_are_allocated_and_freed() {
        let map = SlotMap::new(2048);
        assert_eq!(map.alloc(SlotNo(0)), None, "new slots are used");
        map.free_run(SlotNo(0), 2048);
        assert_eq!(map.alloc(SlotNo(700)), Some(SlotNo(700)));
        let run = map.alloc_run(16, SlotNo(0)).unwrap();
        assert_eq!(map.free_count(), 2048 - 17);
        for slot in run.0..run.0 + 16 {
            map.free(SlotNo(slot));
        }
        map.free(SlotNo(700));
        assert_eq!(map.free_count(), 2048);
    }

    #[test]
    fn search_in_nearly_full_map_visits_few_nodes() {
        const SLOTS: u64 = 8 << 20;
        const LEVELS: u64 = 4;
        let map = SlotMap::new(SLOTS);
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
        assert!(searches == 1000 && visits <= searches * 2 * LEVELS, "{visits} in {searches}");
    }
}
