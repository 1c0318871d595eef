//! Flushes and fences omitted from storage code, to show that its tests detect the omission.
//!
//! Owns the choice of the operations that are left out. Invariant: a fence is left out because of
//! the flushes and streams of its thread since the thread's last call of a fence, so an omitted
//! fence takes no later ones with it. Knows nothing of memory: the medium asks before each
//! operation.

use std::collections::BTreeSet;
use std::sync::Arc;

use everbyte_media::PoolOffset;

use crate::labels::Labels;
use crate::memory::ThreadNo;

/// A flush or a fence that the medium ignores wherever the code under test makes it.
///
/// The scenario's [labels](crate::Scenario::labels) select operations: an operation counts if the
/// name of its first byte, as in reports, begins with the omission's label.
///
/// An omitted operation has no number, is in no report, and succeeds.
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
    what: OmittedOp,
    label: String,
    part: Option<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OmittedOp {
    Flush,
    FenceAfterFlush,
    FenceAfterStream,
}

/// The part of a scenario with the operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Workload,
    Recovery,
}

impl Omission {
    fn new(what: OmittedOp, label: impl Into<String>) -> Self {
        Self { what, label: label.into(), part: None }
    }

    /// Omits flushes of the ranges with the name `label`. Streamed copies to them become ordinary
    /// stores: a streamed copy needs no flush, so this is its missing write-back.
    #[must_use]
    pub fn flush(label: impl Into<String>) -> Self {
        Self::new(OmittedOp::Flush, label)
    }

    /// Omits fences of a thread that has flushed a range with a name in `label` since its last
    /// fence. The fence is omitted for the thread's other flushes and streams, too.
    #[must_use]
    pub fn fence_after_flush(label: impl Into<String>) -> Self {
        Self::new(OmittedOp::FenceAfterFlush, label)
    }

    /// Like [`fence_after_flush`](Self::fence_after_flush), after a stream instead of a flush.
    #[must_use]
    pub fn fence_after_stream(label: impl Into<String>) -> Self {
        Self::new(OmittedOp::FenceAfterStream, label)
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

/// An omission, with the names of its medium.
#[derive(Debug)]
pub(crate) struct LabelledOmission {
    pub(crate) omission: Omission,
    pub(crate) labels: Labels,
}

impl LabelledOmission {
    fn concerns(&self, at: PoolOffset) -> bool {
        self.labels.name(at).is_some_and(|name| name.starts_with(&self.omission.label))
    }
}

/// The omission of one medium, with its state.
#[derive(Debug)]
pub(crate) struct Omitter {
    placed: Arc<LabelledOmission>,
    /// Threads whose next fence is omitted.
    unfenced: BTreeSet<ThreadNo>,
}

impl Omitter {
    pub(crate) fn new(placed: Arc<LabelledOmission>) -> Self {
        Self { placed, unfenced: BTreeSet::new() }
    }

    /// Returns true if a flush from `at` on is left out.
    pub(crate) fn omits_flush(&mut self, thread: ThreadNo, at: PoolOffset) -> bool {
        self.begin(OmittedOp::FenceAfterFlush, thread, at)
    }

    /// Returns true if a stream to `at` becomes an ordinary store.
    pub(crate) fn omits_streaming(&mut self, thread: ThreadNo, at: PoolOffset) -> bool {
        self.begin(OmittedOp::FenceAfterStream, thread, at)
    }

    /// Returns true if the next fence of `thread` is left out.
    pub(crate) fn omits_fence(&mut self, thread: ThreadNo) -> bool {
        self.unfenced.remove(&thread)
    }

    fn begin(&mut self, fenced: OmittedOp, thread: ThreadNo, at: PoolOffset) -> bool {
        let what = self.placed.omission.what;
        if (what != OmittedOp::Flush && what != fenced) || !self.placed.concerns(at) {
            return false;
        }
        if what == fenced {
            self.unfenced.insert(thread);
        }
        what == OmittedOp::Flush
    }
}
