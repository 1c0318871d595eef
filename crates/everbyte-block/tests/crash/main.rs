//! Crash exploration of the block volume: small workloads at every boundary, crashed everywhere, recovered
//! from every possible image, with an oracle for the exact result.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![expect(clippy::print_stdout, reason = "tests say what they explored")]

mod content;
mod explore;
mod history;
mod labels;
mod lanes;
mod mistake;
mod probe;
mod scenario;
mod steps;

mod boundaries;
mod direct;
mod epochs;
mod faults;
mod lives;
mod planted;
mod promises;
mod random;
mod rules;
mod unmap;
