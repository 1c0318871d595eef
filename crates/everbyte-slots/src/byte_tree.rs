//! The slot tree of order 8, one byte per node, for one thread.
//!
//! The tree of "Memory extension with a next-generation storage device": a bit of a leaf byte is
//! one slot, and a bit of an inner byte marks a child subtree with a free slot. A search goes down
//! along set bits from the lowest node with a free slot, so it visits at most two bytes per level.
//!
//! Invariants: an inner bit is set if and only if the child byte is not zero; bits beyond the
//! capacity are clear; `free` is the number of set leaf bits. Not for threads:
//! [`SlotTree`](crate::SlotTree) is.

use crate::SlotError;
use crate::run::{RunFinder, check_range, index, pieces, search_ranges, window};

/// Slots or children per node, as a power of two.
const LOG: u32 = 3;
/// Slots or children per node.
const ORDER: u64 = 1 << LOG;

/// A set of free slots out of `0..capacity`, order 8, one byte per node.
///
/// # Memory
/// `capacity / 8` bytes of leaves and a seventh of it for the nodes above. 32 GiB of 4 KiB slots
/// are 8 Mi slots, 8 levels and 1,198,373 bytes (1.14 MiB).
#[derive(Clone)]
pub struct ByteTree {
    capacity: u64,
    free: u64,
    /// `levels[0]` are the leaves; the last level is the root alone.
    levels: Vec<Vec<u8>>,
}

