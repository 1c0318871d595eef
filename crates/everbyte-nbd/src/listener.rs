//! Listening sockets.
//!
//! Invariants: the file of a Unix socket has its mode and owner before a client can connect to it,
//! and is removed with the listener. Inspecting, removing and making a socket require the
//! [`StartLock`]. Without it, two servers could find the same stale socket, and the second one
//! could remove the new socket of the first.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::geteuid;

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
    /// The path of a Unix socket holds another kind of file.
    #[error("{address}: the path exists and is no socket")]
    NotASocket {
        /// The address.
        address: Address,
    },
    /// A descriptor is not a listening stream socket of a family with an [`Address`].
    #[error("the descriptor is not a listening Unix or TCP socket: {reason}")]
    NotAListener {
        /// The property that differs, or the system's error.
        reason: String,
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

/// Mode and owner of a Unix socket's file. Users with write access to it may connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketFile {
    /// Permission bits, at most `0o777`. Default `0o600`.
    pub mode: u32,
    /// User id; `None`, the default, is the user of the server process.
    pub owner: Option<u32>,
    /// Group id; `None`, the default, is the system's choice.
    pub group: Option<u32>,
}

impl Default for SocketFile {
    fn default() -> Self {
        Self { mode: 0o600, owner: None, group: None }
    }
}

/// A listening socket, also for other protocols over Unix sockets.
pub struct Listener {
    pub(crate) socket: OwnedFd,
    /// The address, with the port chosen by the system if none was given.
    pub(crate) address: Address,
    /// Device and inode of a Unix socket's file.
    file: Option<(u64, u64)>,
}

impl Listener {
    /// Listens; `accept` does not block.
    ///
    /// # Errors
    /// `InUse` if another server listens there; `NotASocket`; `Io`.
    pub fn bind(address: &Address, file: SocketFile) -> Result<Self, BindError> {
        let failed = |source| BindError::Io { address: address.clone(), source };
        match address {
            Address::Tcp(tcp) => {
                let listener = TcpListener::bind(tcp).map_err(|error| match error.kind() {
                    io::ErrorKind::AddrInUse => BindError::InUse { address: address.clone() },
                    _ => failed(error),
                })?;
                // The client can leave between `poll` and `accept`, and `accept` must not wait for
                // the next one.
                listener.set_nonblocking(true).map_err(failed)?;
                let address = Address::Tcp(listener.local_addr().map_err(failed)?);
                Ok(Self { socket: listener.into(), address, file: None })
            }
            Address::Unix(path) => {
                let _lock = StartLock::take().map_err(failed)?;
                clear_stale(path, address)?;
                let socket = bind_unix(path, file).map_err(|error| match error.kind() {
                    // A program that does not take the lock came between.
                    io::ErrorKind::AddrInUse => BindError::InUse { address: address.clone() },
                    _ => failed(error),
                })?;
                // Read under the lock: no other server of this user can have replaced the file yet.
                let file = identity(path).map_err(failed)?;
                Ok(Self { socket, address: address.clone(), file: Some(file) })
            }
        }
    }

