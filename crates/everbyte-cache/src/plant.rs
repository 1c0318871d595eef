//! Mistakes in the order of writing that tests plant with `everbyte_plant` and detect.

/// A mistake in the order of writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A page counts as clean before the backing device has flushed it.
    CleanBeforeFlush,
    /// The backing device gets bytes that a crash could still take back.
    OpenEpochWrittenBack,
    /// A page written during its write-back counts as clean.
    CleanThoughWritten,
    /// A trim forgets a page that a concurrent flush made durable.
    TrimForgetsFlushed,
    /// A hit lets the page move before the last byte is copied.
    MovedUnderHit,
}
