//! Allocators of slots.
//!
//! The linear allocator follows the description of Linux 3.14 for a rotating swap device: it searches for 256
//! adjacent free slots and takes them one by one. Without such a cluster it continues the search after the last
//! slot, byte by byte.

use everbyte_slots::{ByteTree, RunTree};
use everbyte_swap::{FreeSlots, SlotNo};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

/// Slots of a cluster. The linear allocator takes them in order.
const CLUSTER: usize = 256;

/// A way to find free slots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) enum Way {
    Linear,
    /// The paper's tree.
    Order8,
    /// The tree of regions, without a lock.
    Order64,
    /// The last freed slot: the floor of time.
    Stack,
}

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::Linear, Self::Order8, Self::Order64, Self::Stack];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Linear => "linux-3.14-linear",
            Self::Order8 => "order8",
            Self::Order64 => "order64",
            Self::Stack => "free-stack",
        }
    }

    /// Returns an allocator of `slots` free slots.
    pub(super) fn make(self, slots: u64) -> Allocator {
        match self {
            Self::Linear => Allocator::Linear(Mutex::new(Linear::new(slots))),
            Self::Order8 => Allocator::Order8(PaperTree::new(slots)),
            Self::Order64 => {
                let tree = RunTree::new(slots);
                tree.free_run(0, slots).expect("new slots are used");
                Allocator::Order64(Box::new(tree))
            }
            Self::Stack => Allocator::Stack(Mutex::new((0..slots).rev().collect())),
        }
    }
}

/// Free slots. Several threads can call it at the same time.
pub(super) enum Allocator {
    Linear(Mutex<Linear>),
    Order8(PaperTree),
    Order64(Box<RunTree>),
    Stack(Mutex<Vec<u64>>),
}

impl Allocator {
    /// Takes a free slot, and adds the inspected nodes or slots to `visits`. The trees search from `hint` on.
    pub(super) fn alloc(&self, hint: u64, visits: &mut u64) -> Option<u64> {
        match self {
            Self::Linear(slots) => slots.lock().alloc(visits).map(|slot| slot as u64),
            Self::Order8(tree) => tree.0.lock().alloc_counted(hint, visits),
            Self::Order64(tree) => tree.alloc_counted(hint, visits),
            Self::Stack(slots) => slots.lock().pop(),
        }
    }

    /// Frees a taken slot.
    pub(super) fn free(&self, slot: u64) {
        match self {
            Self::Linear(slots) => slots.lock().free(index(slot)),
            Self::Order8(tree) => tree.0.lock().free(slot).expect("a slot is freed once"),
            Self::Order64(tree) => tree.free(slot).expect("a slot is freed once"),
            Self::Stack(slots) => slots.lock().push(slot),
        }
    }

    /// Bytes of DRAM.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Linear(slots) => slots.lock().used.len() as u64,
            Self::Order8(tree) => tree.0.lock().memory_bytes() as u64,
            Self::Order64(tree) => tree.slots().memory_bytes() as u64,
            Self::Stack(slots) => 8 * slots.lock().capacity() as u64,
        }
    }
}

/// The paper's tree, also as the allocator of a region's space.
pub(super) struct PaperTree(Mutex<ByteTree>);

impl PaperTree {
    /// Returns a tree of `slots` free slots.
    pub(super) fn new(slots: u64) -> Self {
        let mut tree = ByteTree::new(slots);
        tree.free_run(0, slots).expect("new slots are used");
        Self(Mutex::new(tree))
    }
}

/// Takes a lock without sleeping, because a signal handler must not sleep.
pub(super) fn hold<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        if let Some(inside) = lock.try_lock() {
            return inside;
        }
        std::thread::yield_now();
    }
}

impl FreeSlots for PaperTree {
    fn capacity(&self) -> u64 {
        hold(&self.0).capacity()
    }

    fn free_count(&self) -> u64 {
        hold(&self.0).free_count()
    }

    fn alloc(&self, hint: SlotNo, visits: &mut u64) -> Option<SlotNo> {
        hold(&self.0).alloc_counted(hint.0, visits).map(SlotNo)
    }

