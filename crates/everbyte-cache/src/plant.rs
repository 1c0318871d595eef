//! Mistakes in the order of writing that tests plant with `everbyte_plant` and detect.

/// A mistake in the order of writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A page counts as clean before the backing device has flushed it.
    CleanBeforeFlush,
    /// The backing device gets bytes that a crash could still take back.
    OpenEpochWrittenBack,
    /// SCM forgets a dirty page that is evicted before its write-back.
    EvictedBeforeWriteBack,
    /// A page written during its write-back counts as clean.
    CleanThoughWritten,
    /// The backing device is changed directly while SCM could come back with an older page.
    DirectWithoutCheckpoint,
    /// A flush omits bytes that are newer in DRAM.
    FlushWithoutPersistedCopy,
    /// A page cut by the backing device's end stays in the cache after the backing device has
    /// grown.
    CutPageKept,
    /// A page with a bypassing change is fetched, and so clean, before the backing device has
    /// flushed it.
    UnflushedFetched,
    /// A trim forgets a page that a concurrent flush made durable.
    TrimForgetsFlushed,
    /// A trim goes ahead although SCM still has a page durably as clean, from before its last write.
    TrimOverCleanCopy,
    /// A trim continues although SCM refused to free a page and counts it as clean, while it was
    /// written in DRAM.
    TrimOverKeptMark,
    /// A failed flush of the backing device is forgotten: its lost changes count as unflushed.
    FlushErrorUnreported,
    /// A page written during a flush replaces a trim that the flush must still make durable.
    ReplacedUnflushed,
    /// A page counts as clean although another caller's flush failed after its write.
    OthersFlushIgnored,
    /// A hit lets the page move before the last byte is copied.
    MovedUnderHit,
    /// A page is copied to DRAM while hits go on writing to it in SCM.
    PromotedBesideWrites,
    /// The policy decides before it gets the pending hits.
    DecidedBeforeReport,
    /// The policy gets hits of a page that it has evicted since, as if the page were cached.
    GonePageReported,
    /// A hit makes a clean page dirty without counting it.
    DirtyUncounted,
}
