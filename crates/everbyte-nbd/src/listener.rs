//! Listening sockets.
//!
//! Invariants: the file of a Unix socket has its mode and owner before anybody can connect to it,
//! and is removed with the listener. Whoever looks whether a socket is stale, removes one or makes
//! one holds the lock of its folder meanwhile: else the second of two servers could take the first
//! one's new socket for the stale one that both saw, and remove it.

use std::fs::{File, Permissions};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::address::Address;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// An address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another server listens there.
    #[error("another server is listening on {address}")]
    InUse {
        /// The address.
        address: Address,
    },
    /// The path of a Unix socket holds a file that is no socket.
    #[error("{address}: the path exists and is no socket")]
    NotASocket {
        /// The address.
        address: Address,
    },
    /// The system refused.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
}

/// Mode and owner of a Unix socket's file: the users who may write to it may connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketFile {
    /// Permission bits, at most `0o777`. Default `0o600`.
    pub mode: u32,
    /// User id; `None` is the one who runs the server, which is the default.
    pub owner: Option<u32>,
    /// Group id; `None` is the system's choice, which is the default.
    pub group: Option<u32>,
}

impl Default for SocketFile {
    fn default() -> Self {
        Self { mode: 0o600, owner: None, group: None }
    }
}

/// A listening socket.
pub(crate) struct Listener {
    pub(crate) socket: OwnedFd,
    /// The address, with the port that the system chose if it had to.
    pub(crate) address: Address,
    /// Device and inode of a Unix socket's file.
    file: Option<(u64, u64)>,
}

impl Listener {
    /// Listens; `accept` does not block.
    ///
    /// # Errors
    /// `InUse` if another server listens there; `NotASocket`; `Io`.
    pub(crate) fn bind(address: &Address, file: SocketFile) -> Result<Self, BindError> {
        let failed = |source| BindError::Io { address: address.clone(), source };
        match address {
            Address::Tcp(tcp) => {
                let listener = TcpListener::bind(tcp).map_err(|error| match error.kind() {
                    io::ErrorKind::AddrInUse => BindError::InUse { address: address.clone() },
                    _ => failed(error),
                })?;
                listener.set_nonblocking(true).map_err(failed)?;
                let address = Address::Tcp(listener.local_addr().map_err(failed)?);
                Ok(Self { socket: listener.into(), address, file: None })
            }
            Address::Unix(path) => {
                let _lock = FolderLock::take(path).map_err(failed)?;
                clear_stale(path, address)?;
                let socket = bind_unix(path, file).map_err(|error| match error.kind() {
                    // A program that does not take the lock came between.
                    io::ErrorKind::AddrInUse => BindError::InUse { address: address.clone() },
                    _ => failed(error),
                })?;
                let file = identity(path).map_err(failed)?;
                Ok(Self { socket, address: address.clone(), file: Some(file) })
            }
        }
    }
}

impl Drop for Listener {
    /// Removes the file of a Unix socket, unless somebody has put another in its place.
    fn drop(&mut self) {
        let (Address::Unix(path), Some(file)) = (&self.address, self.file) else { return };
        // Without the lock it may be another's by now, so it is better left behind.
        let lock = FolderLock::take(path);
        if lock.is_ok()
            && identity(path).is_ok_and(|found| found == file)
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::warn!(path = %path.display(), "cannot remove the socket: {error}");
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Removes the file of a socket on which nobody listens any more.
fn clear_stale(path: &Path, address: &Address) -> Result<(), BindError> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        return Err(BindError::NotASocket { address: address.clone() });
    }
    match probe(path) {
        Err(Errno::CONNREFUSED) => {
            tracing::debug!(path = %path.display(), "removing the socket of a dead server");
            if cfg!(test) {
                // Time for somebody to come between, which the lock must prevent.
                std::thread::sleep(Duration::from_millis(1));
            }
            std::fs::remove_file(path)
                .map_err(|source| BindError::Io { address: address.clone(), source })
        }
        // A full backlog or a refused permission means that somebody is there.
        _ => Err(BindError::InUse { address: address.clone() }),
    }
}

