//! Allocators of slots.
//!
//! The linear allocator follows the description of Linux 3.14 for a rotating swap device: it searches for 256 adjacent
//! free slots and takes them one by one. Without such a cluster it searches on from the last slot, byte by byte.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};

use everbyte_slots::{ByteTree, RunTree};
use everbyte_swap::{FreeSlots, SlotNo};
use hibitset::BitSet;
use roaring::RoaringBitmap;
use serde::{Deserialize, Serialize};

/// Slots that are taken one after the other once they were found.
const CLUSTER: usize = 256;

/// Free slots, as swapping needs them. Several threads call it at once.
pub(super) trait Allocator: Send + Sync {
    /// Takes a free slot; `None` if there is none.
    fn alloc(&self) -> Option<u64>;

    /// Frees a slot that is taken.
    fn free(&self, slot: u64);

    /// Bytes of DRAM.
    fn memory_bytes(&self) -> u64;

    /// Slots that were looked at since the last call, where that is counted.
    fn visits(&self) -> Option<u64> {
        None
    }
}

/// A way to find free slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Way {
    Linear,
    Order8,
    Order64,
    Stack,
    /// The crate of that name: a tree of words, searched from the first slot.
    Hibitset,
    /// The crate of that name: a compressed bitmap, searched from the first slot.
    Roaring,
}

/// Slots that hibitset can tell apart.
const HIBITSET_MAX: u64 = 1 << 24;

impl Way {
    pub(super) const ALL: [Self; 6] =
        [Self::Linear, Self::Order8, Self::Order64, Self::Stack, Self::Hibitset, Self::Roaring];
    /// Those that take no memory while they are used, as a pager needs it.
    pub(super) const IN_PAGER: [Self; 3] = [Self::Linear, Self::Order8, Self::Order64];

    /// True for those that count the slots that they look at.
    pub(super) fn counts_visits(self) -> bool {
        self == Self::Linear
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Linear => "linux-3.14-linear",
            Self::Order8 => "order8",
            Self::Order64 => "order64",
            Self::Stack => "free-stack",
            Self::Hibitset => "hibitset",
            Self::Roaring => "roaring",
        }
    }

    /// Slots that it can have at most.
    pub(super) fn most(self) -> u64 {
        match self {
            Self::Hibitset => HIBITSET_MAX,
            Self::Roaring => u64::from(u32::MAX),
            Self::Linear | Self::Order8 | Self::Order64 | Self::Stack => u64::MAX,
        }
    }

    /// `slots` slots, all free.
    pub(super) fn make(self, slots: u64) -> Box<dyn Allocator> {
        match self {
            Self::Linear => Box::new(Mutex::new(Linear::new(slots))),
            Self::Order8 => Box::new(PaperTree::new(slots)),
            Self::Order64 => {
                let tree = RunTree::new(slots);
                tree.free_run(0, slots).expect("new slots are used");
                Box::new(Order64(tree))
            }
            Self::Stack => Box::new(Mutex::new((0..slots).rev().collect::<Vec<u64>>())),
            Self::Hibitset => {
                let slots = u32::try_from(slots).expect("no more than it can have");
                Box::new(Mutex::new(Hierarchical { free: (0..slots).collect(), slots }))
            }
            Self::Roaring => {
                let slots = u32::try_from(slots).expect("no more than it can have");
                let mut free = RoaringBitmap::new();
                free.insert_range(0..slots);
                Box::new(Mutex::new(free))
            }
        }
    }
}

/// A byte for each slot, and where to look.
struct Linear {
    used: Vec<bool>,
    lowest: usize,
    highest: usize,
    taken: usize,
    /// Slots of the present cluster that are left, and the next of them.
    cluster_left: usize,
    cluster_next: usize,
    visits: u64,
}

impl Linear {
    fn new(slots: u64) -> Self {
        let slots = place(slots);
        Self {
            used: vec![false; slots],
            lowest: 0,
            highest: slots - 1,
            taken: 0,
            cluster_left: 0,
            cluster_next: 0,
            visits: 0,
        }
    }

