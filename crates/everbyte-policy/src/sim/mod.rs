//! The simulator: counts the steps of memory and of the backing device that a policy takes on a
//! trace.
//!
//! Owns the counting. Every count is exact: bytes as the trace has them, each action of the policy
//! with its reason, each step of the backing device and whether it followed the one before. Time is
//! derived from the counts by a model of costs, see [`Costs`].
//!
//! ```
//! use everbyte_policy::sim::{Kind, Spec, run};
//! use everbyte_policy::{Access, Op, PageAddress, PageNo, PageTrace};
//!
//! let access = |page| Access { page: PageNo(page), start: 0, len: 100, op: Op::Write };
//! let trace = PageTrace {
//!     accesses: vec![access(0), access(1), access(0)],
//!     addresses: (0..2).map(|page| PageAddress { device: 0, page }).collect(),
//!     requests: 3,
//! };
//! let outcome = run(Kind::Hybrid, &Spec::new(2)?, &trace);
//! assert_eq!(outcome.hits(), 1);
//! # Ok::<(), everbyte_policy::sim::SpecError>(())
//! ```

mod drain;
mod kind;
mod outcome;
mod recorder;
mod run;
mod spec;
#[cfg(test)]
mod tests;
mod times;
mod version;

pub use crate::costs::{BackingCosts, Costs, MemoryCosts};
pub use drain::Drain;
pub use kind::{Kind, UnknownPolicy};
pub use outcome::{BackingSteps, Hits, Outcome, ScmWrites, Wear};
pub use run::{replay, run, run_policy};
pub use spec::{Spec, SpecError};
pub use version::SIMULATOR_VERSION;
