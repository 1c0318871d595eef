//! The poisoned pages of a mapping.
//!
//! Invariants: a bit for each page in the largest extent of the mapping: any number of them can be poisoned.
//! Bits are only set while the mapping is registered. A page's bit is set before its substitute zeroes can be
//! read: a reader of the zeroes gets the error from its next check. `add` is for signal handlers too: it
//! takes no lock and allocates nothing. The bits take memory only where one was set or read.

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const WORD_BITS: usize = 64;

/// The pages of a mapping known to be poisoned, by their numbers in the mapping.
pub(crate) struct PoisonedPages {
    /// `words` words; null while there are none.
    bits: AtomicPtr<AtomicU64>,
    words: AtomicUsize,
    any: AtomicBool,
}

impl PoisonedPages {
    /// A set with room for no page.
    pub(crate) const fn new() -> Self {
        Self {
            bits: AtomicPtr::new(ptr::null_mut()),
            words: AtomicUsize::new(0),
            any: AtomicBool::new(false),
        }
    }

    /// Gives an empty set room for `pages` pages, without adding any. Requires: no other user.
    ///
    /// # Errors
    /// Address space is missing.
    pub(crate) fn make_room(&self, pages: usize) -> io::Result<()> {
        let words = pages.div_ceil(WORD_BITS).max(1);
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: the kernel chooses a free place.
        let bits = unsafe { mmap_anonymous(ptr::null_mut(), words * 8, access, flags) }?;
        self.bits.store(bits.cast(), Ordering::SeqCst);
        self.words.store(words, Ordering::SeqCst);
        self.any.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Clears the set and releases its memory. Requires: no other user.
    pub(crate) fn clear(&self) {
        let words = self.words.swap(0, Ordering::SeqCst);
        let bits = self.bits.swap(ptr::null_mut(), Ordering::SeqCst);
        self.any.store(false, Ordering::SeqCst);
        if !bits.is_null() {
            // SAFETY: mapped by `make_room` with this length, and nobody has a reference into it.
            // It cannot fail for such a range, and there would be nothing to do about it.
            let _cannot_fail = unsafe { munmap(bits.cast(), words * 8) };
        }
    }

    fn bits(&self) -> &[AtomicU64] {
        let bits = self.bits.load(Ordering::Acquire);
        if bits.is_null() {
            return &[];
        }
        // SAFETY: `make_room` mapped that many words, zero at first; they stay mapped as long as
        // anyone uses the set, and are only ever accessed as atomics.
        unsafe { std::slice::from_raw_parts(bits, self.words.load(Ordering::Acquire)) }
    }

    /// Adds a page within the room.
    pub(crate) fn add(&self, page: usize) {
        if let Some(word) = self.bits().get(page / WORD_BITS) {
            word.fetch_or(1 << (page % WORD_BITS), Ordering::SeqCst);
            self.any.store(true, Ordering::SeqCst);
        }
    }

    /// Returns true if any page is pages. Costs one load.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The first poisoned page in a range.
    pub(crate) fn first_in(&self, pages: Range<usize>) -> Option<usize> {
        let bits = self.bits();
        let mut page = pages.start;
        while page < pages.end {
            let word = bits.get(page / WORD_BITS)?.load(Ordering::Acquire) >> (page % WORD_BITS);
            if word != 0 {
                let found = page + word.trailing_zeros() as usize;
                return (found < pages.end).then_some(found);
            }
            page = (page / WORD_BITS + 1) * WORD_BITS;
        }
        None
    }

    /// The poisoned pages in a range, ascending.
    pub(crate) fn all_in(&self, pages: Range<usize>) -> impl Iterator<Item = usize> {
        let mut from = pages.start;
        std::iter::from_fn(move || {
            let found = self.first_in(from..pages.end)?;
            from = found + 1;
            Some(found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisoned_pages_are_found_until_forgotten() {
        let pages = PoisonedPages::new();
        pages.add(0);
        assert!(!pages.any(), "there was no room");
        pages.make_room(200).unwrap();
        assert_eq!((pages.any(), pages.first_in(0..200)), (false, None));
        for page in [199, 63, 64, 130, 63] {
            pages.add(page);
        }
        assert!(pages.any());
        assert_eq!(pages.all_in(0..200).collect::<Vec<_>>(), [63, 64, 130, 199]);
        assert_eq!((pages.first_in(0..63), pages.first_in(65..130)), (None, None));
        assert_eq!((pages.first_in(64..65), pages.first_in(131..200)), (Some(64), Some(199)));
        assert_eq!((pages.first_in(64..64), pages.first_in(500..600)), (None, None));
        pages.clear();
        assert_eq!((pages.any(), pages.first_in(0..200)), (false, None));
        pages.make_room(10).unwrap();
        assert_eq!(pages.first_in(0..10), None);
        pages.clear();
    }
}
