//! The mistakes that tests plant in the schemes with `everbyte_plant`, to see them caught.
//!
//! Flushes and fences that are merely missing are not here: the crash explorer's `Omission` leaves
//! them out. The rollback scheme's mistakes are in `everbyte_pool::plant`.

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// Redo as published: records before a block was replaced go over its new contents.
    PublishedOldOverNew,
    /// Rollback as published: new bytes are stored before the request is committed.
    PublishedStoredEarly,
    /// Rollback as published: recovery takes back the oldest request first.
    PublishedUndoneForward,
    /// Improved redo: recovery believes groups whose checksum is wrong.
    ImprovedUnchecked,
    /// Improved redo: a block is written in place though a durable record points to it.
    ImprovedInPlace,
    /// Block journal: recovery believes transactions that have no commit block.
    JournalUncommitted,
    /// Block journal: what a running transaction frees can be used again at once.
    JournalFreedEarly,
    /// Shadow paging: several pointers of one request are stored in place, one by one.
    ShadowNoCommonRoot,
    /// Shadow paging: a replaced block is free before the pointer to the new one is durable.
    ShadowFreedEarly,
    /// Shadow paging: a change across two words is made in place.
    ShadowTwoWords,
    /// Shadow paging: the size is stored before the appended bytes are durable.
    ShadowSizeEarly,
    /// Shadow paging: bytes of an append that was cut short stay beyond the size.
    ShadowTailKept,
}
