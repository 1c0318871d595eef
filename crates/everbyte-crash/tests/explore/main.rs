//! Tests of the explorer on toy storage code: sound code passes, planted bugs are caught.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod budget;
mod counting;
mod medium;
mod omission;
mod protocols;
mod reference;
mod report;
mod shrink;
#[path = "../../examples/torn_counter.rs"]
mod torn_counter;
mod toy;
