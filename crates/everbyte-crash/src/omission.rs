//! Flushes and fences that storage code is made to forget, so that its tests can show that they
//! would notice.
//!
//! Owns what is left out, where and by whom. Invariant: a fence is left out for what its thread
//! began since it last asked for one, so one that was left out takes no later ones with it. Knows
//! nothing of memory: the medium asks before each operation.

use std::collections::BTreeSet;
use std::sync::Arc;

use everbyte_media::PoolOffset;

use crate::labels::Labels;
use crate::memory::ThreadNo;

/// A flush or a fence that is left out wherever the code under test makes it, as if it had not.
///
/// What it concerns is told by the scenario's [labels](crate::Scenario::labels): an operation counts
/// if the name of its first byte, as reports have it, begins with the omission's label.
///
/// An operation that is left out has no number, is in no report, and succeeds.
///
/// # Example
/// The tests of this code notice if a flush or the first fence is missing:
/// ```
/// use everbyte_crash::{Closures, Explorer, Medium, Omission, PoolOffset};
///
/// const VALUE: PoolOffset = PoolOffset(0);
/// const FLAG: PoolOffset = PoolOffset(64);
///
/// fn publish() -> Closures<'static, (), u64> {
///     Closures::new(
///         |medium, _| {
///             for (at, word) in [(VALUE, 42), (FLAG, 1)] {
///                 medium.store_word(at, word);
///                 medium.flush(at, 8);
///                 medium.fence().unwrap();
///             }
///         },
///         |medium| Ok(if medium.load_word(FLAG) == 1 { medium.load_word(VALUE) } else { 42 }),
///         |value, _| if value == 42 { Ok(()) } else { Err(format!("found {value}")) },
///     )
///     .label(0..64, "value")
///     .label(64..128, "flag")
/// }
///
/// let explorer = Explorer::default();
/// explorer.explore(&publish()).unwrap();
/// for omission in [Omission::flush("value"), Omission::fence_after_flush("value")] {
///     let failure = explorer.explore(&publish().omit(omission)).unwrap_err();
///     assert_eq!(failure.message, "found 0");
///     assert!(failure.to_string().contains("LOST"));
/// }
/// // Nothing is promised of when the flag is durable, so nobody misses this one.
/// explorer.explore(&publish().omit(Omission::flush("flag"))).unwrap();
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Omission {
    what: What,
    label: String,
    part: Option<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Flush,
    FenceAfterFlush,
    FenceAfterStream,
}

/// Who makes an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Workload,
    Recovery,
}

impl Omission {
    fn new(what: What, label: impl Into<String>) -> Self {
        Self { what, label: label.into(), part: None }
    }

    /// Leaves out flushes of what `label` names. What is streamed there is stored with ordinary stores
    /// instead: a streamed copy needs no flush, so this is how code forgets to write it back.
    #[must_use]
    pub fn flush(label: impl Into<String>) -> Self {
        Self::new(What::Flush, label)
    }

    /// Leaves out fences of a thread that has flushed what `label` names since its last fence. They
    /// are left out for whatever else they would have waited for, too.
    #[must_use]
    pub fn fence_after_flush(label: impl Into<String>) -> Self {
        Self::new(What::FenceAfterFlush, label)
    }

    /// Like [`fence_after_flush`](Self::fence_after_flush), of a thread that has streamed there.
    #[must_use]
    pub fn fence_after_stream(label: impl Into<String>) -> Self {
        Self::new(What::FenceAfterStream, label)
    }

    /// The same in the workload alone.
    #[must_use]
    pub fn in_workload(self) -> Self {
        Self { part: Some(Part::Workload), ..self }
    }

    /// The same in recovery alone.
    #[must_use]
    pub fn in_recovery(self) -> Self {
        Self { part: Some(Part::Recovery), ..self }
    }

    pub(crate) fn is_made_by(&self, part: Part) -> bool {
        self.part.is_none_or(|own| own == part)
    }
}

/// An omission, with the names of the medium that it is for.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) omission: Omission,
    pub(crate) labels: Labels,
}

impl Placed {
    fn concerns(&self, at: PoolOffset) -> bool {
        self.labels.name(at).is_some_and(|name| name.starts_with(&self.omission.label))
    }
}

/// What a medium leaves out.
#[derive(Debug)]
pub(crate) struct Omitter {
    placed: Arc<Placed>,
    /// Threads whose next fence is left out.
    unfenced: BTreeSet<ThreadNo>,
}

impl Omitter {
    pub(crate) fn new(placed: Arc<Placed>) -> Self {
        Self { placed, unfenced: BTreeSet::new() }
    }

    /// Whether a flush from `at` on is left out.
    pub(crate) fn omits_flush(&mut self, thread: ThreadNo, at: PoolOffset) -> bool {
        self.begin(What::FenceAfterFlush, thread, at)
    }

    /// Whether what is streamed to `at` is an ordinary store.
    pub(crate) fn omits_streaming(&mut self, thread: ThreadNo, at: PoolOffset) -> bool {
        self.begin(What::FenceAfterStream, thread, at)
    }

    /// Whether the fence that `thread` asks for is left out.
    pub(crate) fn omits_fence(&mut self, thread: ThreadNo) -> bool {
        self.unfenced.remove(&thread)
    }

    fn begin(&mut self, fenced: What, thread: ThreadNo, at: PoolOffset) -> bool {
        let what = self.placed.omission.what;
        if (what != What::Flush && what != fenced) || !self.placed.concerns(at) {
            return false;
        }
        if what == fenced {
            self.unfenced.insert(thread);
        }
        what == What::Flush
    }
}
