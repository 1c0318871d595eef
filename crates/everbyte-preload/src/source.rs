//! The source of slots: leases of a swap volume, or memory without a name.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;

use everbyte_control::{Borrowed, ControlClient};

/// Bytes of a run.
const RUN: u64 = 2 << 20;

/// A source of slots.
pub(crate) enum Source {
    /// A file in memory, and its length.
    Memory { file: File, bytes: u64 },
    /// A swap volume, by the server of its pool.
    Volume { pool: PathBuf, name: String },
}

impl Source {
    /// # Errors
    /// The reason, in words.
    pub(crate) fn new(volume: Option<(PathBuf, String)>) -> Result<Self, String> {
        if let Some((pool, name)) = volume {
            return Ok(Self::Volume { pool, name });
        }
        Ok(Self::Memory { file: memory_file(0)?, bytes: 0 })
    }

    /// Gets ranges of a file of at least a run, and of `bytes` bytes or more if there are.
    ///
    /// # Errors
    /// There is nothing; the reason, in words.
    pub(crate) fn more(&mut self, bytes: u64) -> Result<(File, Vec<Range<u64>>), String> {
        let bytes = bytes.next_multiple_of(RUN).max(RUN);
        match self {
            Self::Memory { file, bytes: has } => {
                let end = *has + bytes;
                let failed = |error| format!("cannot lengthen the file in memory: {error}");
                file.set_len(end).map_err(failed)?;
                let range = std::mem::replace(has, end)..end;
                Ok((file.try_clone().map_err(failed)?, vec![range]))
            }
            Self::Volume { pool, name } => {
                let client = ControlClient::connect(pool);
                let lease = client.and_then(|mut client| client.borrow_runs(name, bytes));
                let Borrowed { file, ranges } = lease.map_err(|error| error.to_string())?;
                Ok((file, ranges))
            }
        }
    }
}

/// A new file in memory that nobody else has.
///
/// # Errors
/// The system's, in words.
pub(crate) fn memory_file(bytes: u64) -> Result<File, String> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("everbyte-run", flags);
    let file = file.map_err(|error| format!("cannot make a file in memory: {error}"))?;
    let file = File::from(file);
    file.set_len(bytes).map_err(|error| format!("cannot lengthen a file in memory: {error}"))?;
    Ok(file)
}
