//! A client's connection, as servers of every protocol describe it.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::{getpeername, sockopt};

/// The number of the next connection of any server.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A connection of a server, as it was a moment ago.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionInfo {
    /// Identifies it: no other connection of any server in this process ever has the same number.
    pub id: u64,
    /// The other end: `ADDRESS:PORT`, or `process N of user N` of a Unix socket.
    pub peer: String,
    /// The open export or, in the handshake, the last requested one.
    pub export: Option<String>,
    /// Time since it was accepted.
    pub age: Duration,
    /// Time since the last message of its peer.
    pub idle: Duration,
    /// Requests of all kinds, failed ones included.
    pub requests: u64,
    /// Bytes read with success.
    pub read_bytes: u64,
    /// Bytes written with success.
    pub written_bytes: u64,
}

/// Returns the number of a new connection.
#[must_use]
pub fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// Describes the other end of a connected socket: see [`ConnectionInfo::peer`].
pub fn peer_of(socket: impl AsFd) -> String {
    let tcp = getpeername(&socket).ok().flatten();
    if let Some(address) = tcp.and_then(|address| std::net::SocketAddr::try_from(address).ok()) {
        return address.to_string();
    }
    // The peer of a Unix socket mostly has no name. The kernel keeps the process that connected.
    match sockopt::socket_peercred(&socket) {
        Ok(peer) => format!("process {} of user {}", peer.pid, peer.uid),
        Err(_) => "unknown".to_owned(),
    }
}
