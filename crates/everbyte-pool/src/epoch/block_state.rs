//! Per-block epoch state, in DRAM, parallel to the blocks.
//!
//! Invariants:
//! - `logged`, `dirty` and `words` have one half per epoch parity: the flushed epoch and the open epoch never
//!   share a mask. The half of epoch e is empty again before e + 2 takes writes. The checkpoint of e empties
//!   it for every block on e's dirty lists, and a block with a log entry in e is on such a list.
//! - For a data block, the holder of its logical block's lock writes the epoch in `fresh`. For a mapping
//!   node, its creator writes it before the node can be found.
//! - `MARKED` is in `fresh` if the block was dirty since it was allocated, set before the first bit of
//!   `dirty`. Logged lines are dirty as well. A reader holds the lock under which it is set.
//! - A free block has no bits set.
//! - The state is keyed by pool address and knows nothing of volumes; a block belongs to one
//!   volume at a time, and allocation overwrites `fresh`.

use std::alloc::{Layout, handle_alloc_error};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::{BLOCK_U64, BlockNo, LINE, LineMask, PoolOffset, prefetch};
use parking_lot::Mutex;
use zerocopy::FromZeros;

/// Items of a table made together. They take memory where they are touched; but a fuzzer opens small pools,
/// thousands of them a second.
const SEGMENT: usize = if cfg!(fuzzing) { 1 << 7 } else { 1 << 18 };
const WORDS: usize = 512;
/// Words of a cache line.
const LINE_WORDS: usize = LINE / 8;
/// Words of the item with a block's logged words: a line for each parity.
const RECORD_WORDS: usize = 2 * WORDS / 64;
/// The bit of `fresh` next to the shifted epoch. Epochs are below 2^48.
const MARKED: u64 = 1;

/// State of one block in the open epochs, in DRAM, by its place in the pool.
///
/// Most queries are about freshness, so `fresh` lies apart, densely: eight blocks a line. Where no block is
/// marked (for example, where all blocks are replaced whole), marks take no memory.
///
/// A query looks up only the state it needs.
#[derive(Clone, Copy)]
pub(crate) struct BlockState<'s> {
    states: &'s BlockStates,
    block: BlockNo,
}

/// The logged and dirty parts of a block: a line.
#[derive(Clone, Copy)]
struct Marks<'s>(&'s [AtomicU64; LINE_WORDS]);

impl<'s> Marks<'s> {
    /// Lines logged in an epoch.
    fn logged(self, epoch: u64) -> &'s AtomicU64 {
        &self.0[parity(epoch)]
    }

    /// Dirty lines of an epoch.
    fn dirty(self, epoch: u64) -> &'s AtomicU64 {
        &self.0[2 + parity(epoch)]
    }

    /// For a block logged by word: the number of its item among the records, from 1 on.
    fn number(self) -> &'s AtomicU64 {
        &self.0[4]
    }
}

/// The logged words of a block.
#[derive(Clone, Copy)]
struct LoggedWords<'s>(&'s [AtomicU64; RECORD_WORDS]);

impl<'s> LoggedWords<'s> {
    fn of(self, epoch: u64) -> &'s [AtomicU64] {
        &self.0[parity(epoch) * RECORD_WORDS / 2..][..RECORD_WORDS / 2]
    }
}

fn parity(epoch: u64) -> usize {
    usize::from(epoch % 2 == 1)
}

fn word_place(at: PoolOffset) -> (usize, u64) {
    let word = at.in_block() / 8;
    (word / 64, 1 << (word % 64))
}

/// 64 adjacent words of a block, with their records noted in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WordGroup(u64);

impl WordGroup {
    const BYTES: u64 = 64 * 8;

    /// The group of the word at `at`.
    #[inline]
    #[must_use]
    pub fn of(at: PoolOffset) -> Self {
        Self(at.0 / Self::BYTES)
    }

    fn offset(self) -> PoolOffset {
        PoolOffset(self.0 * Self::BYTES)
    }
}

/// Words of one group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupedWords {
    group: WordGroup,
    bits: u64,
    lines: LineMask,
}

impl GroupedWords {
    /// Removes the word at the start of `rest`, and the following words of its group, from `rest`. `None` if
    /// `rest` is empty.
    pub(crate) fn take(rest: &mut &[PoolOffset]) -> Option<Self> {
        let group = WordGroup::of(*rest.first()?);
        let mut words = Self { group, bits: 0, lines: LineMask::EMPTY };
        while let [at, behind @ ..] = *rest
            && WordGroup::of(*at) == group
        {
            words.bits |= word_place(*at).1;
            words.lines = words.lines.or(LineMask::covering(at.in_block(), 8));
            *rest = behind;
        }
        Some(words)
    }

