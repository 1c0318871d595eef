//! The control socket beside a served pool. Commands reach the server by it.
//!
//! Owns the socket's path, the protocol on it, the server's threads and the client. Knows neither the
//! effects of requests nor kinds of volumes: a [`Handler`] above does.
//!
//! The protocol is one JSON object per line, first a request, then its answer, any number of times.
//! Both carry the protocol's version. Bytes of a file follow the line that announces their number,
//! and a descriptor comes with its request. During a request the server regularly sends a space,
//! which JSON ignores, so that a client can distinguish a working server from a hanging one. A
//! client that sends anything else gets an error and loses only its connection.
//!
//! Only its owner may use the Unix socket. Each side also asks the system for its peer: a server
//! answers its own user, the pool's owner and root, and a client trusts the same three, so that no
//! other user can replace a pool's server.

#![forbid(unsafe_code)]

mod answers;
mod client;
mod credentials;
mod files;
mod health;
mod lend;
mod message;
mod places;
mod server;
mod stats;
mod time;

pub use client::{ControlClient, ControlError};
pub use files::{
    FileEntry, FileFlag, FileId, FileKind, FileLeak, FilePlace, FileRequest, FileSpace, FileStatus,
    NewFile, PIECE_BYTES_MAX, PathBytes, SetFile, UnreadableEntry,
};
pub use health::{DeletedStatus, HealthStatus};
pub use lend::{Borrowed, maker_of, send_descriptor};
pub use message::{
    CacheStatus, Cause, CheckStatus, ClientStatus, ExportStatus, KindStatus, MediumStatus,
    MountServed, NewCache, NewFs, NewVolume, PROTOCOL_VERSION, PoolStatus, Request, Response,
    ScrubPart, ScrubProblem, ServingStatus, SwapStatus, VolumeStatus, WritersStatus,
};
pub use server::{
    Answer, Attached, AttachedAnswer, ControlServer, Handler, Occupied, RequestError,
    remove_left_socket, serve_stream,
};
pub use stats::{
    CacheMetrics, CheckpointStats, ErrorMetrics, MediumStats, PoolMetrics, PoolStats,
    RequestMetrics, ServerStats, VolumeMetrics, WearStats,
};
pub use time::TimeNs;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Longest line either side may send, in bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// The longest path a Unix socket can have on Linux, in bytes.
const UNIX_PATH_MAX: usize = 107;

/// The environment variable with the directory of control sockets. It replaces the directory of
/// each pool.
pub const SOCKET_DIR_VARIABLE: &str = "EVERBYTE_CONTROL_DIR";

/// Path of the control socket of the pool at `pool`: beside the pool's file, even if `pool` is a
/// link to it. If [`SOCKET_DIR_VARIABLE`] is set, the socket is in that directory, and its name
/// contains the pool's name, device and inode.
#[must_use]
pub fn socket_path(pool: &Path) -> PathBuf {
    // All links to a pool lead to one socket. A missing pool keeps its path for the error.
    let pool = std::fs::canonicalize(pool).unwrap_or_else(|_| pool.to_owned());
    // An empty variable counts as unset, as shells set it.
    let dir = std::env::var_os(SOCKET_DIR_VARIABLE).filter(|dir| !dir.is_empty());
    if let Some(dir) = dir {
        return PathBuf::from(dir).join(name_in_dir(&pool));
    }
    let mut name = OsString::from(pool);
    name.push(".sock");
    PathBuf::from(name)
}

/// The name of the socket of `pool` among those of other pools.
fn name_in_dir(pool: &Path) -> OsString {
    let mut name = pool.file_name().unwrap_or_default().to_owned();
    if let Ok(found) = everbyte_path::look(pool) {
        let found = found.metadata();
        // Pools of one name in different directories share the directory of sockets.
        name.push(format!("-{:x}-{:x}", found.dev(), found.ino()));
    }
    name.push(".sock");
    name
}

/// A path for the kernel to a socket file whose own path may be too long for a socket's address.
/// Valid while this value lives.
struct ShortPath {
    path: PathBuf,
    /// Keeps the number in `path` valid.
    _directory: Option<File>,
}

impl ShortPath {
    /// # Errors
    /// Even the name alone is too long, or the directory cannot be opened.
    fn new(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() <= UNIX_PATH_MAX {
            return Ok(Self { path: path.to_owned(), _directory: None });
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        let directory = File::open(parent)?;
        // The address of a socket has 107 bytes. A path through an open directory needs only the
        // name.
        let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
        if short.as_os_str().len() > UNIX_PATH_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidFilename,
                format!("{} is too long a name for a socket: rename the pool", path.display()),
            ));
        }
        Ok(Self { path: short, _directory: Some(directory) })
    }

    fn as_path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests;
