//! Simulations of the command line: their settings, their execution and their results.
//!
//! A [`Task`](task::Task) is one policy with one cache over one trace. It has all parameters of its outcome, so any
//! machine can execute it. The task's name is the name of the outcome. `everbyte sim` executes tasks directly; `sim
//! plan`, `sim run` and `sim merge` do the same in three steps. `everbyte_policy` counts.

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
