//! The mistakes planted by tests in the write protocol with `everbyte_plant`, here and in the crates above,
//! for the crash explorer to catch.
//!
//! Missing flushes and fences are not here, except one: the explorer's `Omission` leaves them out of the
//! sound code.

/// A mistake in the write protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Recovery believes records with a wrong checksum.
    NoLogChecksum,
    /// Replaced blocks are allocated again immediately.
    ReuseWithoutQuarantine,
    /// Replacing a block drops its dirty lines of the epoch being flushed.
    DirtyDroppedOnReplace,
    /// A delete frees blocks without a mark on the medium that the volume is gone.
    DeleteWithoutState,
    /// Recovery does FUA fast-path writes again by lane, not in the order they were made.
    RedoInLaneOrder,
    /// The FUA fast path takes blocks with records of open epochs.
    FuaFastPathIgnoresRecords,
    /// A seal leaves out lanes with writers still inside the epoch.
    SealDoesNotWait,
    /// Blocks are unlocked before their records are fenced.
    BlocksUnlockedEarly,
    /// A block is changed in place without a record of its checksum.
    ChecksumNotLogged,
    /// The writes of an atomic request are made separately.
    AtomicInParts,
    /// A leaf removed from a map is still treated as a part of it.
    UnlinkedLeafKnown,
    /// A logged line is logged again in the same epoch, with later bytes than the oldest.
    LoggedTwice,
    /// A failed checkpoint is forgotten: a flush after it finds nothing to do.
    FailedCheckpointForgotten,
    /// A pinned block is stored to in place.
    PinIgnoredByPlanner,
    /// A reader without locks does not recheck the sequences, and trusts a block freed and reused since.
    ReaderLooksOnce,
}
