//! One step on the way to an image: a recovery that is crashed.

use crate::tape::Plan;

/// A recovery to crash: the image it starts from, and the operation it must not make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) plan: Plan,
    pub(crate) at: u64,
}
