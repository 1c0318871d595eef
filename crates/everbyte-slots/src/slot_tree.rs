//! The slot tree of order 64, one word per node, lock-free.
//!
//! Bit `i` of leaf word `w` is set if slot `64 * w + i` is free. Bit `i` of word `w` one level up
//! marks child word `64 * w + i` as *possibly* nonzero. The use of slots belongs to the caller.
//!
//! # Protocol
//! The leaf word decides: a slot changes its owner by one atomic operation on its leaf word, and a
//! thread owns the slots taken by its operation. The levels above (*hints*) and the counter only
//! steer. Every access to a word is sequentially consistent. In addition to changes of leaf bits,
//! two operations work on one *edge* (a child word and its bit in the parent) after the other:
//!
//! - *raise*, by the thread that set a bit in a word: going up to the root, read the parent bit and
//!   set it if it is clear.
//! - *lower*, by the thread that found a word empty: clear the parent bit, **then read the child
//!   again**, and raise from it if it is not empty; continue upwards only if this emptied the
//!   parent.
//!
//! Invariants, proved in `docs/proofs.md`:
//! - while no call is under way, a nonzero child has its parent bit set (S1), so no free slot is
//!   lost (S2);
//! - `alloc` returns `None` only if no slot was free throughout the call (S3);
//! - compare-and-swap suffers no ABA (S4), and some thread always makes progress (S5).
//!
//! Loom orders sequentially consistent accesses by the same rule while all of them are, so the
//! models need no fences missing in the real code.
//!
//! All-zero memory is a valid tree of used slots, so words come lazily zeroed from the system.

use std::cell::Cell;

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use crate::SlotError;
use crate::run::{RunFinder, check_range, index, pieces, search_ranges, window};

/// Maximum number of searches of `alloc_run`; it repeats a search only after losing a run to
/// another thread.
const RUN_PASSES: u32 = 4;

/// The slot tree of order 64.
pub type SlotTree = WordTree<6>;

/// A set of free slots out of `0..capacity`, shared by many threads, with nodes of `1 << LOG`
/// slots or children, `1 <= LOG <= 6`. Use it as [`SlotTree`]; smaller orders make deep trees of
/// few slots, for tests.
///
/// Every caller (a lane, a thread) keeps its own hint, usually the slot after the last one it took:
/// searches start there, so callers with distant hints rarely meet in a word.
///
/// # Memory
/// For [`SlotTree`], `capacity / 8` bytes of leaves and 1/63 of it above them, as address space. A
/// page is touched at the first free or inspection of a slot on it. 32 GiB of 4 KiB slots are 4
/// levels and 1,065,224 bytes (1.02 MiB).
pub struct WordTree<const LOG: u32> {
    capacity: u64,
    /// `levels[0]` are the leaves; the last level is the root alone.
    levels: Box<[Box<[AtomicU64]>]>,
    free: Counter,
}

/// A counter on separate cache lines: all threads write it, and every call reads the neighbouring
/// fields.
#[repr(align(128))]
struct Counter(AtomicU64);

impl<const LOG: u32> WordTree<LOG> {
    /// Slots or children per node.
    const ORDER: u64 = 1 << LOG;