    /// The block of the words.
    pub(crate) fn block(&self) -> BlockNo {
        self.group.offset().block()
    }

    /// The lines of the words.
    pub(crate) fn lines(&self) -> LineMask {
        self.lines
    }
}

impl<'s> BlockState<'s> {
    /// The allocation epoch of the block, and `MARKED`.
    #[inline]
    fn fresh(self) -> &'s AtomicU64 {
        let [fresh] = self.states.fresh.get(self.block.0);
        fresh
    }

    #[inline]
    fn marks(self) -> Marks<'s> {
        Marks(self.states.marks.get(self.block.0))
    }

    /// The logged words of the block, if a word was logged since the pool was opened.
    #[inline]
    fn words(self) -> Option<LoggedWords<'s>> {
        self.words_of(self.marks())
    }

    /// The same logged words for a block with its marks at hand.
    #[inline]
    fn words_of(self, marks: Marks<'s>) -> Option<LoggedWords<'s>> {
        let number = marks.number().load(Ordering::Acquire);
        number.checked_sub(1).map(|index| self.states.records.get(index))
    }

    /// The same, made if need be.
    #[inline]
    fn words_to_set(self) -> LoggedWords<'s> {
        let marks = self.marks();
        self.words_of(marks).unwrap_or_else(|| self.states.records.add(marks.number()))
    }

    /// Returns true if the block was allocated in `epoch`: its contents then need no log.
    #[inline]
    pub(crate) fn is_fresh(self, epoch: u64) -> bool {
        self.fresh().load(Ordering::Acquire) >> 1 == epoch
    }

    /// Returns true if the block was allocated in an epoch after `completed`.
    #[inline]
    pub(crate) fn is_fresh_since(self, completed: u64) -> bool {
        self.fresh().load(Ordering::Acquire) >> 1 > completed
    }

    /// Sets the allocation epoch of the block; 0 for "before any open epoch".
    #[inline]
    pub(crate) fn set_fresh(self, epoch: u64) {
        // Also clears `MARKED`, which an earlier owner of the block may have left.
        self.fresh().store(epoch << 1, Ordering::Release);
    }

    /// Returns true if the block was allocated in `epoch` and nothing in it was dirty since: no
    /// list names it, and no mask has to be emptied.
    #[inline]
    pub(crate) fn is_untouched_since(self, epoch: u64) -> bool {
        self.fresh().load(Ordering::Acquire) == epoch << 1
    }

    /// Prefetches the block's freshness.
    #[inline]
    pub(crate) fn prefetch_fresh(self) {
        prefetch(self.fresh());
    }

    /// Prefetches the block's marks.
    #[inline]
    pub(crate) fn prefetch_marks(self) {
        prefetch(self.marks().0);
    }

    /// Prefetches the record of the word at `at` in this block.
    pub(crate) fn prefetch_word(self, epoch: u64, at: PoolOffset) {
        if let Some(words) = self.words() {
            prefetch(&words.of(epoch)[word_place(at).0]);
        }
    }

    /// Lines with a record in `epoch`.
    #[inline]
    pub(crate) fn logged(self, epoch: u64) -> LineMask {
        LineMask(self.marks().logged(epoch).load(Ordering::Acquire))
    }

    /// Marks `lines` as recorded in `epoch`.
    #[inline]
    pub(crate) fn add_logged(self, epoch: u64, lines: LineMask) {
        self.marks().logged(epoch).fetch_or(lines.0, Ordering::AcqRel);
    }

    /// Notes dirty lines. Returns the lines already dirty in this epoch, or `None` if all of `lines` were. If
    /// the returned set is empty, the caller must put the block on a dirty list.
    #[inline]
    pub(crate) fn add_dirty(self, epoch: u64, lines: LineMask) -> Option<LineMask> {
        let dirty = self.marks().dirty(epoch);
        // A load spares the locked instructions below where all lines are dirty already.
        if dirty.load(Ordering::Acquire) & lines.0 == lines.0 {
            return None;
        }
        // `MARKED` comes before the first dirty bit. Otherwise `defer_free` could free a block with
        // lines to flush.
        let fresh = self.fresh();
        if fresh.load(Ordering::Acquire) & MARKED == 0 {
            fresh.fetch_or(MARKED, Ordering::AcqRel);
        }
        // Atomic: writers with other locks mark other words of the same node.
        Some(LineMask(dirty.fetch_or(lines.0, Ordering::AcqRel)))
    }

    /// Lines stored to in `epoch` and not yet flushed.
    #[inline]
    pub(crate) fn dirty(self, epoch: u64) -> LineMask {
        LineMask(self.marks().dirty(epoch).load(Ordering::Acquire))
    }

    /// Returns true if the word at `at` in this block has a record in `epoch`.
    pub(crate) fn word_logged(self, epoch: u64, at: PoolOffset) -> bool {
        let (place, bit) = word_place(at);
        let words = self.words();
        words.is_some_and(|words| words.of(epoch)[place].load(Ordering::Acquire) & bit != 0)
    }

    /// Returns true if the word at `at` in this block needs no record in `epoch`: it has one, its line has
    /// one, or the block was allocated in that epoch.
    #[inline]
    pub(crate) fn covers_word(self, epoch: u64, at: PoolOffset) -> bool {
        let marks = self.marks();
        // Both lines are on their way before freshness is tested.
        prefetch(marks.0);
        if self.is_fresh(epoch) {
            return true;
        }
        let (place, bit) = word_place(at);
        let has_record =
            |words: LoggedWords<'_>| words.of(epoch)[place].load(Ordering::Acquire) & bit != 0;
        self.words_of(marks).is_some_and(has_record)
            || marks.logged(epoch).load(Ordering::Acquire) >> (at.in_block() / LINE) & 1 != 0
    }

    /// Marks `words` in this block as recorded in `epoch`.
    pub(crate) fn set_words_logged(self, epoch: u64, words: &GroupedWords) {
        let (place, _) = word_place(words.group.offset());
        self.words_to_set().of(epoch)[place].fetch_or(words.bits, Ordering::AcqRel);
    }

    /// Returns true if a record of `epoch` saves bytes of this block.
    pub(crate) fn has_logged_lines(self, epoch: u64) -> bool {
        !self.logged(epoch).is_empty()
    }

    /// Clears all state of `epoch`, whose records are dead.
    pub(crate) fn forget(self, epoch: u64) {
        // Plain stores suffice: writers of the next epoch use the other half of each mask.
        let marks = self.marks();
        marks.logged(epoch).store(0, Ordering::Release);
        marks.dirty(epoch).store(0, Ordering::Release);
        if let Some(words) = self.words() {
            for bits in words.of(epoch) {
                bits.store(0, Ordering::Release);
            }
        }
    }
}

