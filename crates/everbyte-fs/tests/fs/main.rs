//! The file system compared with a model over random operations, reopenings and crashes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]
#![allow(clippy::print_stdout, reason = "tests say what they explored")]

mod attributes;
mod concurrent;
mod counters;
mod crash;
mod damage;
mod durable;
mod endless;
mod free_space;
mod full;
mod golden;
mod limits;
mod lives;
mod media;
mod open_files;
mod open_time;
mod paths;
mod posix;
mod random;
mod salvage;
mod sequences;
mod tree;
mod views;

use everbyte_testkit::files::{model, operations, real};
