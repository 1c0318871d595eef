//! Which clean pages are used again before the paper's policy gives them up: learned by class of
//! page, from every clean page that the hand over DRAM found, whether we then kept it or not.
//!
//! Invariant: a share is counted over at most [`SEEN_MAX`] pages, of which later ones weigh more.

/// Pages counted before all counts are halved.
const SEEN_MAX: u32 = 512;
/// What a class is taken for before anything is known of it: half of eight pages used again.
const PRIOR: (u32, u32) = (4, 8);
/// Pages of which so many in sixteen are used again are seldom used again.
const SELDOM: u32 = 5;

/// What is known of a clean page.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Class(u8);

impl Class {
    /// More hits than these make no other class.
    pub(super) const HITS_MAX: u8 = 3;
    const COUNT: usize = 16;

    /// `hits` since the page came to DRAM, up to [`Class::HITS_MAX`]; whether the page before it was
    /// missed just before it; whether it was used again when last it was found.
    pub(super) fn new(hits: u8, sequential: bool, returned: bool) -> Self {
        Self(hits | u8::from(sequential) << 2 | u8::from(returned) << 3)
    }
}

/// For each class, pages used again and all.
pub(super) struct Odds([(u32, u32); Class::COUNT]);

impl Odds {
    pub(super) fn new() -> Self {
        Self([(0, 0); Class::COUNT])
    }

    /// A page of the class was used again, or given up without.
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
