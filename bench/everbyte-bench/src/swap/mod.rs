//! The memory extension: allocation of slots, and the costs of paging.

mod access;
mod allocators;
mod cases;
pub(crate) mod child;
pub(crate) mod command;
mod fill;
mod flash;
mod ft;
mod full_store;
pub(crate) mod kernel;
mod meter;
mod place;
mod serve;
mod subjects;
pub(crate) mod task;
mod words;