/// Connects without waiting, and closes at once.
fn probe(path: &Path) -> rustix::io::Result<()> {
    let socket = unix_socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

fn unix_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn bind_unix(path: &Path, file: SocketFile) -> io::Result<OwnedFd> {
    if file.mode & !0o777 != 0 {
        let reason = format!("{:#o} is no mode of a socket's file", file.mode);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let socket = unix_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Until it listens nobody can connect, whatever its mode is.
    let listening =
        give(path, file).and_then(|()| rustix::net::listen(&socket, BACKLOG).map_err(Errno::into));
    if let Err(error) = listening {
        // The file is ours, and of no use to anyone.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(socket)
}

/// Gives the socket at `path` its owner and mode, and nothing that somebody may have put in its place.
fn give(path: &Path, file: SocketFile) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !found.metadata()?.file_type().is_socket() {
        let what = format!("{} is no socket any more", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    let found = format!("/proc/self/fd/{}", found.as_raw_fd());
    if file.owner.is_some() || file.group.is_some() {
        std::os::unix::fs::chown(&found, file.owner, file.group)?;
    }
    std::fs::set_permissions(&found, Permissions::from_mode(file.mode))
}

/// Time to wait for others who start or stop listening in the same folder. Far longer than that
/// takes, and bounded because anybody who can read a folder can lock it.
const LOCK_TIME_MAX: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The lock of the folder in which a socket's file lies, until it is dropped.
struct FolderLock {
    _folder: OwnedFd,
}

impl FolderLock {
    fn take(socket: &Path) -> io::Result<Self> {
        let folder = match socket.parent() {
            Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
            Some(folder) => folder,
            None => Path::new("/"),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, flags, Mode::empty())?;
        let deadline = Instant::now() + LOCK_TIME_MAX;
        loop {
            match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _folder: folder }),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(Errno::WOULDBLOCK) => {
                    let reason = "another program holds a lock on the socket's folder";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Barrier;

    use super::*;

    fn bind(address: &Address) -> Result<Listener, BindError> {
        Listener::bind(address, SocketFile::default())
    }

    #[test]
    fn stale_sockets_are_replaced_and_live_ones_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let address = Address::Unix(path.clone());
        let first = bind(&address).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = bind(&address).err().unwrap();
        assert!(matches!(error, BindError::InUse { .. }), "{error}");
        drop(first);
        assert!(!path.exists());
        // A server that dies without a goodbye leaves its file.
        drop(bind_unix(&path, SocketFile::default()).unwrap());
        assert!(path.exists());
        let second = bind(&address).unwrap();
        assert_eq!(second.file, Some(identity(&path).unwrap()));
    }

    #[test]
    fn other_files_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "precious").unwrap();
        let error = bind(&Address::Unix(path.clone())).err().unwrap();
        assert!(matches!(error, BindError::NotASocket { .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");

        let path = folder.path().join("s");
        let listener = bind(&Address::Unix(path.clone())).unwrap();
        std::fs::rename(&path, folder.path().join("moved")).unwrap();
        std::fs::write(&path, "another's").unwrap();
        drop(listener);
        assert!(path.exists());
    }

    #[test]
    fn tcp_ports_are_chosen_and_taken() {
        let listener = bind(&"tcp:0".parse().unwrap()).unwrap();
        let Address::Tcp(address) = &listener.address else { panic!("no TCP") };
        assert!(address.ip().is_loopback() && address.port() != 0);
        let error = bind(&listener.address).err().unwrap();
        assert!(matches!(error, BindError::InUse { .. }), "{error}");
    }

    #[test]
    fn of_servers_that_find_the_same_stale_socket_one_listens_there() {
        const SERVERS: usize = 4;
        let folder = tempfile::tempdir().unwrap();
        for round in 0..30 {
            let path = folder.path().join(format!("s{round}"));
            let address = Address::Unix(path.clone());
            drop(bind_unix(&path, SocketFile::default()).unwrap());
            let start = Barrier::new(SERVERS);
            let listeners: Vec<_> = std::thread::scope(|scope| {
                let begin = || {
                    start.wait();
                    bind(&address)
                };
                let servers: Vec<_> = (0..SERVERS).map(|_| scope.spawn(begin)).collect();
                servers.into_iter().map(|server| server.join().unwrap()).collect()
            });
            let live: Vec<_> = listeners.into_iter().filter_map(Result::ok).collect();
            assert_eq!(live.len(), 1, "round {round}: servers that believe to listen");
            assert_eq!(live[0].file, Some(identity(&path).unwrap()), "round {round}");
            UnixStream::connect(&path).unwrap();
        }
    }

    #[test]
    fn a_server_whose_backlog_is_full_is_a_live_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let address = Address::Unix(path.clone());
        let listener = bind(&address).unwrap();
        let waiting: Vec<_> = std::iter::repeat_with(|| {
            let socket = unix_socket().unwrap();
            let connected = rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap());
            connected.is_ok().then_some(socket)
        })
        .map_while(|socket| socket)
        .collect();
        assert!(waiting.len() > 100);
        let error = bind(&address).err().unwrap();
        assert!(matches!(error, BindError::InUse { .. }), "{error}");
        drop(listener);
    }

    #[test]
    fn the_file_has_the_mode_and_the_group_that_were_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let address = Address::Unix(path.clone());
        let group = std::fs::metadata(folder.path()).unwrap().gid();
        let file = SocketFile { mode: 0o660, group: Some(group), owner: None };
        let listener = Listener::bind(&address, file).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.permissions().mode() & 0o777, found.gid()), (0o660, group));
        drop(listener);
        let file = SocketFile { mode: 0o4600, ..SocketFile::default() };
        assert!(Listener::bind(&address, file).is_err());
        assert!(!path.exists());
    }
}
