//! The suite of consistency schemes: rollback recovery, no consistency, redo journals, block journals, shadow paging,
//! and the journals of ext4.
//!
//! Remakes the experiments of Lee et al., "Data Consistency-Control Scheme Using a Rollback-Recovery Mechanism for
//! Storage Class Memory" (2015), and adds the scheme of BPFS, an open question of the paper.

pub(crate) mod command;
mod library;
mod matrix;
mod run;
mod sqlite;
mod target;
mod task;
mod words;

use everbyte_media::Technology;

use crate::driver::Run;

/// Emulated media: DRAM with its flushes, and phase-change memory with one bank of lines and with eight. Writes to
/// phase-change memory cost most.
const MEDIA: [Technology; 3] = [Technology::Dram, Technology::Pcm, Technology::PcmBanks];

/// Device size of each scheme except for SQLite: the largest file, and free space.
const DEVICE_BYTES: u64 = 24 << 20;

/// The reference of speed.
const OURS: &str = "rollback";
/// The reference of the published schemes.
const OURS_PUBLISHED: &str = "rollback-published";
/// The reference without a cost of consistency.
const NONE: &str = "none";

/// Our file system, in process and on a mount.
const LIBRARY: &str = "everbyte-fs";
const MOUNT: &str = "everbyte-mount";

/// Names of ext4 and options of its mounts: the real system for our models of it.
const EXT4: [(&str, &str); 2] =
    [("ext4-journal", "noatime,data=journal"), ("ext4-ordered", "noatime,data=ordered")];

type Settings = Run<command::ConsistencyArgs>;
