//! Per-block epoch state, in DRAM beside the blocks.
//!
//! Invariants:
//! - `logged`, `dirty` and `words` have one half per epoch parity, so that the epoch being flushed
//!   and the epoch taking writes never share a mask. The half of epoch e is empty again before
//!   e + 2 takes writes: the checkpoint of e empties it for every block on e's dirty lists, and a
//!   block with anything logged in e is on such a list.
//! - `fresh_epoch` of a data block is written by the thread that holds its logical block's lock;
//!   of a mapping node by its creator, before the node can be found.
//! - A free block has no bits set.
//! - The state is keyed by pool address and knows nothing of volumes; a block belongs to one
//!   volume at a time, and allocation overwrites `fresh_epoch`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::{BLOCK_U64, BlockNo, LineMask, PoolOffset, prefetch};

/// Blocks whose states are made together: 128 MiB of pool, about 2 MiB of DRAM. A fuzzer opens small
/// pools, thousands of them a second.
const SEGMENT: usize = if cfg!(fuzzing) { 1 << 7 } else { 1 << 15 };
const WORDS: usize = 512;

/// The state of one block. See the module's head.
///
/// Most questions are about freshness, so that lies apart, densely: eight blocks a line.
#[derive(Clone, Copy)]
pub(crate) struct BlockState<'s> {
    fresh_epoch: &'s AtomicU64,
    marks: &'s Marks,
}

/// Which parts of a block are logged and dirty.
#[derive(Default)]
#[repr(align(64))]
struct Marks {
    logged: [AtomicU64; 2],
    dirty: [AtomicU64; 2],
    /// Logged words, for blocks that are logged by word.
    words: OnceLock<Box<[WordBits; 2]>>,
}

#[derive(Default)]
struct WordBits([AtomicU64; WORDS / 64]);

fn parity(epoch: u64) -> usize {
    usize::from(epoch % 2 == 1)
}

fn word_place(at: PoolOffset) -> (usize, u64) {
    let word = at.in_block() / 8;
    (word / 64, 1 << (word % 64))
}

impl BlockState<'_> {
    /// Whether the block was allocated in `epoch`, so that nothing in it needs a log.
    pub(crate) fn is_fresh(self, epoch: u64) -> bool {
        self.fresh_epoch.load(Ordering::Acquire) == epoch
    }

    /// Whether the block was allocated in an epoch after `completed`.
    pub(crate) fn is_fresh_since(self, completed: u64) -> bool {
        self.fresh_epoch.load(Ordering::Acquire) > completed
    }

    /// Says in which epoch the block was allocated; 0 for "before any that is open".
    pub(crate) fn set_fresh(self, epoch: u64) {
        self.fresh_epoch.store(epoch, Ordering::Release);
    }

    /// Says that the block's freshness and marks will soon be asked for.
    pub(crate) fn expect(self) {
        prefetch(self.fresh_epoch);
        prefetch(self.marks);
    }

    /// Says that the block will soon be marked.
    pub(crate) fn expect_marks(self) {
        prefetch(self.marks);
    }

    /// Lines with a record in `epoch`.
    pub(crate) fn logged(self, epoch: u64) -> LineMask {
        LineMask(self.marks.logged[parity(epoch)].load(Ordering::Acquire))
    }

    /// Notes that `lines` have a record in `epoch`.
    pub(crate) fn add_logged(self, epoch: u64, lines: LineMask) {
        self.marks.logged[parity(epoch)].fetch_or(lines.0, Ordering::AcqRel);
    }

    /// Notes dirty lines; true if the block had none before in this epoch, so that the caller
    /// must put it on a dirty list.
    pub(crate) fn add_dirty(self, epoch: u64, lines: LineMask) -> bool {
        let dirty = &self.marks.dirty[parity(epoch)];
        dirty.load(Ordering::Acquire) & lines.0 != lines.0
            && dirty.fetch_or(lines.0, Ordering::AcqRel) == 0
    }

    /// Lines stored to in `epoch` that are not yet flushed.
    pub(crate) fn dirty(self, epoch: u64) -> LineMask {
        LineMask(self.marks.dirty[parity(epoch)].load(Ordering::Acquire))
    }

    /// Whether the word at `at`, which lies in this block, has a record in `epoch`.
    pub(crate) fn word_logged(self, epoch: u64, at: PoolOffset) -> bool {
        let (place, bit) = word_place(at);
        self.marks
            .words
            .get()
            .is_some_and(|words| words[parity(epoch)].0[place].load(Ordering::Acquire) & bit != 0)
    }

    /// Notes that the word at `at` has a record in `epoch`.
    pub(crate) fn set_word_logged(self, epoch: u64, at: PoolOffset) {
        let (place, bit) = word_place(at);
        let words = self.marks.words.get_or_init(Box::default);
        words[parity(epoch)].0[place].fetch_or(bit, Ordering::AcqRel);
    }

    /// Whether any record of `epoch` saves bytes of this block.
    pub(crate) fn has_logged_lines(self, epoch: u64) -> bool {
        !self.logged(epoch).is_empty()
    }

    /// Whether nothing in the block is logged or dirty.
    pub(crate) fn is_unmarked(self) -> bool {
        let masks = self.marks.logged.iter().chain(&self.marks.dirty);
        masks.fold(0, |all, mask| all | mask.load(Ordering::Acquire)) == 0
    }

    /// Forgets everything about `epoch`, whose records are dead.
    pub(crate) fn forget(self, epoch: u64) {
        self.marks.logged[parity(epoch)].store(0, Ordering::Release);
        self.marks.dirty[parity(epoch)].store(0, Ordering::Release);
        if let Some(words) = self.marks.words.get() {
            for bits in &words[parity(epoch)].0 {
                bits.store(0, Ordering::Release);
            }
        }
    }
}

struct Segment {
    fresh_epochs: Box<[AtomicU64]>,
    marks: Box<[Marks]>,
}

impl Segment {
    fn new(blocks: usize) -> Self {
        Self {
            fresh_epochs: (0..blocks).map(|_| AtomicU64::new(0)).collect(),
            marks: (0..blocks).map(|_| Marks::default()).collect(),
        }
    }
}

/// The states of a pool's blocks, made when first needed.
pub(crate) struct BlockStates {
    segments: Box<[OnceLock<Segment>]>,
    capacity: usize,
}

impl BlockStates {
    /// States for up to `capacity` blocks.
    pub(crate) fn new(capacity: u64) -> Self {
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        let segments = capacity.div_ceil(SEGMENT);
        Self { segments: (0..segments).map(|_| OnceLock::new()).collect(), capacity }
    }

    /// The state of `block`, which must be below the capacity.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "64-bit targets only; see everbyte-media")]
    pub(crate) fn get(&self, block: BlockNo) -> BlockState<'_> {
        let index = block.0 as usize;
        let (number, place) = (index / SEGMENT, index % SEGMENT);
        let segment = self.segments[number]
            .get_or_init(|| Segment::new((self.capacity - number * SEGMENT).min(SEGMENT)));
        BlockState { fresh_epoch: &segment.fresh_epochs[place], marks: &segment.marks[place] }
    }

    /// The state of the block that `at` lies in.
    #[inline]
    pub(crate) fn at(&self, at: PoolOffset) -> BlockState<'_> {
        self.get(BlockNo(at.0 / BLOCK_U64))
    }
}
