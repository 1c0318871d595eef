//! The mistakes that tests plant in the pager and in direct mode with `everbyte_plant`, to see them caught.

/// A mistake in the order of steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A unit's slot is free before its page is filled from it.
    SlotFreedBeforeFill,
    /// A page that was stored to while it was written back is evicted all the same.
    CleanThoughWritten,
    /// Two threads fill one unit.
    TwoFillers,
    /// The evictor takes pinned units too.
    PinnedEvicted,
    /// A unit that was changed is evicted to the slot that it had before.
    GhostReused,
    /// A page is found to be of zeroes, and then stored to, before it is write-protected.
    ZeroPageLost,
    /// A page is copied out before it is write-protected.
    CopiedBeforeProtected,
    /// A page that was filled for a load is writable and counts as clean.
    CleanAndWritable,
    /// The slot of a write-back that came to nothing is forgotten.
    SlotLeaked,
    /// A unit's window is not among those that the evictor visits.
    WindowForgotten,
    /// Units between those of a batch are write-protected with them, whoever owns them.
    NeighbourProtected,
    /// A unit counts as stored before its page is gone.
    StoredBeforeZapped,
    /// A page that a zap took away before it failed counts as there.
    GoneTakenForThere,
    /// A page that a zap took away before it failed comes back with zeroes.
    RestoredAsZeroes,
    /// Two threads make an empty chunk.
    TwoMakers,
    /// A chunk that is moved is copied to its run before stores to it fault.
    CopiedBeforeFrozen,
    /// A chunk's run is free before its mapping is gone.
    RunFreedBeforeMoved,
    /// A chunk is let go of before its mapping is replaced.
    ChunkReleasedBeforeMoved,
    /// Pinned chunks are moved too.
    PinnedChunkMoved,
    /// A new chunk shows what its run held before.
    RunNotZeroed,
    /// The run of a chunk that has moved to DRAM is forgotten.
    RunLeaked,
    /// A chunk that could not move to DRAM gives up the run that it still is.
    RunFreedThoughNotMoved,
    /// A chunk that could not move out of DRAM counts as the run that it was to be.
    MovedThoughRefused,
}