    /// The first of 256 adjacent free slots.
    fn find_cluster(&mut self) -> Option<usize> {
        let mut length = 0;
        for slot in self.lowest..=self.highest {
            self.visits += 1;
            length = if self.used[slot] { 0 } else { length + 1 };
            if length == CLUSTER {
                return Some(slot + 1 - CLUSTER);
            }
        }
        None
    }

    /// The first free slot from `from` on, and then from the lowest.
    fn scan(&mut self, from: usize) -> Option<usize> {
        for slot in (from..=self.highest).chain(self.lowest..from.min(self.highest + 1)) {
            self.visits += 1;
            if !self.used[slot] {
                return Some(slot);
            }
        }
        None
    }

    fn alloc(&mut self) -> Option<usize> {
        if self.taken == self.used.len() {
            return None;
        }
        if self.cluster_left == 0 {
            self.cluster_left = CLUSTER;
            if self.used.len() - self.taken >= CLUSTER
                && let Some(start) = self.find_cluster()
            {
                self.cluster_next = start;
            }
        }
        self.cluster_left -= 1;
        let from = if self.cluster_next > self.highest { self.lowest } else { self.cluster_next };
        let slot = self.scan(from)?;
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

impl Allocator for Mutex<Linear> {
    fn alloc(&self) -> Option<u64> {
        self.lock().expect("no holder panics").alloc().map(|slot| slot as u64)
    }

    fn free(&self, slot: u64) {
        self.lock().expect("no holder panics").free(place(slot));
    }

    fn memory_bytes(&self) -> u64 {
        self.lock().expect("no holder panics").used.len() as u64
    }

    fn visits(&self) -> Option<u64> {
        Some(std::mem::take(&mut self.lock().expect("no holder panics").visits))
    }
}

/// The paper's tree, searched from the last slot on, also as the allocator of a region's space.
pub(super) struct PaperTree {
    tree: Mutex<ByteTree>,
    next: AtomicU64,
}

impl PaperTree {
    /// `slots` slots, all free.
    pub(super) fn new(slots: u64) -> Self {
        let mut tree = ByteTree::new(slots);
        tree.free_run(0, slots).expect("new slots are used");
        Self { tree: Mutex::new(tree), next: AtomicU64::new(0) }
    }
}

impl Allocator for PaperTree {
    fn alloc(&self) -> Option<u64> {
        let mut tree = self.tree.lock().expect("no holder panics");
        let slot = tree.alloc(self.next.load(Relaxed))?;
        self.next.store(slot + 1, Relaxed);
        Some(slot)
    }

    fn free(&self, slot: u64) {
        self.tree.lock().expect("no holder panics").free(slot).expect("a slot is freed once");
    }

    fn memory_bytes(&self) -> u64 {
        self.tree.lock().expect("no holder panics").memory_bytes() as u64
    }
}

/// Takes a lock without sleeping, because a signal handler must not sleep.
pub(super) fn hold<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        if let Ok(inside) = lock.try_lock() {
            return inside;
        }
        std::thread::yield_now();
    }
}

impl FreeSlots for PaperTree {
    fn capacity(&self) -> u64 {
        hold(&self.tree).capacity()
    }

    fn free_count(&self) -> u64 {
        hold(&self.tree).free_count()
    }

    fn alloc(&self, hint: SlotNo, visits: &mut u64) -> Option<SlotNo> {
        hold(&self.tree).alloc_counted(hint.0, visits).map(SlotNo)
    }

    fn alloc_run(&self, len: u64, hint: SlotNo) -> Option<SlotNo> {
        let mut tree = hold(&self.tree);
        // In a nearly full map the search would take time linear in its leaves.
        let has_room = tree.free_count() > tree.capacity() / 8;
        has_room.then(|| tree.alloc_run(len, hint.0)).flatten().map(SlotNo)
    }

