//! Cells: objects of 64 bytes to 2 KiB, in blocks cut into equal parts.
//!
//! Owns the free cells of a volume's blocks. Invariants: a cell's size is a power of two, and a block has
//! cells of one size. The volume keeps no block without a used cell. The state is derived: the volume's kind
//! claims each used cell, and the rest of a block is free. The state is not persistent. A freed cell is not
//! quarantined: the next allocation may return it immediately.

use std::collections::BTreeSet;

use everbyte_media::{BLOCK_U64, BlockNo, LineMask, PoolOffset};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::sync::Mutex;

/// Sizes of cells there are.
pub(crate) const SIZES: usize = 6;

/// The size of a cell: 64, 128, 256, 512, 1024 or 2048 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CellSize(u8);

impl CellSize {
    /// Smallest, in bytes: one line.
    pub const BYTES_MIN: u64 = 64;
    /// Largest, in bytes; more takes a block.
    pub const BYTES_MAX: u64 = 2048;

    /// The smallest size with room for `bytes`; `None` for 0 and for more than 2048.
    #[must_use]
    pub fn for_bytes(bytes: u64) -> Option<Self> {
        if bytes == 0 || bytes > Self::BYTES_MAX {
            return None;
        }
        let lines = bytes.next_power_of_two().max(Self::BYTES_MIN) / Self::BYTES_MIN;
        u8::try_from(lines.trailing_zeros()).ok().map(Self)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        Self::BYTES_MIN << self.0
    }

    /// All sizes, ascending.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0u8..).take(SIZES).map(Self)
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The free cells of an otherwise free block, a bit each.
    fn all_cells(self) -> u64 {
        u64::MAX >> (64 - BLOCK_U64 / self.bytes())
    }

    /// The bit of the cell at `at`; `None` if no cell of this size begins there.
    fn cell_bit(self, at: PoolOffset) -> Option<u64> {
        let start = at.0 % BLOCK_U64;
        start.is_multiple_of(self.bytes()).then(|| 1 << (start / self.bytes()))
    }

    /// The lines of the cell at `at` in its block.
    pub(crate) fn lines(self, at: PoolOffset) -> LineMask {
        LineMask::covering(at.in_block(), usize::try_from(self.bytes()).expect("at most 2048"))
    }
}

/// The free cells of one block.
struct Slab {
    size: CellSize,
    free: u64,
}

#[derive(Default)]
struct State {
    /// Looked up for every used cell when a pool is opened, in random order: a tree and the standard
    /// library's hash are slow at this.
    slabs: HashMap<BlockNo, Slab>,
    /// Blocks by size, among them all with a free cell.
    open: [BTreeSet<BlockNo>; SIZES],
}

/// The cells of one volume.
#[derive(Default)]
pub(crate) struct Cells(Mutex<State>);

/// The effect of claiming a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CellClaim {
    /// The first of its block, which becomes the volume's.
    First,
    /// A further cell of a block of the volume.
    Another,
    /// No such cell can be, or it is in use already.
    DoubleOwnership,
}

impl Cells {
    /// Marks the cell at `at` as used.
    pub(crate) fn claim(&self, at: PoolOffset, size: CellSize) -> CellClaim {
        let Some(bit) = size.cell_bit(at) else { return CellClaim::DoubleOwnership };
        let state = &mut *self.0.lock();
        let (slab, claim) = match state.slabs.entry(at.block()) {
            Entry::Vacant(vacant) => {
                (vacant.insert(Slab { size, free: size.all_cells() }), CellClaim::First)
            }
            Entry::Occupied(slab) => (slab.into_mut(), CellClaim::Another),
        };
        if slab.size != size || slab.free & bit == 0 {
            return CellClaim::DoubleOwnership;
        }
        slab.free &= !bit;
        if claim == CellClaim::First {
            state.open[size.index()].insert(at.block());
        }
        claim
    }

    /// Takes the free cells of one block, if any has some, and appends them to `out`, the lowest
    /// last.
    pub(crate) fn take_some(&self, size: CellSize, out: &mut Vec<PoolOffset>) {
        let state = &mut *self.0.lock();
        while let Some(block) = state.open[size.index()].pop_first() {
            let free = state.slabs.get_mut(&block).map_or(0, |slab| std::mem::take(&mut slab.free));
            if free != 0 {
                out.extend(cells_of(block, size, free).rev());
                return;
            }
        }
    }

    /// Cuts `block`, just taken from the free blocks, into cells, and appends them to `out`, the lowest last.
    /// All of them count as used.
    pub(crate) fn add(&self, block: BlockNo, size: CellSize, out: &mut Vec<PoolOffset>) {
        self.0.lock().slabs.insert(block, Slab { size, free: 0 });
        out.extend(cells_of(block, size, size.all_cells()).rev());
    }

