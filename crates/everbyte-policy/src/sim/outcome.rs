//! The counts of one simulation, as they are written to files.

use serde::{Deserialize, Serialize};

use super::drain::Drain;
use super::spec::Spec;
use crate::policy::ActionCount;

/// Counts of one policy on one trace.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Version of this structure: [`Outcome::VERSION`].
    pub version: u32,
    /// The name of the policy: that of a [`Kind`](super::Kind), or the one given to
    /// [`run_policy`](super::run_policy).
    pub policy: String,
    /// Sizes, settings and costs of the simulation.
    pub spec: Spec,
    /// Requests of the trace.
    pub requests: u64,
    /// Distinct pages of the trace.
    pub footprint_pages: u64,
    /// Reads, by the place where they were served.
    pub reads: Hits,
    /// Writes, by the place where they were served.
    pub writes: Hits,
    /// Reads and writes of SCM.
    pub scm: ScmWrites,
    /// Bytes read from DRAM, for requests, moves and write-backs.
    pub dram_bytes_read: u64,
    /// Bytes written to DRAM, by requests, fills and moves.
    pub dram_bytes_written: u64,
    /// Accesses served in DRAM without a fill: hits there, and hits in SCM with a promotion first.
    pub dram_accesses: u64,
    /// Pages read and written by the backing device.
    pub backing: BackingSteps,
    /// Fills, moves, copies, drops and evictions by reason; those that did not occur are left out.
    pub actions: Vec<ActionCount>,
    /// Evenness of SCM's wear.
    pub wear: Wear,
    /// The write-back of the pages that are dirty at the end.
    pub drain: Drain,
    /// The time of all steps under the costs of `spec`, in nanoseconds, without the drain.
    pub elapsed_ns: f64,
    /// The same with the drain: no policy gains by dirty pages that it leaves behind.
    pub elapsed_with_drain_ns: f64,
    /// The backing device's part of that. The rest is memory's. A policy of one tier has all of it
    /// in DRAM: to compare residency alone, it is charged another policy's memory time.
    pub backing_with_drain_ns: f64,
}

impl Outcome {
    /// The version that this code writes.
    pub const VERSION: u32 = 2;

    /// Returns the accesses whose page was in the cache.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.reads.dram + self.reads.scm + self.writes.dram + self.writes.scm
    }

    /// Returns the accesses.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.hits() + self.reads.missed + self.writes.missed
    }

    /// Returns the share of accesses whose page was in the cache, `0.0 ..= 1.0`; 0 without
    /// accesses.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn hit_ratio(&self) -> f64 {
        self.hits() as f64 / self.accesses().max(1) as f64
    }
}

/// Accesses of one kind, by where their page was found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Hits {
    /// In DRAM.
    pub dram: u64,
    /// In SCM only.
    pub scm: u64,
    /// On the backing device only.
    pub missed: u64,
}

/// Reads and writes of SCM.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ScmWrites {
    /// Writes: in place, by filling, and by moving.
    pub writes: u64,
    /// Writes of at most 512 bytes.
    pub writes_up_to_512_bytes: u64,
    /// Bytes of all writes.
    pub bytes: u64,
    /// Bytes written in place by requests.
    pub bytes_in_place: u64,
    /// Bytes written because a page came from the backing device straight to SCM.
    pub bytes_filled: u64,
    /// Bytes written because a page was demoted from DRAM, or its copy was updated from there.
    pub bytes_moved: u64,
    /// Reads: by requests, moves and write-backs.
    pub reads: u64,
    /// Bytes of all reads.
    pub bytes_read: u64,
}

/// Pages read and written by the backing device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct BackingSteps {
    /// Pages read.
    pub pages_read: u64,
    /// Pages read that did not follow the one read before.
    pub read_jumps: u64,
    /// Pages written.
    pub pages_written: u64,
    /// Pages written that did not follow the one written before.
    pub write_jumps: u64,
    /// Misses that needed no reading, because a write replaced the whole page.
    pub fetches_saved: u64,
    /// Dirty pages in the cache at the end; they are in no other count but the drain's.
    pub dirty_at_end: u64,
}

/// Bytes written to each frame of SCM.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Wear {
    /// Frames.
    pub frames: u64,
    /// Bytes written to the frame that was written most.
    pub bytes_max: u64,
    /// Bytes written to a frame on average.
    pub bytes_mean: f64,
    /// Frames by bytes written: the first number counts unwritten frames, number `i` those with
    /// `2^(i-1) .. 2^i` bytes written.
    pub histogram: Vec<u64>,
}
