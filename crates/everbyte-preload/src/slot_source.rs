//! The source of slots: leases of a swap volume, or memory without a name.
//!
//! Invariants: getting more calls nothing of the C library that allocates. A program with an allocator of
//! its own may hold that one's locks while it asks for memory. No descriptor is kept from one call to the next: the
//! program may close all that it does not know (`closefrom`), and the number is then a file of its own.

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
    /// A swap volume, by the server of its pool, and whether that was gone when it was asked last.
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

    /// Gets ranges of a file of at least a run, and of `bytes` bytes or more if there are. Waits for the
    /// next server of a pool if there is none, but only the first time: a program that asks again and again
    /// hears at once that there is none.
    ///
    /// # Errors
    /// There is nothing; the reason, in words.
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

/// There is no server. A lease that one made as it ended was received by nobody, and is none.
fn says_gone(error: &ControlError) -> bool {
    matches!(error, ControlError::Unreachable { .. } | ControlError::Broken { .. })
}

/// Borrows from the pool's server; from the next one that begins within `patience`, if this one ends.
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

/// Borrows from the server that there is, if nobody but root and this user can change what it lends.
fn borrow(volume: &Volume, bytes: u64) -> Result<Borrowed, ControlError> {
    let mut client = ControlClient::connect_at(&volume.pool, volume.socket.clone())?;
    if !volume.trust_pool
        && let Some(reason) = client.distrust()?
    {
        let what = format!("{reason}, so others can change the memory that it lends");
        return Err(RequestError::new(what).because(Cause::UntrustedPool).into());
    }
    client.borrow_runs(&volume.name, bytes)
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
