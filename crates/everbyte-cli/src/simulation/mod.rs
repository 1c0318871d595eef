//! Simulations as the command line asks for them: what to run, running it, and what came out.
//!
//! A [`Task`](task::Task) is one policy with one cache over one trace, and says all that its outcome
//! depends on, so it can be run anywhere and its outcome kept under the task's name. `everbyte sim`
//! runs tasks at once; `sim plan`, `sim run` and `sim merge` do the same in three steps. Counting is
//! `everbyte_policy`'s.

pub(crate) mod args;
mod devices;
mod groups;
pub(crate) mod loading;
mod names;
pub(crate) mod outputs;
mod paper;
pub(crate) mod report;
pub(crate) mod results;
mod tables;
pub(crate) mod task;
pub(crate) mod task_result;
mod winners;
