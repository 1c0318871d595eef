//! Errors of swap volumes.

use everbyte_pool::{Corrupt, PoolError, WriteError};

/// Errors of making, lending and changing swap volumes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// A size that a swap volume cannot have.
    #[error("a swap volume has a multiple of 2 MiB, at least one; {bytes} bytes are not")]
    Size {
        /// The size asked for, in bytes.
        bytes: u64,
    },
    /// The pool has too few free runs.
    #[error(
        "no room for {} MiB: the pool has {free_runs} free runs of 2 MiB, and {runs} are needed; grow the pool, trim \
         or delete volumes",
        2 * runs
    )]
    NoRoom {
        /// Runs of 2 MiB that were needed.
        runs: u64,
        /// Those that there are.
        free_runs: u64,
    },
    /// The pool's.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The table could not be replaced. What it named before and was to name is kept until the pool
    /// is opened again.
    #[error("cannot replace the volume's table: {0}")]
    Table(#[from] WriteError),
    /// Nothing of the volume is free.
    #[error("all {runs} runs of 2 MiB of volume {volume} are lent{}", to(.pids))]
    Full {
        /// The volume's name.
        volume: String,
        /// Runs that it has.
        runs: u64,
        /// Processes that have runs, as far as they are known.
        pids: Vec<u32>,
    },
    /// Runs that would have to go are in use.
    #[error("{lent} runs of 2 MiB of volume {volume} are lent{}", to(.pids))]
    Lent {
        /// The volume's name.
        volume: String,
        /// Runs that are in use.
        lent: u64,
        /// The processes that have them, as far as they are known.
        pids: Vec<u32>,
    },
    /// A table was replaced before and it is not known by which.
    #[error("an earlier change of the volume failed; open the pool again")]
    Unknown,
    /// The pool is in memory that other processes cannot map.
    #[error("the pool is in this process's own memory, which cannot be lent")]
    NotShared,
    /// The system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

impl From<Corrupt> for SwapError {
    fn from(corrupt: Corrupt) -> Self {
        Self::Pool(corrupt.into())
    }
}

fn to(pids: &[u32]) -> String {
    if pids.is_empty() {
        return String::new();
    }
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    format!(", to process {}", pids.join(", "))
}
