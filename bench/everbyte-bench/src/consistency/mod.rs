//! The suite of consistency schemes: rollback recovery, no consistency, redo journals, block journals, shadow paging, and
//! ext4's journals.
//!
//! Remakes the experiments of Lee et al., "Data Consistency-Control Scheme Using a Rollback-Recovery Mechanism for Storage
//! Class Memory" (2015), and answers their open questions: the threshold of pointer logging, and BPFS's scheme.

pub(crate) mod command;
mod library;
mod matrix;
mod points;
mod run;
mod sqlite;
mod target;
mod task;
mod threshold;
mod words;

use anyhow::Result;
use clap::ValueEnum;
use everbyte_media::Technology;

use crate::driver::Run;
use crate::rows::Row;

/// Emulated media: DRAM with its flushes made, and phase-change memory, whose writes cost most: one
/// after the other, and in banks.
const MEDIA: [Technology; 3] = [Technology::Dram, Technology::Pcm, Technology::PcmBanks];

/// Bytes of every scheme's device but for SQLite: the largest file, and some room.
const DEVICE_BYTES: u64 = 24 << 20;

/// The reference of the others in speed, and the scheme that has no cost of consistency.
const OURS: &str = "rollback";
/// The same as its paper has it: the reference of what was published beside it.
const OURS_PUBLISHED: &str = "rollback-published";
const NONE: &str = "none";

/// Our file system, in process and under a mount.
const LIBRARY: &str = "everbyte-fs";
const MOUNT: &str = "everbyte-mount";

/// The parts of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// IOzone-like writes, appends and metadata.
    Matrix,
    /// The threshold between data and pointer logging.
    Threshold,
    /// TPC-C on SQLite.
    Tpcc,
    /// Point reads of SQLite.
    Points,
}

type Settings = Run<command::ConsistencyArgs>;

/// Measures the parts that `wants` names.
///
/// # Errors
/// No memory, or it is to stop.
pub(crate) fn run(settings: &Settings) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if settings.own.wants(Part::Matrix) {
        rows.extend(matrix::run(settings)?);
    }
    if settings.own.wants(Part::Threshold) {
        rows.extend(threshold::run(settings)?);
    }
    if settings.own.wants(Part::Tpcc) {
        rows.extend(sqlite::run(settings)?);
    }
    if settings.own.wants(Part::Points) {
        rows.extend(points::run(settings)?);
    }
    Ok(rows)
}
