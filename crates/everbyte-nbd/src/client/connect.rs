//! Connects a client to its server: resolves names and tries addresses one after the other, within
//! a time limit and until cancelled.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use everbyte_path::{Rights, open_unmagical};
use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::address::{Address, AddressError, Place};
use crate::cancel::Cancelled;
use crate::wire::{nap, notice_silence, wait};

use super::{ClientError, ClientOptions};

/// Silence after which a TCP connection fails.
const SILENCE_TIME_MAX: Duration = Duration::from_secs(20);

/// Rest before the next look whether a server has room for a connection, or a name an address.
const PAUSE: Duration = Duration::from_millis(10);

/// Resolves a place. A system's resolver has neither time limits nor cancelling, so it works in a
/// thread. If it takes too long, the thread is left behind.
///
/// # Errors
/// `Address` if there are none, or none in time; `Cancelled`.
pub(crate) fn resolve(place: &Place, options: &ClientOptions) -> Result<Vec<Address>, ClientError> {
    if let Some(addresses) = place.known_addresses() {
        return Ok(addresses);
    }
    let deadline = Instant::now() + options.connect_time_max;
    let (sender, receiver) = mpsc::channel();
    let asked = place.clone();
    std::thread::Builder::new().name("nbd-resolve".to_owned()).spawn(move || {
        // The receiver is gone if it took too long.
        let _ = sender.send(asked.addresses());
    })?;
    loop {
        match receiver.recv_timeout(PAUSE) {
            Ok(found) => return Ok(found?),
            Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
            Err(_) => {
                let reason = "the system's resolver does not answer".to_owned();
                let (text, host) = (place.to_string(), place.to_string());
                return Err(AddressError::Host { text, host, reason }.into());
            }
        }
        if options.is_cancelled() {
            return Err(ClientError::Cancelled);
        }
    }
}

/// Connects to the first of `addresses` that accepts.
///
/// # Errors
/// `Connect`, with the error of every address; `Cancelled`.
pub(crate) fn connect_any(
    addresses: &[Address],
    options: &ClientOptions,
) -> Result<OwnedFd, ClientError> {
    let deadline = Instant::now() + options.connect_time_max;
    let mut failures: Vec<(&Address, io::Error)> = Vec::new();
    for (address, left) in addresses.iter().zip((1..=addresses.len()).rev()) {
        // One that does not answer leaves time for the others.
        let now = Instant::now();
        let share = deadline.saturating_duration_since(now) / u32::try_from(left).unwrap_or(1);
        let connecting = || connect(address, now + share, options);
        match options.rights.run(connecting).and_then(|connected| connected) {
            Ok(socket) => return Ok(socket),
            Err(_) if options.is_cancelled() => return Err(ClientError::Cancelled),
            Err(error) => failures.push((address, error)),
        }
    }
    let words: Vec<_> = failures.iter().map(|(address, e)| format!("{address}: {e}")).collect();
    match (failures.len(), failures.pop()) {
        (1, Some((address, source))) => {
            Err(ClientError::Connect { address: address.clone(), source })
        }
        (_, Some((address, last))) => {
            let source = io::Error::new(last.kind(), words.join("; "));
            Err(ClientError::Connect { address: address.clone(), source })
        }
        (_, None) => Err(ClientError::Broken { reason: "the host has no address".to_owned() }),
    }
}

fn connect(address: &Address, deadline: Instant, options: &ClientOptions) -> io::Result<OwnedFd> {
    let cancel = options.cancel.as_ref();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = match address {
        Address::Unix(_) => AddressFamily::UNIX,
        Address::Tcp(tcp) if tcp.is_ipv4() => AddressFamily::INET,
        Address::Tcp(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match address {
        Address::Unix(path) => {
            while let Err(error) = connect_unix(&socket, path, &options.rights) {
                // A server that is alive, and has connections enough to accept.
                if error.raw_os_error() != Some(Errno::AGAIN.raw_os_error()) {
                    return Err(error);
                }
                if Instant::now() >= deadline {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                nap(PAUSE, cancel)?;
            }
        }
        Address::Tcp(tcp) => {
            match rustix::net::connect(&socket, tcp) {
                Ok(()) => {}
                Err(Errno::INPROGRESS) => {
                    wait(&socket, PollFlags::OUT, Some(deadline), cancel)?;
                    // Writable means only that the attempt has ended. The socket has its result.
                    sockopt::socket_error(&socket)??;
                }
                Err(error) => return Err(error.into()),
            }
            sockopt::set_tcp_nodelay(&socket, true)?;
            notice_silence(&socket, SILENCE_TIME_MAX)?;
        }
    }
    // Nonblocking only for the attempt: a receive without a deadline blocks.
    rustix::io::ioctl_fionbio(&socket, false)?;
    match cancel {
        // An attempt that succeeds immediately has not waited, and so has not seen the handle.
        Some(cancel) if cancel.is_cancelled() => Err(Cancelled.into()),
        _ => Ok(socket),
    }
}

/// Connects to the socket at `path`. The thread has the rights already, and the server sees their user as its peer.
fn connect_unix(socket: &OwnedFd, path: &Path, rights: &Rights) -> io::Result<()> {
    if *rights == Rights::Own {
        return Ok(rustix::net::connect(socket, &SocketAddrUnix::new(path)?)?);
    }
    // `connect` would follow links of `/proc` to descriptors, past the rights of directories.
    let found = open_unmagical(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    Ok(rustix::net::connect(socket, &address)?)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn every_address_is_tried_until_one_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let live = Address::Tcp(listener.local_addr().unwrap());
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let dead = Address::Tcp(closed);
        let options = ClientOptions::default();
        connect_any(&[dead.clone(), live.clone()], &options).unwrap();
        connect_any(&[live], &options).unwrap();
        let other: Address = "unix:/nowhere/at all".parse().unwrap();
        let error = connect_any(&[dead.clone(), other], &options).unwrap_err().to_string();
        assert!(error.contains(&dead.to_string()) && error.contains("/nowhere"), "{error}");
    }

    #[test]
    fn sockets_are_connected_to_with_the_rights_given() {
        use std::os::unix::fs::{PermissionsExt, chown};
        use std::os::unix::net::UnixListener;

        use rustix::net::sockopt::socket_peercred;

        if !rustix::process::geteuid().is_root() {
            return;
        }
        const USER: u32 = 54321;
        let folder = tempfile::tempdir().unwrap();
        let open_to = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        open_to(folder.path(), 0o755);
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        open_to(&path, 0o600);
        let options = ClientOptions { rights: Rights::of_user(USER), ..ClientOptions::default() };
        let address = Address::Unix(path.clone());
        let refused = connect_any(std::slice::from_ref(&address), &options).unwrap_err();
        assert!(refused.to_string().contains("ermission denied"), "{refused}");
        chown(&path, Some(USER), None).unwrap();
        let _connected = connect_any(std::slice::from_ref(&address), &options).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(socket_peercred(&accepted).unwrap().uid.as_raw(), USER);
    }
}
