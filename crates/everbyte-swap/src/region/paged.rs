//! Paged regions: faults bring in units of 4 KiB, and an evictor removes them.
//!
//! `memory` is the engine's view of pages and slots, and `uffd_memory` implements it by userfaultfd.

pub(crate) mod engine;
pub(crate) mod memory;
pub(crate) mod region;
mod resolver;
pub(crate) mod threads;
pub(crate) mod uffd;
pub(crate) mod uffd_memory;
mod unit;