    fn alloc_run(&self, len: u64, hint: SlotNo) -> Option<SlotNo> {
        let mut tree = hold(&self.0);
        // In a nearly full map the search would take time linear in its leaves.
        let has_room = tree.free_count() > tree.capacity() / 8;
        has_room.then(|| tree.alloc_run(len, hint.0)).flatten().map(SlotNo)
    }

    fn free(&self, slot: SlotNo) {
        hold(&self.0).free(slot.0).expect("a slot is freed once");
    }
}

/// A byte for each slot, and the bounds of the search.
pub(super) struct Linear {
    used: Vec<bool>,
    lowest: usize,
    highest: usize,
    taken: usize,
    /// Remaining slots of the present cluster, and the next of them.
    cluster_left: usize,
    cluster_next: usize,
}

impl Linear {
    fn new(slots: u64) -> Self {
        let used = vec![false; index(slots)];
        let highest = used.len() - 1;
        Self { used, lowest: 0, highest, taken: 0, cluster_left: 0, cluster_next: 0 }
    }

    /// Returns the first of 256 adjacent free slots.
    fn find_cluster(&self, visits: &mut u64) -> Option<usize> {
        let mut length = 0;
        for slot in self.lowest..=self.highest {
            *visits += 1;
            length = if self.used[slot] { 0 } else { length + 1 };
            if length == CLUSTER {
                return Some(slot + 1 - CLUSTER);
            }
        }
        None
    }

    fn alloc(&mut self, visits: &mut u64) -> Option<usize> {
        if self.taken == self.used.len() {
            return None;
        }
        if self.cluster_left == 0 {
            self.cluster_left = CLUSTER;
            if self.used.len() - self.taken >= CLUSTER
                && let Some(start) = self.find_cluster(visits)
            {
                self.cluster_next = start;
            }
        }
        self.cluster_left -= 1;
        let from = if self.cluster_next > self.highest { self.lowest } else { self.cluster_next };
        // The first free slot from `from` on, else from the lowest.
        let mut order = (from..=self.highest).chain(self.lowest..from.min(self.highest + 1));
        let slot = order.find(|&slot| {
            *visits += 1;
            !self.used[slot]
        })?;
        self.used[slot] = true;
        self.taken += 1;
        self.cluster_next = slot + 1;
        if slot == self.lowest {
            self.lowest += 1;
        }
        if slot == self.highest {
            self.highest = self.highest.saturating_sub(1);
        }
        Some(slot)
    }

    fn free(&mut self, slot: usize) {
        assert!(std::mem::take(&mut self.used[slot]), "a slot is freed once");
        self.taken -= 1;
        self.lowest = self.lowest.min(slot);
        self.highest = self.highest.max(slot);
    }
}

fn index(slot: u64) -> usize {
    usize::try_from(slot).expect("there is memory for every slot")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn allocators_hand_out_each_slot_once() {
        for way in Way::ALL {
            let slots = way.make(1000);
            assert!(slots.memory_bytes() > 0, "{way:?}");
            let all: BTreeSet<u64> = std::iter::from_fn(|| slots.alloc(7, &mut 0)).collect();
            assert_eq!(all, (0..1000).collect(), "{way:?}");
            for slot in [999, 3, 500, 0] {
                slots.free(slot);
            }
            let again: BTreeSet<u64> = std::iter::from_fn(|| slots.alloc(7, &mut 0)).collect();
            assert_eq!(again, BTreeSet::from([0, 3, 500, 999]), "{way:?}");
        }
    }

    #[test]
    fn linear_search_prefers_clusters() {
        let mut linear = Linear::new(4096);
        for slot in 0..4096 {
            assert_eq!(linear.alloc(&mut 0), Some(slot));
        }
        (0..4096).step_by(2).for_each(|slot| linear.free(slot));
        linear.cluster_left = 0;
        let mut visits = 0;
        assert!(linear.alloc(&mut visits).is_some());
        assert!(visits >= 4095, "half are free, and no two are adjacent");
        let mut visits = 0;
        assert!(linear.alloc(&mut visits).is_some());
        assert!(visits <= 2, "within a cluster the search continues after the last slot");
    }
}
