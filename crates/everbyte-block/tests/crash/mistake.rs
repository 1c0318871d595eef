//! A mistake that a test must catch: a bug in the engine's text, or a flush or a fence left out of sound
//! code.

use everbyte_crash::Omission;
use everbyte_plant::{Planted, plant};
use everbyte_pool::plant::Bug;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    Bug(Bug),
    Omission(Omission),
}

impl From<Bug> for Mistake {
    fn from(bug: Bug) -> Self {
        Self::Bug(bug)
    }
}

impl From<Omission> for Mistake {
    fn from(omission: Omission) -> Self {
        Self::Omission(omission)
    }
}

impl Mistake {
    /// Plants it for this thread, if it is a bug.
    pub(crate) fn plant(&self) -> Option<Planted> {
        match self {
            Self::Bug(bug) => Some(plant(*bug)),
            Self::Omission(_) => None,
        }
    }

    /// Returns the operations left out by the scenario.
    pub(crate) fn omission(&self) -> Option<Omission> {
        match self {
            Self::Bug(_) => None,
            Self::Omission(omission) => Some(omission.clone()),
        }
    }
}
