//! The mistakes that tests plant in the order of writing with `everbyte_plant`, to see them caught.

/// A mistake in the order of writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A page counts as clean before the backing device has flushed it.
    CleanBeforeFlush,
    /// The backing device is given bytes that a crash could still take back.
    OpenEpochWrittenBack,
    /// SCM forgets a dirty page that is evicted before it is written back.
    EvictedBeforeWriteBack,
    /// A page written meanwhile counts as clean after its older bytes were written back.
    CleanThoughWritten,
    /// The backing device is changed directly while SCM could come back with an older page.
    DirectWithoutCheckpoint,
    /// A flush leaves out bytes that are newer in DRAM.
    FlushWithoutPersistedCopy,
    /// A page that the backing device's end cut stays in the cache when the backing device has
    /// grown.
    CutPageKept,
    /// A page whose change bypassed the cache is fetched, and so clean, before the backing device
    /// has flushed it.
    UnflushedFetched,
    /// A trim forgets a page that a flush made durable after the trim had begun.
    TrimForgetsFlushed,
    /// A trim goes ahead although SCM still has a page durably as clean, from before its last write.
    TrimOverCleanCopy,
    /// A trim goes ahead although SCM counts a page as clean that was written in DRAM, because it refused to
    /// let go of it.
    TrimOverKeptMark,
    /// A flush of the backing device that fails is forgotten: what it may have lost counts as not
    /// flushed yet.
    FlushErrorUnreported,
    /// A page written during a flush takes the place of a trim that the flush has yet to make durable.
    ReplacedUnflushed,
    /// A page counts as clean although somebody else's flush failed after it was written.
    OthersFlushIgnored,
    /// A hit lets the page move before the last byte is copied.
    MovedUnderHit,
    /// A page is copied to DRAM while hits go on writing to it in SCM.
    PromotedBesideWrites,
    /// The policy decides before it has heard of the hits so far.
    DecidedBeforeReport,
    /// The policy hears of hits of a page that it has evicted since, and believes that it is there.
    GonePageReported,
    /// A hit makes a clean page dirty, and nobody counts it.
    DirtyUncounted,
}
