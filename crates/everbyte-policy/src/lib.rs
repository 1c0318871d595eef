//! Replacement policies for a cache of DRAM and storage-class memory (SCM) before a slow backing
//! device, readers of traces, and the simulator that compares the policies on the traces.
//!
//! Owns nothing outside the process's memory: policies take accesses and give actions, the
//! simulator counts them. Knows no pool, no device and no clock.
#![forbid(unsafe_code)]

mod access;
mod costs;
pub mod policy;
pub mod sim;
pub mod trace;

pub use access::{Access, Op, PAGE_BYTES, PageAddress, PageNo, PageTrace};
