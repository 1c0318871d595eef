//! Mistakes that tests plant in the pager and in direct mode with `everbyte_plant`.

/// A mistake in the order of steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A unit's slot is free before its page is filled from it.
    SlotFreedBeforeFill,
    /// The evictor removes a page stored to during its write-back.
    CleanThoughWritten,
    /// Two threads fill one unit.
    TwoFillers,
    /// The evictor takes pinned units too.
    PinnedEvicted,
    /// The evictor reuses the old slot of a changed unit.
    GhostReused,
    /// A page is found to be of zeroes, and then stored to, before it is write-protected.
    ZeroPageLost,
    /// A page is copied out before it is write-protected.
    CopiedBeforeProtected,
    /// A page filled for a load is writable and counts as clean.
    CleanAndWritable,
    /// A failed write-back forgets its slot.
    SlotLeaked,
    /// A unit's window is missing from the evictor's set.
    WindowForgotten,
    /// The evictor write-protects foreign units between the units of a batch.
    NeighbourProtected,
    /// A unit counts as stored before the removal of its page.
    StoredBeforeZapped,
    /// A page removed by a failed zap counts as present.
    GoneTakenForThere,
    /// A page removed by a failed zap is restored with zeroes.
    RestoredAsZeroes,
    /// Two threads make an empty chunk.
    TwoMakers,
    /// A move copies a chunk to its run before stores to the chunk fault.
    CopiedBeforeFrozen,
    /// A chunk's run is free before its mapping is replaced.
    RunFreedBeforeMoved,
    /// A chunk is released before its mapping is replaced.
    ChunkReleasedBeforeMoved,
    /// Pinned chunks are moved too.
    PinnedChunkMoved,
    /// A new chunk shows old bytes of its run.
    RunNotZeroed,
    /// A move to DRAM forgets the chunk's run.
    RunLeaked,
    /// A failed move to DRAM frees the run still mapped by the chunk.
    RunFreedThoughNotMoved,
    /// A failed move out of DRAM counts the chunk as direct.
    MovedThoughRefused,
}
