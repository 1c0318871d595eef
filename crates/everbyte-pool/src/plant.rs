//! The mistakes that tests plant in the write protocol with `everbyte_plant`, here and in the
//! crates above, to see the crash explorer catch them.
//!
//! Flushes and fences that are merely missing are not here, but for one: the explorer's `Omission`
//! leaves them out of the sound code.

/// A mistake in the write protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Recovery believes records whose checksum is wrong.
    NoLogChecksum,
    /// Recovery believes records of dead epochs.
    EpochNotChecked,
    /// Replaced blocks are handed out again at once.
    ReuseWithoutQuarantine,
    /// The first epoch after recovery has a number that was used before.
    EpochReused,
    /// Replacing a block drops its dirty lines of the epoch being flushed.
    DirtyDroppedOnReplace,
    /// Recovery puts lines back, but not words.
    RecoveryKeepsNewEntry,
    /// A delete frees blocks without saying on the medium that the volume is gone.
    DeleteWithoutState,
    /// The deletion of a damaged volume frees blocks of other volumes.
    DeleteFreesOthers,
    /// Recovery does not do FUA fast-path writes again.
    RedoForgotten,
    /// Recovery does FUA fast-path writes again by lane, not in the order they were made.
    RedoInLaneOrder,
    /// The FUA fast path takes blocks that open epochs have records of.
    FuaFastPathIgnoresRecords,
    /// A seal leaves out lanes whose writers are still inside the epoch.
    SealDoesNotWait,
    /// Blocks are unlocked before what was logged of them is fenced.
    BlocksUnlockedEarly,
    /// A lane is given back between the records of a request and their fence.
    LaneShared,
    /// Every epoch fills the same half of a lane.
    OneLogHalf,
    /// Lines logged in an epoch count as logged in later ones.
    LoggedForever,
    /// A flush is content with the checkpoint that was under way when it came.
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
    /// Writes that are to be one are made one by one.
    AtomicInParts,
    /// A block of an epoch that is being sealed is written over as if it were new.
    OlderBlocksRefilled,
    /// A leaf that is taken off a map is still known as a part of it.
    UnlinkedLeafKnown,
    /// A logged line is logged again in the same epoch, with bytes that are not the oldest.
    LoggedTwice,
    /// A plan that found the log full is carried out after the checkpoint as it is.
    StalePlan,
    /// All cells of a block count as fresh once one of them was taken.
    CellsFreshByBlock,
    /// A freed cell is handed out again before that is durable.
    CellRefilledEarly,
    /// A freed run is free for others before that is durable.
    RunFreedEarly,
    /// A batch that goes back to a savepoint keeps a step of what it takes back.
    SavepointLeavesStep,
    /// A batch does not see what it has planned itself.
    OwnChangeUnseen,
    /// The FUA fast path takes entries that the epoch being flushed has a record of.
    FuaFastPathIgnoresSealedWords,
    /// A fresh block that is freed is free for others at once, even if the checkpoint has lines of
    /// it to flush.
    MarkedBlocksFreed,
    /// Streams of an abandoned plan are not fenced.
    /// (Commits have the same fence, of the same ranges, so no `Omission` can tell this one.)
    AbandonNotFenced,
    /// A block that a group took on one lane and frees on another is free at once.
    GroupBlocksFreed,
    /// A flush of a volume in which damage was found does nothing.
    FlushSkippedOnDamage,
    /// The record of a checkpoint is not flushed. (The opening of a pool stores one in the same places, so an `Omission`
    /// shows before any checkpoint.)
    CheckpointRecordUnflushed,
    /// A checkpoint that failed is forgotten: a flush after it finds nothing to do.
    FailedCheckpointForgotten,
    /// A pinned block is stored to in place.
    PinIgnoredByPlanner,
    /// A pinned block that was freed is free for others.
    PinIgnoredByRelease,
    /// A reader without locks notes the sequences after it has looked where the bytes lie.
    SequenceNotedLate,
    /// A writer moves a sequence once, after its stores.
    SequenceMovedLate,
    /// A reader without locks does not look at the sequences again, and trusts a block that was freed and
    /// reused meanwhile.
    ReaderLooksOnce,
    /// A reader without locks reports an entry that cannot be right before it looks whether it still stands there.
    CorruptBeforeSecondLook,
    /// A shutdown ends with the first volume whose checkpoint fails.
    CloseStopsEarly,
    /// A volume that somebody has open is given to a second user, with locks of his own.
    SecondHandleGiven,
}
