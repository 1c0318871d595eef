//! Mistakes that tests plant in the pager and in direct mode with `everbyte_plant`.

/// A mistake in the order of steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A unit's slot is free before its page is filled from it.
    SlotFreedBeforeFill,
    /// Two threads fill one unit.
    TwoFillers,
    /// A page is copied out before it is write-protected.
    CopiedBeforeProtected,
    /// A unit counts as stored before the removal of its page.
    StoredBeforeZapped,
    /// A fault fills a closed unit.
    FilledWhileClosed,
    /// A move copies a chunk to its run before stores to the chunk fault.
    CopiedBeforeFrozen,
    /// A chunk's run is free before its mapping is replaced.
    RunFreedBeforeMoved,
}
