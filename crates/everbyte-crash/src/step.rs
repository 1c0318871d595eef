//! One step towards an image: a crashed recovery.

use crate::decision_trace::Plan;

/// A recovery to crash: its initial image, and the operation of the crash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) plan: Plan,
    pub(crate) at: u64,
}
