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

/// Figures of a served pool: gauges of the present, and counts since the pool was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PoolMetrics {
    /// The pool's file or device.
    pub pool: String,
    /// Milliseconds since the pool was opened.
    pub uptime_ms: u64,
    /// Bytes of the whole pool.
    pub size_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Bytes promised to volumes: the sum of their sizes.
    pub provisioned_bytes: u64,
    /// True if little is free.
    pub low_on_space: bool,
    /// Operations of the medium.
    pub medium: MediumStats,
    /// By address.
    pub servers: Vec<ServerStats>,
    /// By volume, in the order of their creation.
    pub volumes: Vec<VolumeMetrics>,
    /// Later volumes that are absent from `volumes`.
    pub omitted_volumes: u64,
}

/// Figures of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VolumeMetrics {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Identity within the pool.
    pub uid: u64,
    /// Its state, as in lists of volumes.
    pub state: String,
    /// True if nothing is wrong with it or its backing device.
    pub healthy: bool,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Used bytes of data and map; `None` if its map is unreadable.
    pub used_bytes: Option<u64>,
    /// NBD clients with this volume open.
    pub clients: u64,
    /// Bytes in use in the fullest lane of the log in the current epoch.
    pub log_used_bytes: u64,
    /// Bytes of a lane for one epoch.
    pub log_max_bytes: u64,
    /// Bytes of undo records written.
    pub log_bytes: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Dirty lines of 64 bytes, for the next checkpoint.
    pub dirty_lines: u64,
    /// Dirty lines at which a background checkpoint begins.
    pub checkpoint_lines: u64,
    /// Figures of a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheMetrics>,
    /// Bytes of a swap volume that are lent to programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lent_bytes: Option<u64>,
    /// Processes with leases of a swap volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrowers: Option<u64>,
    /// Requests by face and operation, without operations that were never requested.
    pub requests: Vec<RequestMetrics>,
    /// Failed requests by face and cause, without zero counts.
    pub errors: Vec<ErrorMetrics>,
}

/// Figures of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CacheMetrics {
    /// Bytes of cached pages.
    pub cached_bytes: u64,
    /// Of these, bytes that the backing device lacks.
    pub dirty_bytes: u64,
    /// Accesses with the page in DRAM.
    pub hits_dram: u64,
    /// Accesses with the page in SCM.
    pub hits_scm: u64,
    /// Accesses without the page.
    pub misses: u64,
    /// Pages of 4 KiB written back.
    pub written_back_pages: u64,
    /// Failed reads, writes and flushes of the backing device.
    pub backing_errors: u64,
    /// Failed accesses of SCM.
    pub scm_errors: u64,
}

/// Requests of one operation by one face.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RequestMetrics {
    /// The face: `nbd`, `vhost`, `mount`, or `library` for requests within the server's process.
    pub face: String,
    /// The operation.
    pub operation: String,
    /// Requests, failed ones included.
    pub requests: u64,
    /// Bytes of successful requests.
    pub bytes: u64,
    /// Sum of the latencies of the timed requests, in ns.
    pub timed_ns: u64,
    /// Timed requests by latency. The bounds are 500 ns and its doubles. The last bucket has no bound.
    pub buckets: Vec<u64>,
    /// Median latency, the bound of a bucket, in ns; `None` if it has no bound.
    pub p50_ns: Option<u64>,
    /// 99th percentile of the latency, the bound of a bucket, in ns; `None` if it has no bound.
    pub p99_ns: Option<u64>,
}

/// Failed requests with one cause by one face.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ErrorMetrics {
    /// The face.
    pub face: String,
    /// The cause.
    pub cause: String,
    /// Requests.
    pub count: u64,
}
