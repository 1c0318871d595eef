//! Which pages of a mapping have turned out to be bad.
//!
//! Invariants: the set only grows while its mapping is registered; a page is in it before zeroes
//! can be read in its place, so whoever has read them and then asks is told. `add` is for signal
//! handlers too: it takes no lock and allocates nothing.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bad pages that are remembered one by one; with more of them the medium is given up.
pub(crate) const PAGES_MAX: usize = 64;

/// Offsets of pages, in the order in which they were found. A page found by two threads at once
/// may be there twice.
pub(crate) struct BadPages {
    /// Entries claimed; may exceed what there is room for.
    claimed: AtomicUsize,
    /// The page's offset plus 1; 0 while its finder has claimed but not yet written it.
    offsets: [AtomicU64; PAGES_MAX],
}

impl BadPages {
    pub(crate) const fn new() -> Self {
        Self { claimed: AtomicUsize::new(0), offsets: [const { AtomicU64::new(0) }; PAGES_MAX] }
    }

    /// Forgets everything. Only while nobody else uses the set.
    pub(crate) fn clear(&self) {
        self.claimed.store(0, Ordering::SeqCst);
        self.offsets.iter().for_each(|offset| offset.store(0, Ordering::SeqCst));
    }

    /// Adds the page at `offset`; false if there is no room.
    pub(crate) fn add(&self, offset: u64) -> bool {
        if self.iter().any(|known| known == offset) {
            return true;
        }
        let place = self.claimed.fetch_add(1, Ordering::SeqCst);
        let Some(slot) = self.offsets.get(place) else { return false };
        slot.store(offset + 1, Ordering::SeqCst);
        true
    }

    /// Whether any page is bad. One load.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.claimed.load(Ordering::Acquire) != 0
    }

    /// Whether there are more than are remembered: any page may be one of them.
    pub(crate) fn overflowed(&self) -> bool {
        self.claimed.load(Ordering::Acquire) > PAGES_MAX
    }

    /// The offsets, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let claimed = self.claimed.load(Ordering::Acquire).min(PAGES_MAX);
        let written = |slot: &AtomicU64| slot.load(Ordering::Acquire).checked_sub(1);
        self.offsets[..claimed].iter().filter_map(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_kept_once_up_to_the_limit() {
        let bad = BadPages::new();
        assert!(!bad.any());
        for page in 0..PAGES_MAX as u64 {
            assert!(bad.add(page * 4096));
            assert!(bad.add(page * 4096));
        }
        assert!(bad.any());
        assert_eq!(bad.iter().count(), PAGES_MAX);
        assert!(bad.add(0), "it is known");
        assert!(!bad.overflowed());
        assert!(!bad.add(1 << 30));
        assert!(bad.overflowed());
        assert_eq!(bad.iter().count(), PAGES_MAX);
        bad.clear();
        assert!(!bad.any());
    }
}
