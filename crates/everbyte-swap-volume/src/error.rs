//! Errors of swap volumes.

use everbyte_pool::{Corrupt, PoolError, WriteError};

/// Errors of making, lending and changing swap volumes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// A size invalid for a swap volume.
    #[error("the size of a swap volume is a positive multiple of 2 MiB, not {bytes} bytes")]
    Size {
        /// The requested size, in bytes.
        bytes: u64,
    },
    /// The pool has too few free runs.
    #[error(
        "no room for {} MiB: the pool has {free_runs} free runs of 2 MiB, and {runs} are needed; grow the pool, trim \
         or delete volumes",
        2 * runs
    )]
    NoRoom {
        /// Required runs of 2 MiB.
        runs: u64,
        /// Free runs of the pool.
        free_runs: u64,
    },
    /// An error of the pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The table could not be replaced. The volume keeps the runs of the old and the new table until the
    /// pool is opened again.
    #[error("cannot replace the volume's table: {0}")]
    Table(#[from] WriteError),
    /// The volume has no free run.
    #[error("all {runs} runs of 2 MiB of volume {volume} are lent{}", to(.borrowers))]
    Full {
        /// The volume's name.
        volume: String,
        /// Runs of the volume.
        runs: u64,
        /// Processes with runs.
        borrowers: Borrowers,
    },
    /// The operation needs free runs, and they are in use.
    #[error("{lent} runs of 2 MiB of volume {volume} are lent{}", to(.borrowers))]
    Lent {
        /// The volume's name.
        volume: String,
        /// Runs in use.
        lent: u64,
        /// The processes with these runs.
        borrowers: Borrowers,
    },
    /// An earlier replacement of the table has an unknown outcome.
    #[error("an earlier change of the volume failed; open the pool again")]
    Unknown,
    /// Other processes cannot map the pool's memory.
    #[error("the pool is in this process's private memory: it cannot be lent")]
    NotShared,
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// The failed operation.
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

/// Processes with runs of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Borrowers {
    /// The known processes, each once.
    pub pids: Vec<u32>,
    /// Runs of unknown processes: an earlier server lent them.
    pub runs_of_others: u64,
}

/// The maximum number of processes in an error.
const NAMED_MAX: usize = 8;

fn to(borrowers: &Borrowers) -> String {
    let Borrowers { pids, runs_of_others } = borrowers;
    let named: Vec<String> = pids.iter().take(NAMED_MAX).map(u32::to_string).collect();
    let named = named.join(", ");
    match (pids.len().saturating_sub(NAMED_MAX), *runs_of_others) {
        (0, 0) if pids.is_empty() => String::new(),
        (0, 0) => format!(", to process {named}"),
        (_, 1..) if pids.is_empty() => ", to others".to_owned(),
        (_, 1..) => format!(", to process {named} and others"),
        (more, 0) => format!(", to process {named} and {more} others"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borrowers_are_named_or_counted() {
        let shown =
            |pids: &[u32], runs_of_others| to(&Borrowers { pids: pids.to_vec(), runs_of_others });
        assert_eq!(shown(&[], 0), "");
        assert_eq!(shown(&[7], 0), ", to process 7");
        assert_eq!(shown(&[7, 8, 9], 0), ", to process 7, 8, 9");
        assert_eq!(shown(&[], 2), ", to others");
        assert_eq!(shown(&[7], 2), ", to process 7 and others");
        let many: Vec<u32> = (1..=10).collect();
        assert!(shown(&many, 0).ends_with("7, 8 and 2 others"));
        assert!(shown(&many, 1).ends_with("7, 8 and others"));
    }
}
