//! The mistakes that tests plant in the schemes with `everbyte_plant`, to see them caught.
//!
//! The crash explorer's `Omission` leaves out flushes and fences, so this list has only other
//! mistakes. The rollback scheme's mistakes are in `everbyte_pool::plant`.

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// Redo as published: records before a block was replaced go over its new contents.
    PublishedOldOverNew,
    /// Rollback as published: new bytes are stored before the request is committed.
    PublishedStoredEarly,
    /// Rollback as published: recovery takes back the oldest request first.
    PublishedUndoneForward,
    /// Improved redo: recovery accepts groups with a wrong checksum.
    ImprovedUnchecked,
    /// Improved redo: a block is written in place though a durable record points to it.
    ImprovedInPlace,
    /// Block journal: recovery accepts transactions without a commit block.
    JournalUncommitted,
    /// Block journal: a block freed by a running transaction is reused immediately.
    JournalFreedEarly,
    /// Shadow paging: several pointers of one request are stored in place, one by one.
    ShadowNoCommonRoot,
    /// Shadow paging: a replaced block is free before the pointer to the new one is durable.
    ShadowFreedEarly,
    /// Shadow paging: a change across two words is made in place.
    ShadowTwoWords,
    /// Shadow paging: the size is stored before the appended bytes are durable.
    ShadowSizeEarly,
    /// Shadow paging: bytes of an incomplete append stay beyond the size.
    ShadowTailKept,
}
