//! Small objects: 64 to 2048 bytes, in blocks cut into equal cells.
//!
//! Owns the blocks it took from the allocator while any cell of them is in use. Invariants: a
//! cell's size is a power of two; a block holds cells of one size; the state is derived, so an
//! owner of small objects says `claim` for each of them when the pool is rebuilt. Nothing here is
//! persistent and nothing is quarantined: callers free a cell when no undo record can name it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use everbyte_media::{BLOCK, BlockNo, PoolOffset};
use parking_lot::Mutex;

use super::{Allocator, BlockRun};

/// Smallest cell in bytes: one line.
pub const SMALL_BYTES_MIN: usize = 64;
/// Largest cell in bytes; more takes a block.
pub const SMALL_BYTES_MAX: usize = 2048;

const CLASSES: usize = 6;

/// The cells of one block: bit set = free.
struct Slab {
    class: usize,
    free: u64,
}

impl Slab {
    fn all_free(class: usize) -> u64 {
        let cells = cells(class);
        if cells == 64 { u64::MAX } else { (1 << cells) - 1 }
    }
}

#[derive(Default)]
struct State {
    slabs: BTreeMap<BlockNo, Slab>,
    /// Blocks with a free cell, by class.
    open: [Vec<BlockNo>; CLASSES],
}

/// What cannot be freed or claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SmallError {
    /// The address is no cell of this size that is in use (or, for `claim`, free).
    #[error("{bytes} bytes at {at} are not a cell that could be given or taken")]
    NotACell {
        /// The address.
        at: PoolOffset,
        /// The size asked for.
        bytes: usize,
    },
}

/// Allocator of small objects over the pool's blocks.
#[derive(Default)]
pub struct SmallAllocator {
    state: Mutex<State>,
}

fn class_of(bytes: usize) -> Option<usize> {
    if bytes == 0 || bytes > SMALL_BYTES_MAX {
        return None;
    }
    let cell = bytes.next_power_of_two().max(SMALL_BYTES_MIN);
    Some((cell / SMALL_BYTES_MIN).trailing_zeros() as usize)
}

fn cell_bytes(class: usize) -> usize {
    SMALL_BYTES_MIN << class
}

fn cells(class: usize) -> usize {
    BLOCK / cell_bytes(class)
}

impl SmallAllocator {
    /// Takes a cell for `bytes` bytes (1 to 2048), aligned to its size rounded up to a power of
    /// two. `None` if `bytes` is out of range or the pool is full.
    pub fn alloc(&self, blocks: &Allocator, bytes: usize) -> Option<PoolOffset> {
        let class = class_of(bytes)?;
        let mut state = self.state.lock();
        let block = match state.open[class].last() {
            Some(&block) => block,
            None => {
                let block = blocks.alloc()?;
                state.slabs.insert(block, Slab { class, free: Slab::all_free(class) });
                state.open[class].push(block);
                block
            }
        };
        let slab = state.slabs.get_mut(&block)?;
        let cell = slab.free.trailing_zeros();
        slab.free &= slab.free - 1;
        if slab.free == 0 {
            state.open[class].pop();
        }
        Some(block.offset().plus(u64::from(cell) * cell_bytes(class) as u64))
    }

    /// Gives back a cell that `alloc` or `claim` took for `bytes` bytes.
    ///
    /// # Errors
    /// `NotACell` if no such cell is in use; nothing changes then.
    pub fn free(&self, blocks: &Allocator, at: PoolOffset, bytes: usize) -> Result<(), SmallError> {
        let wrong = SmallError::NotACell { at, bytes };
        let class = class_of(bytes).ok_or(wrong)?;
        let bit = cell_bit(at, class).ok_or(wrong)?;
        let mut state = self.state.lock();
        let slab = state.slabs.get_mut(&at.block()).ok_or(wrong)?;
        if slab.class != class || slab.free & bit != 0 {
            return Err(wrong);
        }
        let was_full = slab.free == 0;
        slab.free |= bit;
        if slab.free == Slab::all_free(class) {
            state.slabs.remove(&at.block());
            state.open[class].retain(|&b| b != at.block());
            return blocks.free(at.block()).map_err(|_| wrong);
        }
        if was_full {
            state.open[class].push(at.block());
        }
        Ok(())
    }