    /// A tree of `capacity` used slots. Panics if `capacity / 8` bytes of address space are not
    /// to be had.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        const { assert!(1 <= LOG && LOG <= 6, "nodes are words of 2 to 64 bits") };
        let mut levels = Vec::new();
        let mut words = capacity;
        loop {
            words = words.div_ceil(Self::ORDER).max(1);
            levels.push(zeroed(usize::try_from(words).expect("the tree exceeds address space")));
            if words == 1 {
                let free = Counter(AtomicU64::new(0));
                return Self { capacity, levels: levels.into(), free };
            }
        }
    }

    /// Slots in the tree, free or used.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Free slots: exact while no call is under way, otherwise never too few.
    #[must_use]
    pub fn free_count(&self) -> u64 {
        self.free.0.load(SeqCst)
    }

    /// Maximum number of bytes of the nodes (untouched pages take none).
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.levels.iter().map(|level| level.len() * size_of::<u64>()).sum()
    }

    /// Returns true if `slot` is free, and false for a slot outside the tree.
    #[must_use]
    pub fn is_free(&self, slot: u64) -> bool {
        slot < self.capacity && self.leaf(slot).load(SeqCst) & Self::bit(slot) != 0
    }

    /// Returns true if every slot of `slot`'s leaf node is free.
    #[must_use]
    #[inline]
    pub(crate) fn is_node_free(&self, slot: u64) -> bool {
        slot < self.capacity && self.leaf(slot).load(SeqCst).count_ones() == 1 << LOG
    }

    /// Returns true if slots `start .. start + len` exist and are all free. Each word is read on
    /// its own, so other threads may change one while the next is read.
    #[must_use]
    pub(crate) fn is_run_free(&self, start: u64, len: u64) -> bool {
        check_range(start, len, self.capacity).is_ok()
            && pieces(start, len, LOG)
                .all(|(word, mask)| self.levels[0][word].load(SeqCst) & mask == mask)
    }

    /// Frees `slot`.
    ///
    /// # Errors
    /// The slot is free or not in the tree. The tree is unchanged.
    #[inline]
    pub fn free(&self, slot: u64) -> Result<(), SlotError> {
        check_range(slot, 1, self.capacity)?;
        // Before the bit: the counter must never be below the number of free slots (S3).
        self.free.0.fetch_add(1, SeqCst);
        if self.leaf(slot).fetch_or(Self::bit(slot), SeqCst) & Self::bit(slot) != 0 {
            self.free.0.fetch_sub(1, SeqCst);
            return Err(SlotError::AlreadyFree { slot });
        }
        // After the bit: a lower in between would clear the hint of an earlier raise (S1).
        self.raise(0, index(slot >> LOG));
        Ok(())
    }

    /// Frees slots `start .. start + len`, a word at a time. An empty run has no effect.
    ///
    /// # Errors
    /// Either the run is not in the tree, and the tree is unchanged. Or the named slot was free
    /// already: the slots of earlier words are free then, other callers may have taken them, and
    /// the rest of the run is unchanged.
    pub fn free_run(&self, start: u64, len: u64) -> Result<(), SlotError> {
        check_range(start, len, self.capacity)?;
        // The counter rises before any slot of the run is free (S3).
        self.free.0.fetch_add(len, SeqCst);
        for (word, mask) in pieces(start, len, LOG) {
            let freed = self.levels[0][word]
                .fetch_update(SeqCst, SeqCst, |seen| (seen & mask == 0).then_some(seen | mask));
            if let Err(seen) = freed {
                // Earlier words stay free, because other threads may have taken their slots.
                let done = Self::first_slot(word).max(start) - start;
                self.free.0.fetch_sub(len - done, SeqCst);
                let slot = Self::first_slot(word) + lowest(seen & mask);
                return Err(SlotError::AlreadyFree { slot });
            }
            self.raise(0, word);
        }
        Ok(())
    }

    /// Marks `slot` used.
    ///
    /// # Errors
    /// The slot is used or not in the tree. The tree is unchanged.
    pub fn take(&self, slot: u64) -> Result<(), SlotError> {
        self.take_run(slot, 1)
    }

    /// Marks slots `start .. start + len` used: all of them or none. An empty run has no effect.
    ///
    /// # Errors
    /// A slot is used or not in the tree. The tree is unchanged afterwards, but other threads may
    /// have seen the first part of the run used for a moment.
    pub fn take_run(&self, start: u64, len: u64) -> Result<(), SlotError> {
        check_range(start, len, self.capacity)?;
        self.claim_run(start, len).map_err(|slot| SlotError::AlreadyUsed { slot })
    }

    /// Takes the first free slot at or after `hint`, or the first of all if there is none behind
    /// it (a hint beyond the tree means 0). Under contention the slot may be another one.
    ///
    /// `None` only if no slot was free throughout the call.
    #[inline]
    pub fn alloc(&self, hint: u64) -> Option<u64> {
        self.alloc_counted(hint, &mut 0)
    }

    /// As [`alloc`](Self::alloc), and adds the number of visited nodes to `visits`.
    #[inline]
    pub fn alloc_counted(&self, hint: u64, visits: &mut u64) -> Option<u64> {
        let mut slot = None;
        self.claim(hint, 1, visits, |base, bits| slot = Some(base + lowest(bits)));
        slot
    }

    /// Takes up to `want` slots in the order of [`alloc`](Self::alloc), appends them to `out` and
    /// returns their number. Costs one atomic operation per word for any number of its slots, and
    /// one on the counter.
    ///
    /// Fewer than `want` means that the search found no more; 0, for a `want` above 0, means that
    /// no slot was free throughout the call.
    pub fn alloc_batch(&self, hint: u64, want: usize, out: &mut Vec<u64>) -> usize {
        self.claim(hint, want, &mut 0, |base, mut bits| {
            while bits != 0 {
                out.push(base + lowest(bits));
                bits &= bits - 1;
            }
        })
    }

    /// Takes `len` adjacent slots and returns the first: the first such run at or after `hint`,
    /// else the first of all.
    ///
    /// `None` if `len` is 0, or no such run was found. Without another call in progress, no such
    /// run exists. Otherwise the call may miss a run freed, or held for a moment, by another
    /// thread. Takes time linear in the words with free slots.
    pub fn alloc_run(&self, len: u64, hint: u64) -> Option<u64> {
        // The counter is never too low, so a longer run does not exist.
        if len == 0 || len > self.free_count() {
            return None;
        }
        let hint = self.clip(hint);
        for _ in 0..RUN_PASSES {
            let mut raced = false;
            for (mut from, to) in search_ranges(len, hint, self.capacity) {
                while let Some(start) = self.find_run(from, to, len) {
                    match self.claim_run(start, len) {
                        Ok(()) => return Some(start),
                        // The lost slot ends every run across it, so the search continues behind
                        // it.
                        Err(lost) => (raced, from) = (true, lost + 1),
                    }
                }
            }
            // Only a lost race justifies another pass.
            if !raced {
                return None;
            }
        }
        None
    }

    /// The leaf words, ascending, 1 = free, for saving. Bits beyond the capacity are 0. Consistent
    /// only while no other call is under way.
    pub fn words(&self) -> impl ExactSizeIterator<Item = u64> {
        self.levels[0].iter().map(|word| word.load(SeqCst))
    }

    /// Replaces the whole state by leaf words from [`words`](Self::words).
    ///
    /// # Errors
    /// The number of words is not this tree's, or a word frees slots beyond the capacity. The
    /// words before the error are in force.
    pub fn load_words(&mut self, words: impl IntoIterator<Item = u64>) -> Result<(), SlotError> {
        let expected = self.levels[0].len() as u64;
        let mut found = 0;
        for word in words {
            if found == expected {
                return Err(SlotError::WordCount { expected, found: found + 1 });
            }
            self.set_word(found, word)?;
            found += 1;
        }
        if found == expected { Ok(()) } else { Err(SlotError::WordCount { expected, found }) }
    }

    /// Replaces leaf word `number`, the one of slots `64 * number ..` for a [`SlotTree`].
    ///
    /// # Errors
    /// The word is not in the tree or frees slots beyond the capacity. The tree is unchanged.
    pub fn set_word(&mut self, number: u64, word: u64) -> Result<(), SlotError> {
        let start = number.saturating_mul(Self::ORDER);
        let len = u64::from(u64::BITS - word.leading_zeros());
        let missing = number >= self.levels[0].len() as u64;
        if missing || len > Self::ORDER || start + len > self.capacity {
            return Err(SlotError::OutOfRange { start, len, capacity: self.capacity });
        }
        if self.levels[0][index(number)].load(SeqCst) == word {
            // Even a store of zero would cost a page of memory.
            return Ok(());
        }
        let was = self.levels[0][index(number)].swap(word, SeqCst);
        self.free.0.fetch_add(u64::from(word.count_ones()), SeqCst);
        self.free.0.fetch_sub(u64::from(was.count_ones()), SeqCst);
        if word != 0 {
            self.raise(0, index(number));
        } else {
            self.lower(0, index(number));
        }
        Ok(())
    }

    /// Takes up to `want` slots in next-fit order and passes them to `sink` as the first slot of a
    /// word and the bits taken from it. Returns their number and adds the number of visited nodes
    /// to `visits`.
    #[inline]
    fn claim(
        &self,
        hint: u64,
        want: usize,
        visits: &mut u64,
        mut sink: impl FnMut(u64, u64),
    ) -> usize {
        let taken = Cell::new(0);
        let looks = Cell::new(0);
        let mut visit = |word: usize, mask: u64| {
            looks.set(looks.get() + 1);
            let bits = self.take_some(word, mask, want - taken.get());
            if bits != 0 {
                taken.set(taken.get() + bits.count_ones() as usize);
                sink(Self::first_slot(word), bits);
            }
            taken.get() == want
        };
        let swept = want > 0 && self.sweep(self.clip(hint), visits, &mut visit);
        // A lower in progress can hide a free slot from the hints: only a read of the leaves allows
        // `None` (S3).
        if want > 0 && !swept && taken.get() == 0 {
            self.scan(&mut visit);
        }
        *visits += looks.get();
        // The counter falls after the slots are taken, so it is never too low (S3).
        if taken.get() > 0 {
            self.free.0.fetch_sub(taken.get() as u64, SeqCst);
        }
        taken.get()
    }

    /// Visits the words marked nonempty by hints, from the word of `hint` around to it again, each
    /// with the mask of slots to consider, until `visit` returns true. Returns true if it did.
    #[inline]
    fn sweep(
        &self,
        hint: u64,
        visits: &mut u64,
        visit: &mut impl FnMut(usize, u64) -> bool,
    ) -> bool {
        let home = index(hint >> LOG);
        let ahead = u64::MAX << (hint % Self::ORDER);
        // Without a look at the hints: the home word usually has a slot, and the search ends after
        // one read.
        if visit(home, ahead) {
            return true;
        }
        let mut from = home + 1;
        while let Some(word) = self.next_word(from, visits) {
            if visit(word, u64::MAX) {
                return true;
            }
            from = word + 1;
        }
        from = 0;
        while let Some(word) = self.next_word(from, visits)
            && word < home
        {
            if visit(word, u64::MAX) {
                return true;
            }
            from = word + 1;
        }
        // Next-fit order ends with the slots before the hint in its own word.
        visit(home, !ahead)
    }

    /// Visits every nonempty word and corrects the hints, unless the counter is 0.
    #[cold]
    fn scan(&self, visit: &mut impl FnMut(usize, u64) -> bool) {
        if self.free_count() == 0 {
            return;
        }
        for (word, leaf) in self.levels[0].iter().enumerate() {
            if leaf.load(SeqCst) != 0 {
                let done = visit(word, u64::MAX);
                if leaf.load(SeqCst) != 0 {
                    self.raise(0, word);
                }
                if done {
                    return;
                }
            }
        }
    }

    /// Takes the lowest `want` slots of `mask` (or as many as there are) from a leaf word and
    /// returns them, 0 if there was none.
    #[inline]
    fn take_some(&self, word: usize, mask: u64, want: usize) -> u64 {
        let leaf = &self.levels[0][word];
        loop {
            let seen = leaf.load(SeqCst);
            if seen & mask == 0 {
                // The hint of an empty word is stale: later searches need not visit it.
                if seen == 0 {
                    self.lower(0, word);
                }
                return 0;
            }
            let pick = lowest_bits(seen & mask, want);
            // Other threads may take bits of `pick` first. This thread owns only the bits its
            // operation cleared.
            let old = leaf.fetch_and(!pick, SeqCst);
            if old & pick != 0 {
                // This operation emptied the word, so this thread lowers its hint.
                if old & !pick == 0 {
                    self.lower(0, word);
                }
                return old & pick;
            }
        }
    }

    /// Takes a whole run, or none of it and returns the used slot.
    fn claim_run(&self, start: u64, len: u64) -> Result<(), u64> {
        for (word, mask) in pieces(start, len, LOG) {
            let taken = self.levels[0][word]
                .fetch_update(SeqCst, SeqCst, |seen| (seen & mask == mask).then_some(seen & !mask));
            match taken {
                Ok(old) if old == mask => self.lower(0, word),
                Ok(_) => {}
                Err(seen) => {
                    // The words taken so far are freed before the error: a failed run takes no
                    // slot.
                    self.put_back(start, Self::first_slot(word).max(start) - start);
                    return Err(Self::first_slot(word) + lowest(!seen & mask));
                }
            }
        }
        // Only a complete run is subtracted, so `put_back` leaves the counter alone.
        self.free.0.fetch_sub(len, SeqCst);
        Ok(())
    }

    /// Frees slots taken by this call and not yet subtracted from the counter.
    fn put_back(&self, start: u64, len: u64) {
        for (word, mask) in pieces(start, len, LOG) {
            // This call owns the slots, so no other thread can have freed them.
            self.levels[0][word].fetch_or(mask, SeqCst);
            self.raise(0, word);
        }
    }

    /// The first run of `len` free slots within `from..to`.
    fn find_run(&self, from: u64, to: u64, len: u64) -> Option<u64> {
        let mut finder = RunFinder::new(len);
        let mut word = index(from >> LOG);
        loop {
            let base = Self::first_slot(word);
            if base >= to {
                return None;
            }
            let seen = self.levels[0][word].load(SeqCst) & window(base, from, to);
            if let Some(start) = finder.feed(base, seen, 1 << LOG) {
                return Some(start);
            }
            // Only an empty word allows a jump: a run may continue in the next word.
            word = if seen == 0 { self.next_word(word + 1, &mut 0)? } else { word + 1 };
        }
    }

    /// The first leaf word at or after `from` marked nonempty by hints. Lowers wrong hints over
    /// inner words on the way. Adds the number of visited nodes to `visits`.
    fn next_word(&self, from: usize, visits: &mut u64) -> Option<usize> {
        let order = 1 << LOG;
        let (mut level, mut at) = (0, from);
        // `at` is a word of `level`; everything before it was seen empty.
        while level + 1 < self.levels.len() {
            let hints = self.levels[level + 1].get(at >> LOG)?.load(SeqCst);
            *visits += 1;
            let hints = hints & (u64::MAX << (at % order));
            if hints == 0 {
                (level, at) = (level + 1, (at >> LOG) + 1);
                continue;
            }
            at = (at >> LOG << LOG) + hints.trailing_zeros() as usize;
            while level > 0 {
                let below = self.levels[level][at].load(SeqCst);
                *visits += 1;
                // A set hint over an empty word is allowed (S2): it is lowered, and the search goes
                // behind it.
                if below == 0 {
                    self.lower(level, at);
                    at += 1;
                    break;
                }
                (level, at) = (level - 1, (at << LOG) + below.trailing_zeros() as usize);
            }
            if level == 0 {
                return Some(at);
            }
        }
        // A tree of one word has no hints; the root of a larger one was passed.
        (self.levels.len() == 1 && from == 0).then_some(0)
    }

    /// Sets the hints above a word. Called after setting bits in it.
    #[inline]
    pub(crate) fn raise(&self, level: usize, word: usize) {
        let mut child = word;
        for parents in &self.levels[level + 1..] {
            let parent = &parents[child >> LOG];
            // A read first: most parents have the bit already, and a store would contend for their
            // cache line.
            if parent.load(SeqCst) & Self::bit(child as u64) == 0 {
                parent.fetch_or(Self::bit(child as u64), SeqCst);
            }
            child >>= LOG;
        }
    }

    /// Clears the hints above a word if it is empty. Called after finding it empty.
    fn lower(&self, level: usize, word: usize) {
        let mut child = word;
        for level in level..self.levels.len() - 1 {
            let (parent, bit) = (&self.levels[level + 1][child >> LOG], Self::bit(child as u64));
            // Another thread cleared the bit, and it reads the child again itself.
            if parent.load(SeqCst) & bit == 0 {
                return;
            }
            let old = parent.fetch_and(!bit, SeqCst);
            // The second read: a slot freed before the clear would stay hidden (S1).
            if self.levels[level][child].load(SeqCst) != 0 {
                self.raise(level, child);
                return;
            }
            // The parent has other children, so its own hint stays.
            if old != bit {
                return;
            }
            child >>= LOG;
        }
    }

    /// A hint as a slot of this tree.
    #[inline]
    fn clip(&self, hint: u64) -> u64 {
        if hint < self.capacity { hint } else { 0 }
    }

    #[inline]
    fn leaf(&self, slot: u64) -> &AtomicU64 {
        &self.levels[0][index(slot >> LOG)]
    }

    /// The bit of a slot or child in its node.
    #[inline]
    fn bit(child: u64) -> u64 {
        1 << (child % Self::ORDER)
    }

    #[inline]
    fn first_slot(word: usize) -> u64 {
        (word as u64) << LOG
    }

    /// Number of nonempty words marked empty by their parent (none while no call is in progress),
    /// and of empty words marked nonempty (none after single-threaded use).
    #[cfg(test)]
    pub(crate) fn wrong_hints(&self) -> (usize, usize) {
        let (mut hidden, mut stale) = (0, 0);
        for (children, parents) in self.levels.iter().zip(&self.levels[1..]) {
            for (child, word) in children.iter().enumerate() {
                let called = parents[child >> LOG].load(SeqCst) & Self::bit(child as u64) != 0;
                let nonempty = word.load(SeqCst) != 0;
                hidden += usize::from(nonempty && !called);
                stale += usize::from(called && !nonempty);
            }
        }
        (hidden, stale)
    }
}

impl<const LOG: u32> std::fmt::Debug for WordTree<LOG> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WordTree")
            .field("capacity", &self.capacity)
            .field("free", &self.free_count())
            .finish_non_exhaustive()
    }
}

/// Zeroed words; the system allocates their memory at the first access.
#[cfg(not(loom))]
fn zeroed(words: usize) -> Box<[AtomicU64]> {
    bytemuck::zeroed_slice_box(words)
}

#[cfg(loom)]
fn zeroed(words: usize) -> Box<[AtomicU64]> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

/// The position of the lowest set bit of `bits`, a nonzero mask.
#[inline]
fn lowest(bits: u64) -> u64 {
    u64::from(bits.trailing_zeros())
}

/// The lowest `want` bits of `bits`, or all.
#[inline]
fn lowest_bits(bits: u64, want: usize) -> u64 {
    if want >= bits.count_ones() as usize {
        return bits;
    }
    let mut rest = bits;
    for _ in 0..want {
        rest &= rest - 1;
    }
    bits ^ rest
}
