//! A slot tree that finds aligned runs in time independent of its size.
//!
//! In addition to the slots it has a second tree, of *regions*: aligned runs of the largest size.
//! Its bit for a region only steers the search; the slots' own words decide.
//!
//! # Protocol
//! - *raise*, by the thread that freed slots: read the region, and set its bit if all of it is
//!   free.
//! - *lower*, by the thread that took slots: clear the region's bit, **then read the region
//!   again**, and raise it if all of it is free.
//!
//! Invariant: while no call is in progress, an all-free region has its bit set (lemma G1 of
//! `docs/proofs.md`). A search for a run of a whole region takes as many steps as the tree of
//! regions has levels, and one for each region partly taken by a call in progress (G2).

use crate::SlotError;
use crate::slot_tree::WordTree;

/// A slot tree of order 64 with regions of 512 slots: 2 MiB of blocks of 4 KiB.
pub type RunTree = AlignedTree<6, 9>;

/// A set of free slots with aligned runs of up to `1 << REGION_LOG` slots. Nodes have `1 << LOG`
/// slots; a region is at least one node.
pub struct AlignedTree<const LOG: u32, const REGION_LOG: u32> {
    slots: WordTree<LOG>,
    regions: WordTree<LOG>,
}

impl<const LOG: u32, const REGION_LOG: u32> AlignedTree<LOG, REGION_LOG> {
    /// Slots of a region: the maximum length of [`AlignedTree::alloc_aligned`].
    pub const REGION: u64 = 1 << REGION_LOG;

