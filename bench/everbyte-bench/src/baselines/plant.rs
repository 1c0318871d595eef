//! Planted bugs: one mistake or more in each scheme, which its crash tests must find.
//!
//! Only the tests' build can make them; in any other build every question is answered `false`
//! at compile time. The rollback scheme's are in `everbyte_pool::plant`.

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// No consistency: a commit does not write dirty lines back.
    NoneNotFlushed,
    /// No consistency: a streamed block is not fenced.
    NoneNotFenced,
    /// Redo as published: the commit word does not wait for the records.
    PublishedCommitEarly,
    /// Redo as published: a checkpoint empties the log before what it copied is durable.
    PublishedEmptiedEarly,
    /// Redo as published: recovery does not write back what it copied.
    PublishedRecoveryNotFlushed,
    /// Redo as published: records before a block was replaced go over its new contents.
    PublishedOldOverNew,
    /// Improved redo: recovery believes groups whose checksum is wrong.
    ImprovedUnchecked,
    /// Improved redo: a pointer is logged before the new block is known to be durable.
    ImprovedPointerEarly,
    /// Improved redo: a commit does not fence.
    ImprovedNotFenced,
    /// Improved redo: the next generation fills the log before its number is durable.
    ImprovedGenerationLate,
    /// Improved redo: a block is written in place though a durable record points to it.
    ImprovedInPlace,
    /// Block journal: recovery believes transactions whose checksum is wrong.
    JournalUnchecked,
    /// Block journal, ordered: the commit record does not wait for the data.
    JournalMetadataFirst,
    /// Block journal: a checkpoint empties the journal before what it copied is durable.
    JournalEmptiedEarly,
    /// Block journal: what a running transaction frees can be used again at once.
    JournalFreedEarly,
    /// Shadow paging: the pointer does not wait for the copy.
    ShadowPointerEarly,
    /// Shadow paging: several pointers of one request are stored in place, one by one.
    ShadowNoCommonRoot,
    /// Shadow paging: a replaced block is free before the pointer to the new one is durable.
    ShadowFreedEarly,
    /// Shadow paging: a change across two words is made in place.
    ShadowTwoWords,
}

/// Whether `bug` is switched on: never, in this build.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn planted(_bug: Bug) -> bool {
    false
}

#[cfg(test)]
pub(crate) use active::{plant, planted};

#[cfg(test)]
mod active {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static ACTIVE: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Switches `bug` on for this thread, or all bugs off.
    pub(crate) fn plant(bug: Option<Bug>) {
        ACTIVE.set(bug);
    }

    /// Whether this thread has `bug` switched on.
    pub(crate) fn planted(bug: Bug) -> bool {
        ACTIVE.get() == Some(bug)
    }
}
