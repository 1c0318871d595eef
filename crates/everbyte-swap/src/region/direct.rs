//! Direct regions: chunks of 2 MiB, in DRAM or mapped straight from the store.
//!
//! `memory` is the engine's view of chunks and runs, and `remap_memory` implements it by `mmap` and `mremap`.

mod chunk;
mod engine;
mod memory;
pub(crate) mod region;
mod remap_memory;
