//! Estimates of reuse: the share of clean pages that are used before the paper's policy evicts
//! them. Learned by class of page, from every clean page that the hand over DRAM found, kept or
//! not.
//!
//! Invariant: a share is counted over at most [`SEEN_MAX`] pages, of which later ones weigh more.

/// Pages counted before all counts are halved.
const SEEN_MAX: u32 = 512;
/// Counts of a class before its first page: half of eight pages used again.
const PRIOR: (u32, u32) = (4, 8);
/// A class whose pages are used again in at most this many of sixteen cases is seldom used.
const SELDOM: u32 = 5;

/// Class of a clean page: its hits, and how it came.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Class(u8);

impl Class {
    /// Most hits that make classes differ.
    pub(super) const HITS_MAX: u8 = 3;
    const COUNT: usize = 16;

    /// Makes a class of the `hits` since the page came to DRAM, up to [`Class::HITS_MAX`]; of
    /// whether the page before it was missed just before it; and of whether it was used again when
    /// last it was found.
    pub(super) fn new(hits: u8, sequential: bool, returned: bool) -> Self {
        Self(hits | u8::from(sequential) << 2 | u8::from(returned) << 3)
    }
}

/// Pages used again and all pages, for each class.
pub(super) struct ReuseEstimator([(u32, u32); Class::COUNT]);

impl ReuseEstimator {
    pub(super) fn new() -> Self {
        Self([(0, 0); Class::COUNT])
    }

    /// Counts a page of the class, which was used again, or evicted without.
    pub(super) fn learn(&mut self, class: Class, used: bool) {
        let (again, seen) = &mut self.0[usize::from(class.0)];
        *again += u32::from(used);
        *seen += 1;
        if *seen == SEEN_MAX {
            (*again, *seen) = (*again / 2, *seen / 2);
        }
    }

    pub(super) fn is_seldom_used(&self, class: Class) -> bool {
        let (again, seen) = self.0[usize::from(class.0)];
        (again + PRIOR.0) * 16 <= (seen + PRIOR.1) * SELDOM
    }
}
