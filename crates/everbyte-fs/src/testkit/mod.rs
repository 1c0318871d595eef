//! Operations on trees of files, a model, and the file system as a subject: shared by tests and fuzz targets.
//!
//! Compiled with the feature `testkit` only. Panics if a test cannot continue.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]
#![allow(clippy::missing_panics_doc, reason = "a test that cannot go on should panic")]

pub mod damage;
pub mod model;
pub mod operations;
pub mod real;
