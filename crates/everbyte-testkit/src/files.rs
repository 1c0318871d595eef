//! Operations on trees of files, a model of their results, and the file system as a subject of them.
//!
//! Tests and fuzz targets share these modules. They panic if a test cannot continue.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]
#![allow(clippy::missing_panics_doc, reason = "a test that cannot go on should panic")]

pub mod model;
pub mod operations;
pub mod real;
