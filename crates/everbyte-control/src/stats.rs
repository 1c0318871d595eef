//! Counts of a pool, its volumes and its servers. Commands print the same types as JSON.

use serde::{Deserialize, Serialize};

/// Counts since a pool was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PoolStats {
    /// Operations of the medium.
    pub medium: MediumStats,
    /// By volume.
    pub volumes: Vec<CheckpointStats>,
    /// By address.
    pub servers: Vec<ServerStats>,
    /// Lines written to the pool's frames, if they are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wear: Option<WearStats>,
}

/// Lines written to the frames of 4 KiB of a pool since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WearStats {
    /// Counted frames: all but those of a later growth of the pool.
    pub frames: u64,
    /// Of them, written frames.
    pub frames_written: u64,
    /// Lines of 64 bytes written to all of them.
    pub lines: u64,
    /// Lines written to the most written frame.
    pub lines_most: u64,
    /// The number of that frame, from the start of the pool.
    pub frame_most: u64,
    /// The 99th percentile of lines written to a frame.
    pub lines_p99: u64,
}

/// Counts of operations of a medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MediumStats {
    /// Bytes stored.
    pub bytes_stored: u64,
    /// Lines touched by stores.
    pub lines_stored: u64,
    /// Lines flushed.
    pub lines_flushed: u64,
    /// Fences.
    pub fences: u64,
    /// Modelled cost of the emulated technology in nanoseconds.
    pub modelled_ns: u64,
}

/// Counts of a volume's log and checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CheckpointStats {
    /// The volume's name.
    pub name: String,
    /// Bytes of undo records written.
    pub log_bytes: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Last durable epoch.
    pub epoch: u64,
}

/// Counts of the server on one address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServerStats {
    /// The address.
    pub address: String,
    /// Connections open now.
    pub connections: u64,
    /// Connections accepted so far.
    pub connections_total: u64,
    /// Connections ended because of the peer's acts.
    pub connections_dropped: u64,
    /// Requests, failed ones included.
    pub requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}
