//! The mistakes that tests plant in the order of writing with `everbyte_plant`, to see them caught.

/// A mistake in the order of writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A page counts as clean before storage has flushed it.
    CleanBeforeFlush,
    /// Storage is given bytes that a crash could still take back.
    OpenEpochWrittenBack,
    /// A dirty page that is evicted is forgotten before it is written back.
    EvictedBeforeWriteBack,
    /// A page written meanwhile counts as clean after its older bytes were written back.
    CleanThoughWritten,
    /// Storage is changed directly while memory could come back with an older page.
    DirectWithoutCheckpoint,
    /// A flush leaves out what is newer in DRAM.
    FlushWithoutShadow,
    /// A page that the storage's end cut stays in the cache when the storage has grown.
    CutPageKept,
    /// A page that was changed past the cache is fetched, and so clean, before storage has flushed it.
    UnflushedFetched,
    /// A trim forgets a page that a flush made durable after the trim had begun.
    TrimForgetsFlushed,
    /// A flush of storage that fails is forgotten: what it may have lost counts as not flushed yet.
    FlushErrorUntold,
    /// A page counts as clean although somebody else's flush failed after it was written.
    OthersFlushIgnored,
}
