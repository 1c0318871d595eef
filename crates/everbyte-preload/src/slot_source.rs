//! The source of slots: leases of a swap volume, or memory without a name.
//!
//! Invariants: a request for more calls no allocating function of the C library. A program with its
//! own allocator may hold that allocator's locks during the request. No descriptor stays open
//! between calls: the program may close unknown descriptors (`closefrom`), and the number then
//! belongs to one of its files.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use everbyte_control::{Borrowed, Cause, ControlClient, ControlError, RequestError, socket_path};

/// Bytes of a run.
const RUN: u64 = 2 << 20;
/// Longest time to wait for the next server of a pool.
const NEXT_SERVER_TIME_MAX: Duration = Duration::from_secs(10);
const REST: Duration = Duration::from_millis(50);

/// A source of slots.
pub(crate) enum SlotSource {
    /// Files in memory, one for each time.
    Memory,
    /// A swap volume by its pool's server, and whether the last request found no server.
    Volume { volume: Volume, is_gone: bool },
}

/// A swap volume of a pool.
pub(crate) struct Volume {
    pool: PathBuf,
    socket: PathBuf,
    name: String,
    /// Users other than root and this one may change its bytes.
    trust_pool: bool,
}

impl SlotSource {
    /// The volume of this name in a pool; memory without one. With `trust_pool`, users other than root and this one may
    /// change its bytes.
    pub(crate) fn new(volume: Option<(PathBuf, String)>, trust_pool: bool) -> Self {
        match volume {
            Some((pool, name)) => {
                let volume = Volume { socket: socket_path(&pool), pool, name, trust_pool };
                Self::Volume { volume, is_gone: false }
            }
            None => Self::Memory,
        }
    }

    /// Gets ranges of a file, at least a run, and `bytes` bytes or more if available. If the pool
    /// has no server, the first call waits for the next one. A later call returns an error
    /// immediately.
    ///
    /// # Errors
    /// The reason for the lack of ranges, as text.
    pub(crate) fn more(&mut self, bytes: u64) -> Result<(File, Vec<Range<u64>>), String> {
        let bytes = bytes.next_multiple_of(RUN).max(RUN);
        match self {
            Self::Memory => Ok((memory_file(bytes)?, std::iter::once(0..bytes).collect())),
            Self::Volume { volume, is_gone } => {
                let patience = if *is_gone { Duration::ZERO } else { NEXT_SERVER_TIME_MAX };
                let lease = borrow_from_any_server(volume, bytes, patience);
                *is_gone = lease.as_ref().is_err_and(says_gone);
                let Borrowed { file, ranges } = lease.map_err(|error| error.to_string())?;
                Ok((file, ranges))
            }
        }
    }
}

/// No server answered. A lease made by a server during its end reached no receiver, so it is void.
fn says_gone(error: &ControlError) -> bool {
    matches!(error, ControlError::Unreachable { .. } | ControlError::Broken { .. })
}

/// Borrows from the pool's server. If the server ends, it borrows from the next server started
/// within `patience`.
fn borrow_from_any_server(
    volume: &Volume,
    bytes: u64,
    patience: Duration,
) -> Result<Borrowed, ControlError> {
    let deadline = Instant::now() + patience;
    loop {
        match borrow(volume, bytes) {
            Err(error) if says_gone(&error) && Instant::now() < deadline => {
                std::thread::sleep(REST);
            }
            lease => return lease,
        }
    }
}

/// Borrows from the running server if only root and this user can change the lent memory.
fn borrow(volume: &Volume, bytes: u64) -> Result<Borrowed, ControlError> {
    let mut client = ControlClient::connect_at(&volume.pool, volume.socket.clone())?;
    if !volume.trust_pool
        && let Some(reason) = client.distrust()?
    {
        let what = format!("{reason}, so other users can change its lent memory");
        return Err(RequestError::new(what).because(Cause::UntrustedPool).into());
    }
    client.borrow_runs(&volume.name, bytes)
}

/// A new file in memory with no other user.
///
/// # Errors
/// The system's, in words.
pub(crate) fn memory_file(bytes: u64) -> Result<File, String> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("everbyte-run", flags);
    let file = file.map_err(|error| format!("cannot create a file in memory: {error}"))?;
    let file = File::from(file);
    file.set_len(bytes).map_err(|error| format!("cannot extend a file in memory: {error}"))?;
    Ok(file)
}
