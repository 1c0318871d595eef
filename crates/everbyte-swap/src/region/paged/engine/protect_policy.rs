//! Which is cheaper for a page that is filled for a load: to protect it, or to copy it out.
//!
//! A protected page that is never stored to leaves without a copy; one that is stored to costs a fault
//! more, which is about three times as dear as the copy. So pages are protected while fewer than a
//! third of those that were are stored to. Some are protected in any case, to notice when that changes.
//!
//! Invariants: what is noted only steers; any value is a valid state, so threads that overwrite each
//! other's notes do no harm. Callable in signal handlers.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// The share that stands for "every protected page was stored to".
const WHOLE: u32 = 1 << 16;
/// Share from which on pages are better not protected.
const LIKELY: u32 = WHOLE / 3;
/// UffdMemory over which the share is averaged, more or less.
const MEMORY_SHIFT: u32 = 6;
/// One in so many pages is protected in any case.
const SAMPLE: u32 = 16;

/// The share of protected pages that were stored to.
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

    /// Notes so many protected pages that left without a store.
    pub(super) fn note_clean(&self, pages: u64) {
        let mut share = self.share.load(Relaxed);
        for _ in 0..pages.min(1 << MEMORY_SHIFT) {
            share -= share >> MEMORY_SHIFT;
        }
        self.share.store(share, Relaxed);
    }

    /// True if a page that is filled for a load now is better not protected.
    pub(super) fn are_likely(&self) -> bool {
        self.share.load(Relaxed) > LIKELY
            && !self.fills.fetch_add(1, Relaxed).is_multiple_of(SAMPLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_protected_until_most_of_them_are_stored_to_and_again_when_that_ends() {
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
    fn one_page_in_five_that_is_stored_to_is_no_reason_to_copy_all() {
        let policy = ProtectPolicy::default();
        for _ in 0..1000 {
            policy.note_clean(4);
            policy.note_store();
        }
        assert!(!policy.are_likely());
    }
}