    fn free(&self, slot: SlotNo) {
        hold(&self.tree).free(slot.0).expect("a slot is freed once");
    }
}

/// Ours, without a lock; each thread searches from the last slot that it got.
struct Order64(RunTree);

thread_local! {
    static NEXT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Allocator for Order64 {
    fn alloc(&self) -> Option<u64> {
        let slot = self.0.alloc(NEXT.get())?;
        NEXT.set(slot + 1);
        Some(slot)
    }

    fn free(&self, slot: u64) {
        self.0.free(slot).expect("a slot is freed once");
    }

    fn memory_bytes(&self) -> u64 {
        self.0.slots().memory_bytes() as u64
    }
}

/// The floor of time: the last slot that was freed, wherever it is.
impl Allocator for Mutex<Vec<u64>> {
    fn alloc(&self) -> Option<u64> {
        self.lock().expect("no holder panics").pop()
    }

    fn free(&self, slot: u64) {
        self.lock().expect("no holder panics").push(slot);
    }

    fn memory_bytes(&self) -> u64 {
        8 * self.lock().expect("no holder panics").capacity() as u64
    }
}

/// A bit set of the crate hibitset; bits are free slots.
struct Hierarchical {
    free: BitSet,
    slots: u32,
}

impl Allocator for Mutex<Hierarchical> {
    fn alloc(&self) -> Option<u64> {
        let free = &mut self.lock().expect("no holder panics").free;
        let slot = (&*free).into_iter().next()?;
        free.remove(slot);
        Some(u64::from(slot))
    }

    fn free(&self, slot: u64) {
        let slot = u32::try_from(slot).expect("it was handed out");
        assert!(!self.lock().expect("no holder panics").free.add(slot), "a slot is freed once");
    }

    /// Four layers of words, each with a bit for a word of the layer below; the crate does not tell.
    fn memory_bytes(&self) -> u64 {
        let slots = u64::from(self.lock().expect("no holder panics").slots);
        (1..=4).map(|layer| 8 * slots.div_ceil(1 << (6 * layer))).sum()
    }
}

/// Members are free slots.
impl Allocator for Mutex<RoaringBitmap> {
    fn alloc(&self) -> Option<u64> {
        let mut free = self.lock().expect("no holder panics");
        let slot = free.min()?;
        free.remove(slot);
        Some(u64::from(slot))
    }

    fn free(&self, slot: u64) {
        let slot = u32::try_from(slot).expect("it was handed out");
        assert!(self.lock().expect("no holder panics").insert(slot), "a slot is freed once");
    }

    /// The crate's own figure.
    fn memory_bytes(&self) -> u64 {
        let free = self.lock().expect("no holder panics");
        let found = free.statistics();
        found.n_bytes_array_containers
            + found.n_bytes_run_containers
            + found.n_bytes_bitset_containers
    }
}

fn place(slot: u64) -> usize {
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
            let all: BTreeSet<u64> = std::iter::from_fn(|| slots.alloc()).collect();
            assert_eq!(all, (0..1000).collect(), "{way:?}");
            for slot in [999, 3, 500, 0] {
                slots.free(slot);
            }
            let again: BTreeSet<u64> = std::iter::from_fn(|| slots.alloc()).collect();
            assert_eq!(again, BTreeSet::from([0, 3, 500, 999]), "{way:?}");
        }
    }

    #[test]
    fn linear_search_prefers_clusters() {
        let mut linear = Linear::new(4096);
        for slot in 0..4096 {
            assert_eq!(linear.alloc(), Some(slot));
        }
        (0..4096).step_by(2).for_each(|slot| linear.free(slot));
        linear.visits = 0;
        linear.cluster_left = 0;
        assert!(linear.alloc().is_some());
        assert!(linear.visits >= 4095, "half are free, and no two are adjacent");
        linear.visits = 0;
        assert!(linear.alloc().is_some());
        assert!(linear.visits <= 2, "within a cluster it goes on where it was");
    }
}