/// A table of items of `N` words, initially zero, in segments made at first use. Items of whole lines are
/// lines.
struct Table<const N: usize> {
    segments: Box<[OnceLock<Segment>]>,
    len: usize,
}

struct Segment {
    /// The words ask for no more than a word's alignment: for a larger one the system's allocator clears the
    /// memory, and so touches it.
    words: Box<[AtomicU64]>,
    /// Words before the first item: the item begins a line.
    skip: usize,
}

impl Segment {
    fn new(words: usize) -> Self {
        let words = <[AtomicU64]>::new_box_zeroed_with_elems(words + LINE_WORDS - 1)
            .unwrap_or_else(|_| handle_alloc_error(Layout::new::<AtomicU64>()));
        let skip = words.as_ptr().align_offset(LINE);
        // `align_offset` may fail with a huge number. Unaligned items cost only speed.
        Self { skip: if skip < LINE_WORDS { skip } else { 0 }, words }
    }
}

impl<const N: usize> Table<N> {
    fn new(len: usize) -> Self {
        Self { segments: (0..len.div_ceil(SEGMENT)).map(|_| OnceLock::new()).collect(), len }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "64-bit targets only; see everbyte-media")]
    fn get(&self, index: u64) -> &[AtomicU64; N] {
        let (number, place) = (index as usize / SEGMENT, index as usize % SEGMENT);
        let segment = match self.segments[number].get() {
            Some(segment) => segment,
            None => self.make(number),
        };
        let item = segment.words[segment.skip + place * N..].first_chunk();
        item.expect("a segment has all its items")
    }

    #[cold]
    fn make(&self, number: usize) -> &Segment {
        let items = (self.len - number * SEGMENT).min(SEGMENT);
        // Concurrent first users get one segment, so no mark is lost.
        self.segments[number].get_or_init(|| Segment::new(items * N))
    }
}

/// The logged words of all blocks with logged words, contiguous.
struct Records {
    items: Table<RECORD_WORDS>,
    used: Mutex<u64>,
}

impl Records {
    fn get(&self, index: u64) -> LoggedWords<'_> {
        LoggedWords(self.items.get(index))
    }

    /// Gives a block an item and stores its number in `number`, unless it has one by now.
    fn add(&self, number: &AtomicU64) -> LoggedWords<'_> {
        // Two writers of one block may arrive together. The lock gives the block one item.
        let mut used = self.used.lock();
        if number.load(Ordering::Acquire) == 0 {
            *used += 1;
            number.store(*used, Ordering::Release);
        }
        self.get(number.load(Ordering::Acquire) - 1)
    }
}

