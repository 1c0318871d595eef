//! One step towards an image: a recovery that is crashed.

use crate::decision_trace::Plan;

/// A recovery to crash: the image it starts from, and the operation before which it crashes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) plan: Plan,
    pub(crate) at: u64,
}