impl ByteTree {
    /// A tree of `capacity` used slots. The memory comes zeroed from the system and is touched
    /// only where slots are used. Panics if `capacity / 8` bytes cannot be allocated.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        let mut levels = Vec::new();
        let mut nodes = capacity;
        loop {
            nodes = nodes.div_ceil(ORDER).max(1);
            levels.push(vec![0; usize::try_from(nodes).expect("the tree exceeds memory")]);
            if nodes == 1 {
                return Self { capacity, free: 0, levels };
            }
        }
    }

    /// Slots in the tree, free or used.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Free slots.
    #[must_use]
    pub fn free_count(&self) -> u64 {
        self.free
    }

    /// Maximum number of bytes of the nodes (untouched pages take none).
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.levels.iter().map(Vec::len).sum()
    }

    /// Returns true if `slot` is free, and false for a slot outside the tree.
    #[must_use]
    pub fn is_free(&self, slot: u64) -> bool {
        slot < self.capacity && self.levels[0][index(slot >> LOG)] >> (slot % ORDER) & 1 == 1
    }

    /// Frees `slot`.
    ///
    /// # Errors
    /// The slot is free or not in the tree. The tree is unchanged.
    pub fn free(&mut self, slot: u64) -> Result<(), SlotError> {
        self.free_run(slot, 1)
    }

    /// Frees slots `start .. start + len`. An empty run has no effect.
    ///
    /// # Errors
    /// A slot is free or not in the tree. The tree is unchanged.
    pub fn free_run(&mut self, start: u64, len: u64) -> Result<(), SlotError> {
        check_range(start, len, self.capacity)?;
        // All slots are checked before the first change, so an error changes no slot.
        for (node, mask) in pieces(start, len, LOG) {
            let wrong = u64::from(self.levels[0][node]) & mask;
            if wrong != 0 {
                return Err(SlotError::AlreadyFree { slot: slot_at(node, wrong) });
            }
        }
        for (node, mask) in pieces(start, len, LOG) {
            self.mark_free(node, low_byte(mask));
        }
        self.free += len;
        Ok(())
    }

    /// Marks `slot` used.
    ///
    /// # Errors
    /// The slot is used or not in the tree. The tree is unchanged.
    pub fn take(&mut self, slot: u64) -> Result<(), SlotError> {
        self.take_run(slot, 1)
    }

    /// Marks slots `start .. start + len` used. An empty run has no effect.
    ///
    /// # Errors
    /// A slot is used or not in the tree. The tree is unchanged.
    pub fn take_run(&mut self, start: u64, len: u64) -> Result<(), SlotError> {
        check_range(start, len, self.capacity)?;
        // All slots are checked before the first change, so an error changes no slot.
        for (node, mask) in pieces(start, len, LOG) {
            let wrong = !u64::from(self.levels[0][node]) & mask;
            if wrong != 0 {
                return Err(SlotError::AlreadyUsed { slot: slot_at(node, wrong) });
            }
        }
        for (node, mask) in pieces(start, len, LOG) {
            self.mark_used(node, low_byte(mask));
        }
        self.free -= len;
        Ok(())
    }

    /// Takes the first free slot at or after `hint`, or the first of all if there is none behind
    /// it (a hint beyond the tree means 0). `None` if no slot is free.
    pub fn alloc(&mut self, hint: u64) -> Option<u64> {
        self.alloc_counted(hint, &mut 0)
    }

    /// As [`alloc`](Self::alloc), and adds the number of visited nodes to `visits`.
    pub fn alloc_counted(&mut self, hint: u64, visits: &mut u64) -> Option<u64> {
        *visits += 1;
        let hint = if hint < self.capacity { hint } else { 0 };
        let home = index(hint >> LOG);
        let ahead = u64::from(self.levels[0][home]) & window(hint - hint % ORDER, hint, u64::MAX);
        let slot = if ahead != 0 {
            slot_at(home, ahead)
        } else {
            let ahead = self.next_leaf(home + 1, visits);
            let node = ahead.or_else(|| self.next_leaf(0, visits))?;
            *visits += 1;
            slot_at(node, u64::from(self.levels[0][node]))
        };
        self.mark_used(index(slot >> LOG), 1 << (slot % ORDER));
        self.free -= 1;
        Some(slot)
    }

    /// Takes `len` adjacent slots and returns the first: the first such run at or after `hint`,
    /// else the first of all. `None` without such a run, or if `len` is 0.
    ///
    /// Takes time linear in the leaves with free slots.
    pub fn alloc_run(&mut self, len: u64, hint: u64) -> Option<u64> {
        if len == 0 || len > self.free {
            return None;
        }
        let hint = if hint < self.capacity { hint } else { 0 };
        let start = search_ranges(len, hint, self.capacity)
            .into_iter()
            .find_map(|(from, to)| self.find_run(from, to, len))?;
        for (node, mask) in pieces(start, len, LOG) {
            self.mark_used(node, low_byte(mask));
        }
        self.free -= len;
        Some(start)
    }

    /// The first run of `len` free slots within `from..to`.
    fn find_run(&self, from: u64, to: u64, len: u64) -> Option<u64> {
        let mut finder = RunFinder::new(len);
        let mut node = index(from >> LOG);
        loop {
            let base = (node as u64) << LOG;
            if base >= to {
                return None;
            }
            let leaf = u64::from(self.levels[0][node]) & window(base, from, to);
            if let Some(start) = finder.feed(base, leaf, 8) {
                return Some(start);
            }
            // Only an empty leaf allows a jump: a run may continue in the next leaf.
            node = if leaf == 0 { self.next_leaf(node + 1, &mut 0)? } else { node + 1 };
        }
    }

    /// The first leaf at or after `from` with a free slot. Adds the number of visited inner nodes
    /// to `visits`.
    fn next_leaf(&self, from: usize, visits: &mut u64) -> Option<usize> {
        let mut at = from;
        for (level, nodes) in self.levels.iter().enumerate().skip(1) {
            let byte = nodes.get(at >> LOG)? & (0xff << (at % 8));
            *visits += 1;
            if byte != 0 {
                at = at >> LOG << LOG | byte.trailing_zeros() as usize;
                for below in self.levels[1..level].iter().rev() {
                    *visits += 1;
                    at = at << LOG | below[at].trailing_zeros() as usize;
                }
                return Some(at);
            }
            at = (at >> LOG) + 1;
        }
        (self.levels.len() == 1 && from == 0 && self.levels[0][0] != 0).then_some(0)
    }

    /// Sets the bits of `mask` in a leaf, and the bits above it that follow.
    fn mark_free(&mut self, mut node: usize, mut mask: u8) {
        for nodes in &mut self.levels {
            let was = nodes[node];
            nodes[node] |= mask;
            // The node had a free slot before, so the bits above it are set.
            if was != 0 {
                return;
            }
            (node, mask) = (node >> LOG, 1 << (node % 8));
        }
    }

    /// Clears the bits of `mask` in a leaf, and the bits above it that follow.
    fn mark_used(&mut self, mut node: usize, mut mask: u8) {
        for nodes in &mut self.levels {
            nodes[node] &= !mask;
            // The node has another free slot, so the bits above it stay.
            if nodes[node] != 0 {
                return;
            }
            (node, mask) = (node >> LOG, 1 << (node % 8));
        }
    }

    /// Number of nodes with a wrong bit in the parent: 0.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn wrong_nodes(&self) -> usize {
        let wrong = |child: usize, node: u8, parents: &[u8]| {
            (parents[child >> LOG] >> (child % 8) & 1 == 1) != (node != 0)
        };
        let edges = self.levels.iter().zip(&self.levels[1..]);
        edges
            .map(|(nodes, parents)| {
                nodes.iter().enumerate().filter(|&(at, &node)| wrong(at, node, parents)).count()
            })
            .sum()
    }
}

impl std::fmt::Debug for ByteTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByteTree")
            .field("capacity", &self.capacity)
            .field("free", &self.free_count())
            .finish_non_exhaustive()
    }
}

/// The lowest slot of the leaf `node` set in `bits`, a nonzero mask.
fn slot_at(node: usize, bits: u64) -> u64 {
    (node as u64) << LOG | u64::from(bits.trailing_zeros())
}

/// A leaf's mask as a byte.
#[expect(clippy::cast_possible_truncation, reason = "masks of order 8 have no higher bits")]
fn low_byte(mask: u64) -> u8 {
    mask as u8
}