    /// A tree of `capacity` used slots. Panics without address space for it.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        const { assert!(REGION_LOG >= LOG, "a region is at least a node") };
        Self { slots: WordTree::new(capacity), regions: WordTree::new(capacity >> REGION_LOG) }
    }

    /// The slots by themselves, to be asked and not to be changed.
    #[must_use]
    pub fn slots(&self) -> &WordTree<LOG> {
        &self.slots
    }

    /// As [`WordTree::free`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn free(&self, slot: u64) -> Result<(), SlotError> {
        self.slots.free(slot)?;
        // One word tells that the region is not all free, and spares a read of all its words.
        if self.slots.is_node_free(slot) {
            self.raise(slot >> REGION_LOG);
        }
        Ok(())
    }

    /// As [`WordTree::free_run`].
    ///
    /// # Errors
    /// As there.
    pub fn free_run(&self, start: u64, len: u64) -> Result<(), SlotError> {
        let freed = self.slots.free_run(start, len);
        // Also after an error: the slots of earlier words are free.
        self.for_regions(start, len, |region| self.raise(region));
        freed
    }

    /// As [`WordTree::take`].
    ///
    /// # Errors
    /// As there.
    pub fn take(&self, slot: u64) -> Result<(), SlotError> {
        self.take_run(slot, 1)
    }

    /// As [`WordTree::take_run`].
    ///
    /// # Errors
    /// As there.
    pub fn take_run(&self, start: u64, len: u64) -> Result<(), SlotError> {
        let taken = self.slots.take_run(start, len);
        // Also after an error: another thread may have lowered the region while some slots were
        // taken for a moment, and `lower` raises it again.
        self.for_regions(start, len, |region| self.lower(region));
        taken
    }

    /// As [`WordTree::alloc`].
    pub fn alloc(&self, hint: u64) -> Option<u64> {
        self.alloc_counted(hint, &mut 0)
    }

    /// As [`WordTree::alloc_counted`].
    pub fn alloc_counted(&self, hint: u64, visits: &mut u64) -> Option<u64> {
        let slot = self.slots.alloc_counted(hint, visits)?;
        self.lower(slot >> REGION_LOG);
        Some(slot)
    }

    /// As [`WordTree::alloc_batch`].
    pub fn alloc_batch(&self, hint: u64, want: usize, out: &mut Vec<u64>) -> usize {
        let before = out.len();
        let got = self.slots.alloc_batch(hint, want, out);
        let mut last = None;
        for &slot in &out[before..] {
            let region = slot >> REGION_LOG;
            // Slots of one region are mostly adjacent here, and one lower serves all of them.
            if last != Some(region) {
                self.lower(region);
                last = Some(region);
            }
        }
        got
    }

    /// As [`WordTree::alloc_run`]: of any length, at any place, and in time linear in the tree.
    pub fn alloc_run(&self, len: u64, hint: u64) -> Option<u64> {
        let start = self.slots.alloc_run(len, hint)?;
        self.for_regions(start, len, |region| self.lower(region));
        Some(start)
    }

    /// Takes `len` adjacent slots, a power of two up to a region, at a multiple of `len`, and
    /// returns the first: in the region of `hint` if it has such a run, else from an all-free
    /// region.
    ///
    /// `None` if `len` is invalid, or neither place has such a run. A run shorter than a region may
    /// still be free elsewhere.
    pub fn alloc_aligned(&self, len: u64, hint: u64) -> Option<u64> {
        if !len.is_power_of_two() || len > Self::REGION {
            return None;
        }
        // Short runs share the region of the hint, so other regions stay all free.
        if len < Self::REGION
            && let Some(start) = self.alloc_within(hint >> REGION_LOG, len)
        {
            return Some(start);
        }
        loop {
            // Taking the region's bit keeps other searches away, but not single allocations by
            // hint.
            let region = self.regions.alloc(hint >> REGION_LOG)?;
            let start = region << REGION_LOG;
            // Only the wanted slots: another thread may need the rest.
            if self.slots.take_run(start, len).is_ok() {
                self.lower(region);
                return Some(start);
            }
            // Another thread took slots first, or has freed them again since.
            self.lower(region);
        }
    }

    /// Takes an aligned run in `region`.
    fn alloc_within(&self, region: u64, len: u64) -> Option<u64> {
        let first = region << REGION_LOG;
        let end = (first + Self::REGION).min(self.slots.capacity());
        let mut start = first;
        while start + len <= end {
            // A read first: a failed take would hide free slots from other threads for a moment.
            if self.slots.is_run_free(start, len) && self.take_run(start, len).is_ok() {
                return Some(start);
            }
            start += len;
        }
        None
    }

    /// As [`WordTree::set_word`].
    ///
    /// # Errors
    /// As there.
    pub fn set_word(&mut self, number: u64, word: u64) -> Result<(), SlotError> {
        self.slots.set_word(number, word)?;
        let region = (number << LOG) >> REGION_LOG;
        if word == 0 {
            self.lower(region);
        } else {
            self.raise(region);
        }
        Ok(())
    }

    fn for_regions(&self, start: u64, len: u64, act: impl Fn(u64)) {
        if len > 0 {
            let last = start.saturating_add(len - 1) >> REGION_LOG;
            // After an error the range may leave the tree.
            (start >> REGION_LOG..=last.min(self.regions.capacity())).for_each(act);
        }
    }

    fn is_whole(&self, region: u64) -> bool {
        region < self.regions.capacity()
            && self.slots.is_run_free(region << REGION_LOG, Self::REGION)
    }

    fn raise(&self, region: u64) {
        if self.is_whole(region) {
            // Another thread may have raised it.
            let _ = self.regions.free(region);
        }
    }

    fn lower(&self, region: u64) {
        if self.regions.is_free(region) {
            // Another thread may have lowered it.
            let _ = self.regions.take(region);
        }
        // The second read: all of the region may be free again (G1).
        self.raise(region);
    }

    /// All-free regions without their bit: none while no call is in progress.
    #[cfg(test)]
    pub(crate) fn hidden_regions(&self) -> u64 {
        let regions = 0..self.regions.capacity();
        let is_hidden = |&region: &u64| self.is_whole(region) && !self.regions.is_free(region);
        regions.filter(is_hidden).count() as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Regions of 8 slots, in nodes of 4.
    type Small = AlignedTree<2, 3>;

    fn all_free(capacity: u64) -> Small {
        let tree = Small::new(capacity);
        tree.free_run(0, capacity).expect("a new tree has no free slot");
        tree
    }

    #[test]
    fn whole_regions_are_found_until_none_left() {
        let tree = all_free(30);
        assert_eq!(tree.alloc(9), Some(9));
        let found: Vec<u64> = std::iter::from_fn(|| tree.alloc_aligned(8, 0)).collect();
        assert_eq!(found, [0, 16], "the second is broken into, the last is not whole");
        tree.free(9).expect("it was taken");
        assert_eq!(tree.alloc_aligned(8, 0), Some(8));
        assert_eq!((tree.alloc_aligned(8, 0), tree.slots().free_count()), (None, 6));
    }

    #[test]
    fn short_run_prefers_region_of_hint() {
        let tree = all_free(24);
        assert_eq!(tree.alloc(1), Some(1));
        assert_eq!(tree.alloc_aligned(2, 0), Some(2));
        assert_eq!(tree.alloc_aligned(4, 0), Some(4));
        assert_eq!(tree.alloc_aligned(4, 0), Some(8), "out of the next region");
        assert_eq!(tree.alloc_aligned(4, 8), Some(12), "the rest of it");
        assert_eq!(tree.alloc_aligned(8, 0), Some(16));
        for wrong in [0, 3, 16] {
            assert_eq!(tree.alloc_aligned(wrong, 0), None, "{wrong}");
        }
        assert_eq!(tree.hidden_regions(), 0);
    }

    #[test]
    fn run_takers_never_hold_extra_slots() {
        let tree = RunTree::new(1024);
        tree.free_run(0, 512).expect("a new tree has no free slot");
        std::thread::scope(|scope| {
            let runs = scope.spawn(|| {
                for _ in 0..100_000 {
                    // The place of the hint is full, so the run is from an all-free region.
                    if let Some(start) = tree.alloc_aligned(16, 600) {
                        tree.free_run(start, 16).expect("it was taken");
                    }
                }
            });
            while !runs.is_finished() {
                let slot = tree.alloc(500).expect("sixteen slots are taken at most");
                tree.free(slot).expect("it was taken");
            }
        });
    }

    #[test]
    fn calls_in_any_order_hide_no_region() {
        use proptest::prelude::*;
        proptest!(|(calls in prop::collection::vec((0..6u8, 0..64u64, 0..4u32), 1..80))| {
            let tree = all_free(64);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (call, at, log) in calls {
                let len = 1u64 << log;
                let got = match call {
                    0 => tree.alloc(at).map(|slot| (slot, 1)),
                    1 => tree.alloc_aligned(len, at).map(|start| (start, len)),
                    2 => tree.alloc_run(len, at).map(|start| (start, len)),
                    3 => tree.take_run(at.min(64 - len), len).ok().map(|()| (at.min(64 - len), len)),
                    _ => {
                        if !taken.is_empty() {
                            let place = usize::try_from(at).expect("below 64") % taken.len();
                            let (start, len) = taken.swap_remove(place);
                            prop_assert!(tree.free_run(start, len).is_ok());
                        }
                        None
                    }
                };
                if let Some((start, len)) = got {
                    prop_assert!(call != 1 || start.is_multiple_of(len));
                    taken.push((start, len));
                }
                prop_assert_eq!(tree.hidden_regions(), 0);
            }
        });
    }
}
