//! The service manager: reports of the state (`sd_notify`), and its sockets.
//!
//! Neither exists for a process started by a shell: then reports go nowhere and no socket is passed.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use anyhow::{Context, bail};
use listenfd::ListenFd;

/// Longest wait for a service manager with a full queue.
const REPORT_TIME_MAX: Duration = Duration::from_secs(1);
/// Passed sockets at most.
const SOCKETS_MAX: usize = 64;
/// The name of passed sockets for NBD clients.
const NBD: &str = "nbd";
/// The name of passed sockets for metrics.
const METRICS: &str = "metrics";

/// Stream sockets of the service manager. They may be in another state than listening.
#[derive(Default)]
pub(super) struct PassedSockets {
    /// For NBD clients.
    pub(super) nbd: Vec<OwnedFd>,
    /// For the metrics.
    pub(super) metrics: Vec<OwnedFd>,
}

/// Reports that the service is ready, and its status.
pub(super) fn ready(status: &str) {
    report(&format!("READY=1\nSTATUS={}", everbyte_text::escaped(status)));
}

/// Reports that the service ends, and its status.
pub(super) fn stopping(status: &str) {
    report(&format!("STOPPING=1\nSTATUS={}", everbyte_text::escaped(status)));
}

/// Reports a status.
pub(super) fn status(status: &str) {
    report(&format!("STATUS={}", everbyte_text::escaped(status)));
}

fn report(state: &str) {
    let Some(address) = env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty()) else {
        return;
    };
    // A report without a reader is no reason to end a working service.
    if let Err(error) = send(&address, state) {
        tracing::warn!("cannot report to the service manager: {error}");
    }
}

fn send(address: &OsStr, state: &str) -> io::Result<()> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(REPORT_TIME_MAX))?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}

/// Takes the sockets of the service manager.
///
/// # Errors
/// A descriptor is not a stream socket, or its name is neither `nbd` nor `metrics`.
pub(super) fn passed_sockets() -> anyhow::Result<PassedSockets> {
    let text = |name: &str| env::var(name).unwrap_or_default();
    // A child of a service inherits the variables. They are for the process of this number only.
    if text("LISTEN_PID") != std::process::id().to_string() {
        return Ok(PassedSockets::default());
    }
    let (count, names) = (text("LISTEN_FDS"), text("LISTEN_FDNAMES"));
    let count = count.parse().ok().filter(|count| *count <= SOCKETS_MAX);
    let count: usize =
        count.with_context(|| format!("LISTEN_FDS is not a number up to {SOCKETS_MAX}"))?;
    let names: Vec<_> = names.split(':').collect();
    let mut passed = ListenFd::from_env();
    let mut sockets = PassedSockets::default();
    for at in 0..count {
        let name = names.get(at).copied().unwrap_or_default();
        let of_name = match name {
            NBD => &mut sockets.nbd,
            METRICS => &mut sockets.metrics,
            _ => bail!(
                "the service manager passes a descriptor with the name {name:?}: use \
                 FileDescriptorName={NBD} or FileDescriptorName={METRICS} in the socket unit"
            ),
        };
        let unix = passed.take_unix_listener(at).ok().flatten().map(OwnedFd::from);
        let tcp = || passed.take_tcp_listener(at).ok().flatten().map(OwnedFd::from);
        let taken = unix.or_else(tcp);
        of_name.push(taken.context(
            "a descriptor of the service manager is not a stream socket: use ListenStream= \
             in the socket unit",
        )?);
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_reach_path_and_abstract_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("everbyte-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, address) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}").into()),
        ] {
            send(&address, "READY=1").unwrap();
            let mut bytes = [0; 16];
            let len = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..len], b"READY=1");
        }
        assert!(send(OsStr::new("/nowhere/notify"), "READY=1").is_err());
    }
}
