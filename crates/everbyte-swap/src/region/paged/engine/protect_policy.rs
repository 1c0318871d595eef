//! Chooses the cheaper treatment of a page filled for a load: protection, or a copy at its
//! eviction.
//!
//! A protected page without a store leaves without a copy. A store to a protected page costs one
//! more fault, about three times the cost of the copy. So pages are protected while fewer than a
//! third of the protected pages see a store. A few pages are always protected, to detect a change
//! of the share.
//!
//! Invariants: the notes only steer; any value is a valid state, so concurrent overwrites are
//! harmless. Callable in signal handlers.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// The share for "every protected page had a store".
const WHOLE: u32 = 1 << 16;
/// Share above which pages are not protected.
const LIKELY: u32 = WHOLE / 3;
/// Number of pages in the moving average, as a power of two.
const MEMORY_SHIFT: u32 = 6;
/// One in so many pages is protected in any case.
const SAMPLE: u32 = 16;

/// The share of protected pages with a store.
#[derive(Default)]
pub(super) struct ProtectPolicy {
    share: AtomicU32,
    fills: AtomicU32,
}

impl ProtectPolicy {
    /// Notes a store to a protected page.
    pub(super) fn note_store(&self) {
        let share = self.share.load(Relaxed).min(WHOLE);
        self.share.store(share + ((WHOLE - share) >> MEMORY_SHIFT), Relaxed);
    }

    /// Counts `pages` protected pages evicted without a store.
    pub(super) fn note_clean(&self, pages: u64) {
        let mut share = self.share.load(Relaxed);
        // More pages than the average covers have no further effect.
        for _ in 0..pages.min(1 << MEMORY_SHIFT) {
            share -= share >> MEMORY_SHIFT;
        }
        self.share.store(share, Relaxed);
    }

    /// True if a page filled for a load now should not be protected.
    pub(super) fn are_likely(&self) -> bool {
        self.share.load(Relaxed) > LIKELY
            // A few pages are protected in any case, to notice when stores become rare.
            && !self.fills.fetch_add(1, Relaxed).is_multiple_of(SAMPLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protection_follows_share_of_stores() {
        let policy = ProtectPolicy::default();
        assert!(!policy.are_likely(), "at first nothing is known");
        (0..200).for_each(|_| policy.note_store());
        let unprotected = (0..160).filter(|_| policy.are_likely()).count();
        assert_eq!(unprotected, 150, "one in sixteen is protected in any case");
        policy.note_clean(1000);
        (0..4).for_each(|_| policy.note_clean(64));
        assert!((0..160).all(|_| !policy.are_likely()));
    }

    #[test]
    fn protection_stays_at_one_store_in_five() {
        let policy = ProtectPolicy::default();
        for _ in 0..1000 {
            policy.note_clean(4);
            policy.note_store();
        }
        assert!(!policy.are_likely());
    }
}