/// The states of a pool's blocks.
pub(crate) struct BlockStates {
    fresh: Table<1>,
    marks: Table<LINE_WORDS>,
    records: Records,
}

impl BlockStates {
    /// States for up to `capacity` blocks.
    pub(crate) fn new(capacity: u64) -> Self {
        let capacity = usize::try_from(capacity).expect("there is address space for its blocks");
        Self {
            fresh: Table::new(capacity),
            marks: Table::new(capacity),
            records: Records { items: Table::new(capacity), used: Mutex::new(0) },
        }
    }

    /// The state of `block`, a block below the capacity.
    #[inline]
    pub(crate) fn get(&self, block: BlockNo) -> BlockState<'_> {
        BlockState { states: self, block }
    }

    /// The state of the block at `at`.
    #[inline]
    pub(crate) fn at(&self, at: PoolOffset) -> BlockState<'_> {
        self.get(BlockNo(at.0 / BLOCK_U64))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LINES: LineMask = LineMask(0b110);

    #[test]
    fn fresh_block_is_untouched_until_marked() {
        let states = BlockStates::new(3);
        let state = states.get(BlockNo(2));
        state.set_fresh(7);
        assert!(state.is_fresh(7) && state.is_untouched_since(7) && !state.is_untouched_since(6));
        assert_eq!(state.add_dirty(7, LINES), Some(LineMask::EMPTY), "the first dirty lines");
        assert_eq!(state.add_dirty(7, LINES), None);
        assert_eq!(state.add_dirty(7, LineMask(1)), Some(LINES), "not the first");
        assert!(state.is_fresh(7) && state.is_fresh_since(6) && !state.is_fresh_since(7));
        assert!(!state.is_untouched_since(7));
        state.forget(7);
        assert!(!state.is_untouched_since(7), "it stays marked");
        state.set_fresh(8);
        assert!(state.is_untouched_since(8));
    }

    fn set_logged(state: BlockState<'_>, epoch: u64, at: PoolOffset) {
        let words = GroupedWords::take(&mut [at].as_slice()).unwrap();
        state.set_words_logged(epoch, &words);
    }

    #[test]
    fn adjacent_words_are_grouped() {
        let at = |word: u64| PoolOffset(8 * word);
        let all = [at(62), at(63), at(64), at(71), at(72), at(70), at(3), at(513)];
        let mut rest = all.as_slice();
        let mut taken = Vec::new();
        while let Some(words) = GroupedWords::take(&mut rest) {
            taken.push((words.block().0, words.group.0, words.bits, words.lines().0));
        }
        let expected = [
            (0, 0, 0b11 << 62, 1 << 7),
            (0, 1, 0b1_1100_0001, 0b11 << 8),
            (0, 0, 1 << 3, 1),
            (1, 8, 0b10, 1),
        ];
        assert_eq!(taken, expected);
        assert!(GroupedWords::take(&mut rest).is_none());
    }

    #[test]
    fn words_are_logged_by_block_and_epoch() {
        let states = BlockStates::new(3);
        let at = |block: u64, word: u64| BlockNo(block).offset().plus(8 * word);
        let is_logged = |epoch, at| states.at(at).word_logged(epoch, at);
        for (block, word, epoch) in [(0, 0, 4), (2, 511, 4), (2, 64, 5)] {
            assert!(!is_logged(epoch, at(block, word)));
            set_logged(states.at(at(block, word)), epoch, at(block, word));
            assert!(is_logged(epoch, at(block, word)));
        }
        assert!(!is_logged(5, at(0, 0)) && !is_logged(4, at(2, 64)) && !is_logged(4, at(1, 0)));
        states.get(BlockNo(2)).forget(4);
        assert!(is_logged(4, at(0, 0)) && !is_logged(4, at(2, 511)) && is_logged(5, at(2, 64)));
    }

    #[test]
    fn concurrent_first_words_share_block_state() {
        for _ in 0..200 {
            let states = BlockStates::new(1);
            thread::scope(|scope| {
                for word in 0..4 {
                    let state = states.get(BlockNo(0));
                    scope.spawn(move || set_logged(state, 1, PoolOffset(8 * word)));
                }
            });
            let state = states.get(BlockNo(0));
            assert!((0..4).all(|word| state.word_logged(1, PoolOffset(8 * word))));
        }
    }
}
