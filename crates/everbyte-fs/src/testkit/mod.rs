//! Operations on trees of files, a model of what they do, and the file system as a subject of them:
//! shared by tests and fuzz targets.
//!
//! Only the feature `testkit` has it. Panics where a test cannot go on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]
#![allow(clippy::missing_panics_doc, reason = "a test that cannot go on should panic")]

pub mod damage;
pub mod model;
pub mod operations;
pub mod real;
