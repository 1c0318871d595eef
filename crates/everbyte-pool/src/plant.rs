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
    /// Recovery believes records of dead epochs.
    EpochNotChecked,
    /// Replaced blocks are allocated again immediately.
    ReuseWithoutQuarantine,
    /// The first epoch after recovery has an already used number.
    EpochReused,
    /// Replacing a block drops its dirty lines of the epoch being flushed.
    DirtyDroppedOnReplace,
    /// Recovery puts lines back, but not words.
    RecoveryKeepsNewEntry,
    /// A delete frees blocks without a mark on the medium that the volume is gone.
    DeleteWithoutState,
    /// The deletion of a damaged volume frees blocks of other volumes.
    DeleteFreesOthers,
    /// Recovery does not do FUA fast-path writes again.
    RedoForgotten,
    /// Recovery does FUA fast-path writes again by lane, not in the order they were made.
    RedoInLaneOrder,
    /// The FUA fast path takes blocks with records of open epochs.
    FuaFastPathIgnoresRecords,
    /// A seal leaves out lanes with writers still inside the epoch.
    SealDoesNotWait,
    /// Blocks are unlocked before their records are fenced.
    BlocksUnlockedEarly,
    /// A lane is released between the records of a request and their fence.
    LaneShared,
    /// Every epoch fills the same half of a lane.
    OneLogHalf,
    /// Lines logged in an epoch count as logged in later ones.
    LoggedForever,
    /// A flush accepts the checkpoint in progress at its start.
    FlushSharesEarlier,
    /// A reader gives its block locks back before it looks where the blocks lie.
    ReaderUnlocksEarly,
    /// Branches of a map are attached without keeping others from doing the same.
    BranchUnlocked,
    /// A block is changed in place without a record of its checksum.
    ChecksumNotLogged,
    /// The FUA fast path stores a checksum in a node that undo takes away.
    ChecksumUnsettled,
    /// Recovery takes the first copy of the checkpoint record as it is.
    FirstRecordCopyBelieved,
    /// The writes of an atomic request are made separately.
    AtomicInParts,
    /// A block of a sealing epoch is overwritten as if it were new.
    OlderBlocksRefilled,
    /// A leaf removed from a map is still treated as a part of it.
    UnlinkedLeafKnown,
    /// A logged line is logged again in the same epoch, with later bytes than the oldest.
    LoggedTwice,
    /// A plan from before a full log is carried out unchanged after the checkpoint.
    StalePlan,
    /// A freed run is available to others before the free is durable.
    RunFreedEarly,
    /// A batch rolled back to a savepoint keeps a later step.
    SavepointLeavesStep,
    /// A batch does not see its own planned changes.
    OwnChangeUnseen,
    /// The FUA fast path takes entries with a record in the flushing epoch.
    FuaFastPathIgnoresSealedWords,
    /// A freed fresh block is available to others immediately, even if the checkpoint has lines of it to
    /// flush.
    MarkedBlocksFreed,
    /// Streams of an abandoned plan are not fenced. (Commits have the same fence, of the same ranges, so no
    /// `Omission` can distinguish this one.)
    AbandonNotFenced,
    /// A block allocated by a group on one lane and freed on another is free immediately.
    GroupBlocksFreed,
    /// A flush of a damaged volume does nothing.
    FlushSkippedOnDamage,
    /// The record of a checkpoint is not flushed. (The opening of a pool stores one in the same places, so an `Omission`
    /// shows before any checkpoint.)
    CheckpointRecordUnflushed,
    /// A failed checkpoint is forgotten: a flush after it finds nothing to do.
    FailedCheckpointForgotten,
    /// A pinned block is stored to in place.
    PinIgnoredByPlanner,
    /// A freed pinned block is available to others.
    PinIgnoredByRelease,
    /// A reader without locks notes the sequences after it has looked where the bytes lie.
    SequenceNotedLate,
    /// A writer moves a sequence once, after its stores.
    SequenceMovedLate,
    /// A reader without locks does not recheck the sequences, and trusts a block freed and reused since.
    ReaderLooksOnce,
    /// A reader without locks reports an invalid entry before it rechecks that the entry still stands there.
    CorruptBeforeSecondLook,
    /// A shutdown ends with the first volume with a failed checkpoint.
    CloseStopsEarly,
    /// An open volume is given to a second user, with separate locks.
    SecondHandleGiven,
}
