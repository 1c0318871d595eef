//! Tasks of writes: passes of requests over a file, like IOzone, a log, and file system metadata.
//!
//! Invariants: task and number of a pass determine its requests, so all targets get the same requests. Each request lies
//! in the file of the task.

use std::fmt;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

/// Seed of all random numbers.
const SEED: u64 = 0xc0_5157_e4c7;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// Records and files of the paper's IOzone runs (Lee et al. 2015).
pub(crate) const RECORDS: [u64; 5] = [KIB, 4 * KIB, 16 * KIB, 64 * KIB, 100 * KIB];
pub(crate) const FILES: [u64; 4] = [128 * KIB, MIB, 4 * MIB, 16 * MIB];

/// Bytes of a record of a log.
const APPENDED: std::ops::RangeInclusive<u64> = 100..=500;
/// Bytes of an update of metadata.
const UPDATED: std::ops::RangeInclusive<u64> = 64..=256;

/// Order of a file's writes, and state of the file before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Access {
    /// Successive records in an empty file.
    Initial,
    /// Successive records over old ones.
    Sequential,
    /// Each record once, in random order, over old ones.
    Random,
}

/// A task of writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Task {
    /// A file in records, like IOzone.
    Iozone { access: Access, record: u64, file: u64 },
    /// Records of 100 to 500 bytes at the end of a log. The length in the first block follows each record.
    Append,
    /// Updates of 64 to 256 bytes at random places in the blocks of a region, like metadata.
    Metadata,
}

/// One write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
}

impl Task {
    /// The matrix of the paper.
    pub(crate) fn iozone() -> Vec<Self> {
        let mut tasks = Vec::new();
        for access in [Access::Initial, Access::Sequential, Access::Random] {
            for record in RECORDS {
                tasks.extend(FILES.map(|file| Self::Iozone { access, record, file }));
            }
        }
        tasks
    }

    /// Bytes of the file.
    pub(crate) fn file_bytes(self) -> u64 {
        match self {
            Self::Iozone { file, .. } => file,
            Self::Append => 4 * MIB,
            Self::Metadata => 16 * MIB,
        }
    }

    /// Returns true if a pass begins with an empty file.
    pub(crate) fn begins_empty(self) -> bool {
        matches!(self, Self::Iozone { access: Access::Initial, .. } | Self::Append)
    }

    /// The requests of a pass.
    pub(crate) fn requests(self, pass: u64) -> Vec<Request> {
        let mut rng = SmallRng::seed_from_u64(SEED ^ pass.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        match self {
            Self::Iozone { access, record, file } => {
                let mut offsets: Vec<u64> = (0..file / record).map(|i| i * record).collect();
                if access == Access::Random {
                    offsets.shuffle(&mut rng);
                }
                offsets.into_iter().map(|offset| Request::new(offset, record)).collect()
            }
            Self::Append => appends(&mut rng, self.file_bytes()),
            Self::Metadata => {
                let blocks = self.file_bytes() / BLOCK;
                let update = |_| {
                    let bytes = rng.random_range(UPDATED);
                    let start = rng.random_range(0..=(BLOCK - bytes) / 8) * 8;
                    Request::new(rng.random_range(0..blocks) * BLOCK + start, bytes)
                };
                (0..4096).map(update).collect()
            }
        }
    }
}

impl Request {
    fn new(offset: u64, bytes: u64) -> Self {
        Self { offset, bytes: usize::try_from(bytes).unwrap_or(usize::MAX) }
    }
}

fn appends(rng: &mut SmallRng, file_bytes: u64) -> Vec<Request> {
    let mut requests = Vec::new();
    let mut end = BLOCK;
    loop {
        let bytes = rng.random_range(APPENDED);
        if end + bytes > file_bytes {
            return requests;
        }
        requests.push(Request::new(end, bytes));
        requests.push(Request::new(0, 8));
        end += bytes;
    }
}

/// A size of whole KiB or MiB.
fn size(bytes: u64) -> String {
    match bytes.is_multiple_of(MIB) {
        true => format!("{}M", bytes / MIB),
        false => format!("{}K", bytes / KIB),
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Initial => "initial",
            Self::Sequential => "sequential",
            Self::Random => "random",
        })
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iozone { access, record, file } => {
                write!(f, "{access} write {} in {}", size(*record), size(*file))
            }
            Self::Append => f.write_str("append 100-500 B"),
            Self::Metadata => f.write_str("metadata 64-256 B"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Task> {
        let mut tasks = Task::iozone();
        tasks.extend([Task::Append, Task::Metadata]);
        tasks
    }

    #[test]
    fn requests_lie_in_the_file_and_repeat() {
        for task in all() {
            let requests = task.requests(3);
            assert!(!requests.is_empty(), "{task}");
            for request in &requests {
                assert!(request.bytes > 0, "{task}");
                assert!(request.offset + request.bytes as u64 <= task.file_bytes(), "{task}");
            }
            assert_eq!(requests, task.requests(3), "{task}");
        }
    }

    #[test]
    fn random_pass_writes_each_record_once() {
        let task = Task::Iozone { access: Access::Random, record: 4096, file: MIB };
        let mut offsets: Vec<u64> = task.requests(1).iter().map(|r| r.offset).collect();
        assert!(!offsets.is_sorted());
        offsets.sort_unstable();
        assert!(offsets.iter().copied().eq((0..256).map(|i| i * 4096)));
    }

    #[test]
    fn task_names_are_distinct() {
        let mut names: Vec<String> = all().iter().map(ToString::to_string).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
