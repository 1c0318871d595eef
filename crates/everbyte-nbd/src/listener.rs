//! Sockets that listen.
//!
//! Invariants: the file of a Unix socket has mode 0600 before anybody can connect to it, and is
//! removed with the listener.

use std::fs::Permissions;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::address::Address;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another server listens there.
    #[error("another server is listening on {address}; stop it or choose another address")]
    InUse {
        /// The address.
        address: Address,
    },
    /// The path of a Unix socket holds a file that is none.
    #[error("{address}: the path exists and is no socket; remove it or choose another path")]
    NotASocket {
        /// The address.
        address: Address,
    },
    /// The system refused.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// The address.
        address: Address,
        /// Why.
        source: io::Error,
    },
}

/// A socket that listens.
pub(crate) struct Listener {
    pub(crate) socket: OwnedFd,
    /// The address, with the port that the system chose if it had to.
    pub(crate) address: Address,
    /// Device and inode of a Unix socket's file.
    file: Option<(u64, u64)>,
}

impl Listener {
    /// Listens, without blocking in `accept`.
    ///
    /// # Errors
    /// If the address is in use or cannot be used.
    pub(crate) fn bind(address: &Address) -> Result<Self, BindError> {
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
                clear_stale(path, address)?;
                let socket = bind_unix(path).map_err(|error| match error.kind() {
                    // Somebody came between.
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
        if let (Address::Unix(path), Some(file)) = (&self.address, self.file)
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
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::debug!(path = %path.display(), "removing the socket of a dead server");
            std::fs::remove_file(path)
                .map_err(|source| BindError::Io { address: address.clone(), source })
        }
        // A full backlog or a refused permission means that somebody is there.
        _ => Err(BindError::InUse { address: address.clone() }),
    }
}

fn bind_unix(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let listening = std::fs::set_permissions(path, Permissions::from_mode(0o600))
        .and_then(|()| rustix::net::listen(&socket, BACKLOG).map_err(Errno::into));
    if let Err(error) = listening {
        // The file is ours, and of no use to anyone.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_sockets_are_replaced_and_live_ones_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let address = Address::Unix(path.clone());
        let first = Listener::bind(&address).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = Listener::bind(&address).err().unwrap();
        assert!(matches!(error, BindError::InUse { .. }), "{error}");
        drop(first);
        assert!(!path.exists());
        // A server that dies without a goodbye leaves its file.
        drop(bind_unix(&path).unwrap());
        assert!(path.exists());
        let second = Listener::bind(&address).unwrap();
        assert_eq!(second.file, Some(identity(&path).unwrap()));
    }

    #[test]
    fn other_files_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "precious").unwrap();
        let error = Listener::bind(&Address::Unix(path.clone())).err().unwrap();
        assert!(matches!(error, BindError::NotASocket { .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");

        let path = folder.path().join("s");
        let listener = Listener::bind(&Address::Unix(path.clone())).unwrap();
        std::fs::rename(&path, folder.path().join("moved")).unwrap();
        std::fs::write(&path, "another's").unwrap();
        drop(listener);
        assert!(path.exists());
    }

    #[test]
    fn tcp_ports_are_chosen_and_taken() {
        let listener = Listener::bind(&"tcp:0".parse().unwrap()).unwrap();
        let Address::Tcp(address) = &listener.address else { panic!("no TCP") };
        assert!(address.ip().is_loopback() && address.port() != 0);
        let error = Listener::bind(&listener.address).err().unwrap();
        assert!(matches!(error, BindError::InUse { .. }), "{error}");
    }
}
