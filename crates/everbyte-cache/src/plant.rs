//! Planted bugs: mistakes in the order of writing that crash tests must be able to catch.
//!
//! With the feature `planted-bugs` a test can switch one on for its thread; without it every
//! question is answered `false` at compile time.

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

#[cfg(feature = "planted-bugs")]
mod active {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static ACTIVE: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Switches `bug` on for this thread, or all bugs off.
    pub fn plant(bug: Option<Bug>) {
        ACTIVE.with(|active| active.set(bug));
    }

    /// Whether this thread has `bug` switched on.
    #[must_use]
    pub fn planted(bug: Bug) -> bool {
        ACTIVE.with(|active| active.get() == Some(bug))
    }
}

#[cfg(feature = "planted-bugs")]
pub use active::{plant, planted};

/// Whether `bug` is switched on: never, in this build.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
#[must_use]
pub const fn planted(_bug: Bug) -> bool {
    false
}
