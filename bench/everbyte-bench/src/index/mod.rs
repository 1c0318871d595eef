//! The suite of indexes over inode tables: Filebench's workloads on the file system in process and in directories.
//!
//! Reproduces a study of index structures in PMFS: node sizes, rates by number of files, misses of the
//! last-level cache. Also reproduces Figure 5 of the NTL paper: Filebench's file, mail and web server through
//! the page cache and past it.

pub(crate) mod command;
pub(crate) mod directory;
pub(crate) mod drive;
pub(crate) mod file_set;
pub(crate) mod library;
pub(crate) mod misses;
pub(crate) mod personality;
mod picker;
pub(crate) mod place;
mod series;
pub(crate) mod target;

use everbyte_fs::IndexKind;

use crate::driver::Run;
use personality::Personality;

/// The index of the paper's file system. Ratios compare the other indexes with it.
const REFERENCE: IndexKind = IndexKind::PmfsRadix;

type Settings = Run<command::IndexArgs>;

/// The name of a workload in the results.
pub(crate) fn title(personality: Personality, files: u32, threads: usize) -> String {
    let s = if threads == 1 { "" } else { "s" };
    format!("{}, {files} files, {threads} thread{s}", personality.name())
}