    /// Marks a particular cell used while the pool is rebuilt; the first claim in a block takes
    /// the block from the allocator.
    ///
    /// # Errors
    /// `NotACell` if the cell or its block has another owner.
    pub fn claim(
        &self,
        blocks: &Allocator,
        at: PoolOffset,
        bytes: usize,
    ) -> Result<(), SmallError> {
        let wrong = SmallError::NotACell { at, bytes };
        let class = class_of(bytes).ok_or(wrong)?;
        let bit = cell_bit(at, class).ok_or(wrong)?;
        let block = at.block();
        let mut state = self.state.lock();
        let State { slabs, open } = &mut *state;
        let slab = match slabs.entry(block) {
            Entry::Occupied(slab) => slab.into_mut(),
            Entry::Vacant(place) => {
                blocks.take(BlockRun { start: block, len: 1 }).map_err(|_| wrong)?;
                open[class].push(block);
                place.insert(Slab { class, free: Slab::all_free(class) })
            }
        };
        if slab.class != class || slab.free & bit == 0 {
            return Err(wrong);
        }
        slab.free &= !bit;
        if slab.free == 0 {
            open[class].retain(|&b| b != block);
        }
        Ok(())
    }
}

fn cell_bit(at: PoolOffset, class: usize) -> Option<u64> {
    let within = at.in_block();
    within.is_multiple_of(cell_bytes(class)).then(|| 1 << (within / cell_bytes(class)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap as Map;

    fn blocks(count: u64) -> Allocator {
        let blocks = Allocator::new(1024);
        blocks.add(BlockRun { start: BlockNo(8), len: count }).unwrap();
        blocks
    }

    #[test]
    fn sizes_choose_cells_and_full_pools_say_no() {
        let (blocks, small) = (blocks(1), SmallAllocator::default());
        assert_eq!(small.alloc(&blocks, 0), None);
        assert_eq!(small.alloc(&blocks, 2049), None);
        let first = small.alloc(&blocks, 65).unwrap();
        assert_eq!(first.0 % 128, 0);
        assert_eq!(small.alloc(&blocks, 64), None, "the only block has cells of 128 bytes");
        assert!(small.free(&blocks, first, 64).is_err());
        assert!(small.free(&blocks, first.plus(128), 128).is_err());
        small.free(&blocks, first, 128).unwrap();
        assert_eq!(blocks.free_blocks(), 1);
    }

    proptest! {
        #[test]
        fn cells_never_overlap_and_claims_rebuild(ops in prop::collection::vec((0usize..3, 1usize..2049), 1..200)) {
            let (free, small) = (blocks(40), SmallAllocator::default());
            let mut held: Map<u64, usize> = Map::new();
            for (op, bytes) in ops {
                if op < 2 {
                    if let Some(at) = small.alloc(&free, bytes) {
                        let size = bytes.next_power_of_two().max(64) as u64;
                        prop_assert_eq!(at.0 % size, 0);
                        let before = held.range(..=at.0).next_back();
                        prop_assert!(before.is_none_or(|(&s, &b)| s + b.next_power_of_two().max(64) as u64 <= at.0));
                        let after = held.range(at.0..).next();
                        prop_assert!(after.is_none_or(|(&s, _)| at.0 + size <= s));
                        held.insert(at.0, bytes);
                    }
                } else if let Some((&at, &bytes)) = held.iter().next() {
                    held.remove(&at);
                    small.free(&free, PoolOffset(at), bytes).unwrap();
                }
            }
            let (again, rebuilt) = (blocks(40), SmallAllocator::default());
            for (&at, &bytes) in &held {
                rebuilt.claim(&again, PoolOffset(at), bytes).unwrap();
            }
            prop_assert_eq!(again.free_blocks(), free.free_blocks());
            for (&at, &bytes) in &held {
                rebuilt.free(&again, PoolOffset(at), bytes).unwrap();
            }
            prop_assert_eq!(again.free_blocks(), 40);
        }
    }
}