    /// Frees a cell. Returns its block if this was the last used cell: the block is then the caller's. Leaves
    /// an unused cell unchanged.
    pub(crate) fn give(&self, at: PoolOffset, size: CellSize) -> Result<Option<BlockNo>, NotInUse> {
        let wrong = NotInUse { at, bytes: size.bytes() };
        let bit = size.cell_bit(at).ok_or(wrong)?;
        let state = &mut *self.0.lock();
        let block = at.block();
        let slab = state.slabs.get_mut(&block).ok_or(wrong)?;
        if slab.size != size || slab.free & bit != 0 {
            return Err(wrong);
        }
        slab.free |= bit;
        if slab.free == size.all_cells() {
            state.slabs.remove(&block);
            state.open[size.index()].remove(&block);
            return Ok(Some(block));
        }
        state.open[size.index()].insert(block);
        Ok(None)
    }
}

impl Cells {
    /// The first block with cells free here and used in `others`, or the other way round. Requires: no thread
    /// takes or frees cells.
    pub(crate) fn first_difference(&self, others: &Self) -> Option<BlockNo> {
        let (ours, theirs) = (self.0.lock(), others.0.lock());
        let same = |block: &BlockNo| {
            let used = |state: &State| state.slabs.get(block).map(|slab| (slab.size, slab.free));
            used(&ours) == used(&theirs)
        };
        ours.slabs.keys().chain(theirs.slabs.keys()).copied().filter(|block| !same(block)).min()
    }
}

/// A freed cell was not in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{bytes} bytes at {at} are not a cell in use")]
pub(crate) struct NotInUse {
    at: PoolOffset,
    bytes: u64,
}

/// The cells of `block` with bits in `mask`, ascending.
fn cells_of(
    block: BlockNo,
    size: CellSize,
    mask: u64,
) -> impl DoubleEndedIterator<Item = PoolOffset> {
    let cells = BLOCK_U64 / size.bytes();
    (0..cells)
        .filter(move |cell| mask & (1 << cell) != 0)
        .map(move |cell| block.offset().plus(cell * size.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: CellSize = CellSize(2);

    fn at(block: u64, cell: u64) -> PoolOffset {
        BlockNo(block).offset().plus(cell * SIZE.bytes())
    }

    #[test]
    fn cell_sizes_are_powers_of_two() {
        let bytes = |bytes| CellSize::for_bytes(bytes).map(CellSize::bytes);
        assert_eq!([bytes(0), bytes(2049)], [None, None]);
        assert_eq!([bytes(1), bytes(64), bytes(65)], [Some(64), Some(64), Some(128)]);
        assert_eq!([bytes(256), bytes(1025), bytes(2048)], [Some(256), Some(2048), Some(2048)]);
    }

    #[test]
    fn claimed_cells_leave_rest_of_block_free() {
        let cells = Cells::default();
        assert_eq!(cells.claim(at(7, 3), SIZE), CellClaim::First);
        assert_eq!(cells.claim(at(7, 5), SIZE), CellClaim::Another);
        assert_eq!(cells.claim(at(7, 5), SIZE), CellClaim::DoubleOwnership, "it has an owner");
        assert_eq!(
            cells.claim(at(7, 4), CellSize(0)),
            CellClaim::DoubleOwnership,
            "of another size"
        );
        assert_eq!(
            cells.claim(at(8, 0).plus(64), SIZE),
            CellClaim::DoubleOwnership,
            "none begins there"
        );
        let mut free = Vec::new();
        cells.take_some(SIZE, &mut free);
        assert_eq!(free.len(), 14);
        assert_eq!(free.last(), Some(&at(7, 0)));
        assert!(!free.contains(&at(7, 3)) && !free.contains(&at(7, 5)));
        cells.take_some(SIZE, &mut free);
        assert_eq!(free.len(), 14, "there are no more");
    }

    #[test]
    fn block_without_used_cell_is_freed() {
        let cells = Cells::default();
        let mut free = Vec::new();
        cells.add(BlockNo(4), SIZE, &mut free);
        assert_eq!(free.len(), 16);
        for &cell in &free[..15] {
            assert_eq!(cells.give(cell, SIZE), Ok(None));
        }
        assert!(cells.give(free[3], SIZE).is_err(), "it is free");
        assert_eq!(cells.give(free[15], SIZE), Ok(Some(BlockNo(4))));
        assert!(cells.give(free[15], SIZE).is_err(), "it is not ours any more");
        let mut none = Vec::new();
        cells.take_some(SIZE, &mut none);
        assert!(none.is_empty());
    }
}