    /// Takes a socket that another program made and listens on. The file of a Unix socket stays
    /// after the drop: it belongs to the other program.
    ///
    /// # Errors
    /// `NotAListener`.
    pub(crate) fn adopt(socket: OwnedFd) -> Result<Self, BindError> {
        let wrong = |reason: &str| BindError::NotAListener { reason: reason.to_owned() };
        let refused = |error: Errno| wrong(&error.to_string());
        if sockopt::socket_type(&socket).map_err(refused)? != SocketType::STREAM {
            return Err(wrong("it is not a stream socket"));
        }
        if !sockopt::socket_acceptconn(&socket).map_err(refused)? {
            return Err(wrong("it does not listen"));
        }
        let name = rustix::net::getsockname(&socket).map_err(refused)?;
        let address = if let Ok(unix) = SocketAddrUnix::try_from(name.clone()) {
            // Clients of an abstract or nameless socket have no path to connect to.
            let path = unix.path_bytes().ok_or_else(|| wrong("its address has no path"))?;
            Address::Unix(PathBuf::from(OsStr::from_bytes(path)))
        } else {
            let tcp = SocketAddr::try_from(name).map_err(|_| wrong("its address family"))?;
            Address::Tcp(tcp)
        };
        // The acceptor polls first, and `accept` must not wait for a client that left.
        rustix::io::ioctl_fionbio(&socket, true).map_err(refused)?;
        Ok(Self { socket, address, file: None })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    /// Removes the file of a Unix socket, unless another file has replaced it.
    fn drop(&mut self) {
        let (Address::Unix(path), Some(file)) = (&self.address, self.file) else { return };
        // Without the lock it may be another's by now, so it is better left behind.
        let lock = StartLock::take();
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

/// Removes the file of a socket without a listener.
fn clear_stale(path: &Path, address: &Address) -> Result<(), BindError> {
    // A missing file is the normal case. `bind` reports any other failure.
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    // Only a socket may be removed: the path may be a mistake of the user.
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
        // A full backlog or a refused permission means that a server listens.
        _ => Err(BindError::InUse { address: address.clone() }),
    }
}

/// Connects without waiting, and closes immediately.
fn probe(path: &Path) -> rustix::io::Result<()> {
    let socket = unix_socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

fn unix_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn bind_unix(path: &Path, file: SocketFile) -> io::Result<OwnedFd> {
    // Refused before a file exists that would have to be removed again.
    if file.mode & !0o777 != 0 {
        let reason = format!("{:#o} is no mode of a socket's file", file.mode);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let socket = unix_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Until the socket listens, no client can connect, regardless of its mode.
    let listening =
        give(path, file).and_then(|()| rustix::net::listen(&socket, BACKLOG).map_err(Errno::into));
    if let Err(error) = listening {
        // The file is ours, and of no use to anyone.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(socket)
}

/// Sets owner and mode of the socket at `path`, and never of a file that replaced it.
fn give(path: &Path, file: SocketFile) -> io::Result<()> {
    // The descriptor pins one inode, so the check and both changes concern the same file.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !found.metadata()?.file_type().is_socket() {
        let what = format!("{} is no socket any more", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    // `fchown` and `fchmod` refuse an `O_PATH` descriptor. Its link in `/proc` serves.
    let found = format!("/proc/self/fd/{}", found.as_raw_fd());
    // The owner before the mode: the mode can admit a group, and must not admit a former one.
    if file.owner.is_some() || file.group.is_some() {
        std::os::unix::fs::chown(&found, file.owner, file.group)?;
    }
    std::fs::set_permissions(&found, Permissions::from_mode(file.mode))
}

/// Longest wait for other processes of this user that start or stop listening. They need far less.
const LOCK_TIME_MAX: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(5);
/// Name of the lock file in a directory that other users cannot open.
const LOCK_NAME: &str = "listen.lock";

/// The lock of this user's processes that start or stop listening. Dropping it unlocks.
///
/// Its file is in a directory of this user alone, so no other user can hold the lock. Other users
/// cannot remove the sockets of this one from a sticky directory, and in any other directory no
/// lock would keep them from it.
struct StartLock {
    _file: Option<OwnedFd>,
}

impl StartLock {
    /// Without a directory for the lock, as in a container without `/run` and `/tmp`, there is no
    /// lock. Then only servers that start at the same moment at the same stale socket can disturb
    /// each other.
    fn take() -> io::Result<Self> {
        let Some(file) = lock_file() else {
            tracing::debug!("no directory for the lock of starting listeners");
            return Ok(Self { _file: None });
        };
        let deadline = Instant::now() + LOCK_TIME_MAX;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: Some(file) }),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(Errno::WOULDBLOCK) => {
                    let reason = "another program of this user has the lock of those that listen";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Opens the lock file in the first directory that belongs to this user alone.
fn lock_file() -> Option<OwnedFd> {
    let uid = geteuid();
    let run = match uid.is_root() {
        true => PathBuf::from("/run/everbyte-locks"),
        false => PathBuf::from(format!("/run/user/{uid}/everbyte-locks")),
    };
    let others = ["/tmp", "/var/tmp"].map(|folder| format!("{folder}/everbyte-locks-{uid}").into());
    std::iter::once(run).chain(others).find_map(|folder| lock_file_in(&folder).ok())
}

fn lock_file_in(folder: &Path) -> io::Result<OwnedFd> {
    // An existing directory may be another user's. Its descriptor is checked below.
    match rustix::fs::mkdir(folder, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags | OFlags::RDONLY, Mode::empty())?;
    check_own(&folder, 0o022)?;
    // `NONBLOCK`, because the opening of a special file of this name must not block.
    let flags = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file =
        rustix::fs::openat(&folder, LOCK_NAME, flags | OFlags::RDWR, Mode::RUSR | Mode::WUSR)?;
    check_own(&file, 0o077)?;
    Ok(file)
}

/// Fails unless the file belongs to this user and other users have none of these rights.
fn check_own(file: &OwnedFd, rights: u32) -> io::Result<()> {
    let found = rustix::fs::fstat(file)?;
    if found.st_uid == geteuid().as_raw() && found.st_mode & rights == 0 {
        return Ok(());
    }
    Err(io::ErrorKind::PermissionDenied.into())
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
    fn adopted_socket_keeps_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let made = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let adopted = Listener::adopt(made.into()).unwrap();
        assert_eq!(adopted.address, Address::Unix(path.clone()));
        drop(adopted);
        assert!(path.exists());
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        assert_eq!(Listener::adopt(tcp.into()).unwrap().address, Address::Tcp(address));
    }

    #[test]
    fn descriptor_without_listener_is_refused() {
        let (stream, _other) = UnixStream::pair().unwrap();
        let datagrams = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let file = tempfile::tempfile().unwrap();
        for (descriptor, words) in [
            (OwnedFd::from(stream), "does not listen"),
            (datagrams.into(), "not a stream socket"),
            (udp.into(), "not a stream socket"),
            (file.into(), "socket"),
        ] {
            let error = Listener::adopt(descriptor).err().unwrap();
            assert!(matches!(error, BindError::NotAListener { .. }), "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
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
    fn locks_of_the_folder_delay_no_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let held = File::open(folder.path()).unwrap();
        rustix::fs::flock(&held, FlockOperation::LockShared).unwrap();
        let since = Instant::now();
        drop(bind(&Address::Unix(path.clone())).unwrap());
        assert!(since.elapsed() < LOCK_TIME_MAX, "it waited for the lock");
        assert!(!path.exists(), "a server that stops removes its socket");
    }

    #[test]
    fn lock_files_of_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let private = folder.path().join("private");
        lock_file_in(&private).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&private), mode(&private.join(LOCK_NAME))), (0o700, 0o600));
        // A file that others can open: they can hold its lock.
        std::fs::set_permissions(private.join(LOCK_NAME), Permissions::from_mode(0o644)).unwrap();
        assert!(lock_file_in(&private).is_err());
        std::fs::remove_file(private.join(LOCK_NAME)).unwrap();
        std::os::unix::fs::symlink(folder.path().join("target"), private.join(LOCK_NAME)).unwrap();
        assert!(lock_file_in(&private).is_err());
        assert!(!folder.path().join("target").exists());
        std::fs::remove_file(private.join(LOCK_NAME)).unwrap();
        lock_file_in(&private).unwrap();
        std::fs::set_permissions(&private, Permissions::from_mode(0o777)).unwrap();
        assert!(lock_file_in(&private).is_err());
        std::fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&private, &link).unwrap();
        assert!(lock_file_in(&link).is_err());
    }

    #[test]
    fn one_of_two_servers_takes_a_stale_socket() {
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
    fn server_with_full_backlog_is_alive() {
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
    fn socket_file_has_requested_mode_and_group() {
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
