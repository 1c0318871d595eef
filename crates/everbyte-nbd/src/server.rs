//! The server: accepts connections, gives each a thread, bounds them, and shuts down.
//!
//! Invariants: no client delays the greeting of another one. If too many handshakes wait for their
//! clients, a new connection replaces one of them. The payloads of all connections share one bound.
//! Every wait for a client ends when its socket is shut, by `disconnect` or `shutdown`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use everbyte_device::connection::ConnectionInfo;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};

use crate::address::Address;
use crate::connections::{Connection, Connections, Disconnected, Place, RequestGuard};
use crate::counters::{Activity, ServerStats};
use crate::disconnect::DisconnectReason;
use crate::exports::Exports;
use crate::handshake::{Session, negotiate};
use crate::listener::{BindError, Listener, SocketFile};
use crate::payloads::PayloadMemory;
use crate::transmission::{Limits, Transmission};
use crate::wire::{Wire, notice_silence};

/// Pause of accepting while the system has no descriptors or memory left.
const EXHAUSTED_REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Limits of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Open connections. A further one replaces a handshake that waits for its client, the oldest
    /// silent one first. Without such a handshake, the server closes the further connection.
    /// Default 128.
    pub connections_max: usize,
    /// Handshakes that wait for their clients. A further connection replaces one of them. Default
    /// 128.
    pub handshakes_max: usize,
    /// Longest handshake from start to end. Default 10 s.
    pub handshake_time_max: Duration,
    /// Longest silence of a peer on the network before its TCP connection ends. The server probes
    /// after half of this time, and when the peer does not take sent bytes. At least 10 s, in whole
    /// seconds. Default 60 s.
    pub silence_time_max: Duration,
    /// Longest time without any progress of an incomplete message, a request or a reply, before the
    /// connection ends. Default 60 s.
    pub stall_time_max: Duration,
    /// Longest time between requests of a client before its connection ends. `None`, the default,
    /// is unlimited: disks may be idle.
    pub idle_time_max: Option<Duration>,
    /// Longest wait of a shutdown before it breaks connections. Connections that are still in their
    /// device 2 s later are left behind. Default 5 s.
    pub shutdown_time_max: Duration,
    /// Mode and owner of a Unix socket's file. Default: mode 0600 and the user of the server
    /// process.
    pub socket_file: SocketFile,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections_max: 128,
            handshakes_max: 128,
            handshake_time_max: Duration::from_secs(10),
            silence_time_max: Duration::from_secs(60),
            stall_time_max: Duration::from_secs(60),
            idle_time_max: None,
            shutdown_time_max: Duration::from_secs(5),
            socket_file: SocketFile::default(),
        }
    }
}

/// An NBD server. Dropping it shuts it down.
pub struct Server {
    shared: Arc<Shared>,
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    exports: Arc<dyn Exports>,
    settings: Settings,
    /// The acceptor's address; the socket is its own, and closed when it stops.
    address: Address,
    connections: Arc<Connections>,
    payloads: PayloadMemory,
}

impl Server {
    /// Listens on `address` and serves `exports` on new threads, with default settings.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub fn bind(address: &Address, exports: Arc<dyn Exports>) -> Result<Self, BindError> {
        Self::bind_with(address, exports, Settings::default())
    }

    /// Like `bind`, with other settings.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub fn bind_with(
        address: &Address,
        exports: Arc<dyn Exports>,
        settings: Settings,
    ) -> Result<Self, BindError> {
        Self::bind_sharing(address, exports, settings, PayloadMemory::default())
    }

    /// Like `bind_with`, with memory for payloads that other servers can share.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub fn bind_sharing(
        address: &Address,
        exports: Arc<dyn Exports>,
        settings: Settings,
        payloads: PayloadMemory,
    ) -> Result<Self, BindError> {
        Self::start(Listener::bind(address, settings.socket_file)?, exports, settings, payloads)
    }

    /// Like `bind_sharing`, with a listening socket made by another program, such as a service
    /// manager. The server does not remove the file of a Unix socket.
    ///
    /// # Errors
    /// `NotAListener` if the descriptor is not a listening Unix or TCP socket; `Io`.
    pub fn adopt_sharing(
        socket: OwnedFd,
        exports: Arc<dyn Exports>,
        settings: Settings,
        payloads: PayloadMemory,
    ) -> Result<Self, BindError> {
        Self::start(Listener::adopt(socket)?, exports, settings, payloads)
    }

    fn start(
        listener: Listener,
        exports: Arc<dyn Exports>,
        settings: Settings,
        payloads: PayloadMemory,
    ) -> Result<Self, BindError> {
        let address = listener.address.clone();
        let failed = |source| BindError::Io { address: address.clone(), source };
        let connections = Arc::new(Connections::new().map_err(failed)?);
        let address = address.clone();
        let shared = Arc::new(Shared { exports, settings, address, connections, payloads });
        let acceptor = {
            let shared = Arc::clone(&shared);
            // The thread owns the listener: once `shutdown` has joined it, the socket and its file
            // are gone.
            let accept_all = move || shared.accept_all(&listener);
            thread::Builder::new().name("nbd-accept".to_owned()).spawn(accept_all)
        };
        let acceptor = acceptor.map_err(failed)?;
        tracing::info!(address = %shared.address, "listening");
        Ok(Self { shared, acceptor: Mutex::new(Some(acceptor)) })
    }

    /// Returns the server's address, with the port chosen by the system if none was given.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.shared.connections.stats()
    }

    /// Returns the open connections, those in their handshake included, the oldest first.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.shared.connections.list()
    }

    /// Ends the connection of this number, if there is one: shuts its socket, so unanswered
    /// requests stay unanswered. Waits at most `time_max` until the connection holds nothing.
    pub fn disconnect(&self, id: u64, time_max: Duration) -> Disconnected {
        self.shared.connections.disconnect(|connection| connection.id == id, time_max)
    }

    /// Ends every connection to the export of this name in the same way, including handshakes that
    /// requested it last. A client may reconnect immediately: refuse it in [`Exports::open`] first.
    pub fn disconnect_export(&self, export: &str, time_max: Duration) -> Disconnected {
        let is_to = |connection: &Connection| connection.activity.is_to(export);
        self.shared.connections.disconnect(is_to, time_max)
    }

    /// Begins a shutdown and returns immediately. The server accepts nothing, each connection
    /// finishes its taken requests, and later ones are answered with a shutdown error. To shut
    /// several servers down in the time of one, call this on all of them first.
    pub fn begin_shutdown(&self) {
        self.shared.connections.stop();
    }

    /// Shuts down, and returns when all connections have ended, or when `shutdown_time_max` has
    /// passed since the shutdown began and 2 s more for broken connections. May be called from any
    /// thread. Every caller returns to a stopped server.
    pub fn shutdown(&self) {
        self.begin_shutdown();
        // Held to the end, so that every caller returns to a stopped server.
        let mut acceptor = self.acceptor.lock();
        let Some(acceptor) = acceptor.take() else { return };
        // The acceptor ends before the connections: afterwards no thread is added to the table.
        if acceptor.join().is_err() {
            tracing::error!("the accepting thread has panicked");
        }
        self.shared.connections.await_end(self.shared.settings.shutdown_time_max);
        tracing::info!(address = %self.shared.address, "shut down");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// The acceptor's next step.
enum Acceptance {
    Connection(OwnedFd),
    Nothing,
    Stop,
}

impl Shared {
    fn accept_all(self: &Arc<Self>, listener: &Listener) {
        loop {
            match self.accept(listener) {
                Acceptance::Connection(socket) => self.start(socket),
                Acceptance::Nothing => {}
                Acceptance::Stop => return,
            }
        }
    }

    /// Waits for something to do.
    fn accept(&self, listener: &Listener) -> Acceptance {
        let wake = self.connections.wake_fd();
        let mut polled = [
            PollFd::from_borrowed_fd(wake, PollFlags::IN),
            PollFd::new(&listener.socket, PollFlags::IN),
        ];
        let waited = poll(&mut polled, None);
        let mut woken = [0; 8];
        // Empty if it was the listener that had something.
        let _ = rustix::io::read(wake, &mut woken);
        if self.connections.stopping().load(Ordering::Relaxed) {
            return Acceptance::Stop;
        }
        // An interrupted `poll` tells nothing about the listener.
        if waited.is_err() {
            return Acceptance::Nothing;
        }
        match rustix::net::accept_with(&listener.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => Acceptance::Connection(socket),
            // The client can leave between `poll` and `accept`.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Acceptance::Nothing,
            Err(error) => {
                tracing::warn!("accepting failed: {error}");
                // Nothing is lost if this wait is cut short.
                let _ = poll(&mut polled[..1], Some(&EXHAUSTED_REST));
                Acceptance::Nothing
            }
        }
    }

    /// Starts a connection's thread.
    fn start(self: &Arc<Self>, socket: OwnedFd) {
        let Settings { connections_max, handshakes_max, .. } = self.settings;
        let entered = self.connections.enter(socket, connections_max, handshakes_max);
        let Some(connection) = entered else { return };
        let id = connection.id;
        // Made before the thread: if the thread cannot start, dropping its closure frees the place.
        let place = Place::new(Arc::clone(&self.connections), connection);
        let shared = Arc::clone(self);
        let spawned =
            thread::Builder::new().name(format!("nbd-{id}")).spawn(move || shared.run(&place));
        match spawned {
            Ok(thread) => self.connections.add_thread(thread),
            Err(error) => tracing::warn!("no thread for a connection: {error}"),
        }
    }

    fn run(&self, place: &Place) {
        let Connection { id, peer, .. } = &*place.connection;
        tracing::debug!(id, peer, "connected");
        // The socket of a replaced handshake was shut by this server. Its error would mislead the
        // log.
        let served = self.serve(place).map_err(|reason| match place.connection.is_replaced() {
            true => DisconnectReason::Replaced,
            false => reason,
        });
        match served {
            Ok(()) => tracing::debug!(id, peer, "disconnected"),
            // Failures of networks are frequent and need no warning. Only acts of a peer count as
            // drops.
            Err(reason) if reason.is_offence() => {
                self.connections.count_dropped();
                tracing::warn!(id, peer, "dropped: {reason}");
            }
            Err(reason) => tracing::debug!(id, peer, "ended: {reason}"),
        }
    }

    fn serve(&self, place: &Place) -> Result<(), DisconnectReason> {
        let Connection { id, peer, socket, activity, .. } = &*place.connection;
        if matches!(self.address, Address::Tcp(_)) {
            // Replies are gathered already. The kernel's own gathering would only delay the last
            // one.
            sockopt::set_tcp_nodelay(socket, true).map_err(io::Error::from)?;
            notice_silence(socket, self.settings.silence_time_max).map_err(io::Error::from)?;
        }
        // Also for replies that a device sends itself.
        let stall = self.settings.stall_time_max;
        sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(stall))
            .map_err(io::Error::from)?;
        let deadline = Instant::now() + self.settings.handshake_time_max;
        let exports = RequestGuard { exports: &*self.exports, place, deadline };
        let note_activity = || activity.note_activity();
        let Some(session) = negotiate_in_time(socket.as_fd(), &exports, deadline, &note_activity)?
        else {
            return Ok(());
        };
        // From here on no newer connection may take this place: only handshakes are replaced.
        place.set_pending(false);
        tracing::debug!(id, peer, export = session.export.name, "transmission begins");
        let limits = Limits { idle: self.settings.idle_time_max, stall: Some(stall) };
        Transmission::new(socket.as_fd(), &session, activity, limits, &self.payloads)
            .run(self.connections.stopping())
    }
}

/// Negotiates until `deadline`. `None` means that the client left in order.
fn negotiate_in_time(
    socket: BorrowedFd<'_>,
    exports: &dyn Exports,
    deadline: Instant,
    note_activity: &dyn Fn(),
) -> Result<Option<Session>, DisconnectReason> {
    let wire = Wire { socket, deadline: Some(deadline), cancel: None };
    negotiate(&wire, exports, note_activity).map_err(|reason| match reason {
        DisconnectReason::Socket(error) if error.kind() == io::ErrorKind::TimedOut => {
            DisconnectReason::Late
        }
        reason => reason,
    })
}

/// The reason why a connection served by [`serve_connection`] ended.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ConnectionEnd(#[from] DisconnectReason);

/// Serves one connected stream socket, accepted elsewhere, on the calling thread until its peer has
/// left. The only limit is `handshake_time_max`. Shutting the socket down ends the call.
///
/// # Errors
/// The reason of an end without a goodbye. A peer that only closes is such an end, too.
pub fn serve_connection(
    socket: BorrowedFd<'_>,
    exports: &dyn Exports,
    handshake_time_max: Duration,
) -> Result<(), ConnectionEnd> {
    let deadline = Instant::now() + handshake_time_max;
    let Some(session) = negotiate_in_time(socket, exports, deadline, &|| ())? else {
        return Ok(());
    };
    let never = AtomicBool::new(false);
    let limits = Limits { idle: None, stall: None };
    let (activity, payloads) = (Activity::new(), PayloadMemory::default());
    Ok(Transmission::new(socket, &session, &activity, limits, &payloads).run(&never)?)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Read;
    use std::net::TcpStream;

    use super::*;
    use crate::exports::{Export, ExportInfo, OpenError};

    struct NoExports;

    impl Exports for NoExports {
        fn list(&self) -> Vec<ExportInfo> {
            Vec::new()
        }

        fn open(&self, _: &str) -> Result<Export, OpenError> {
            Err(OpenError::Unknown)
        }
    }

    #[test]
    fn connections_over_tcp_notice_peers_that_fall_silent() {
        let address = Address::Tcp("127.0.0.1:0".parse().unwrap());
        let settings = Settings {
            silence_time_max: Duration::from_secs(20),
            stall_time_max: Duration::from_secs(7),
            ..Settings::default()
        };
        let server = Server::bind_with(&address, Arc::new(NoExports), settings).unwrap();
        let Address::Tcp(address) = *server.address() else { unreachable!("it was bound to TCP") };
        let mut client = TcpStream::connect(address).unwrap();
        // Once the server has greeted, its socket is as it stays.
        client.read_exact(&mut [0; 18]).unwrap();
        let looked_at = Cell::new(0);
        let look = |connection: &Connection| {
            let socket = &connection.socket;
            assert!(sockopt::socket_keepalive(socket).unwrap());
            assert_eq!(sockopt::tcp_keepidle(socket).unwrap(), Duration::from_secs(10));
            assert_eq!(sockopt::tcp_user_timeout(socket).unwrap(), 20_000);
            assert!(sockopt::tcp_nodelay(socket).unwrap());
            let stall = sockopt::socket_timeout(socket, sockopt::Timeout::Send).unwrap();
            assert_eq!(stall, Some(Duration::from_secs(7)));
            looked_at.set(looked_at.get() + 1);
            false
        };
        // It looks at each connection, and disconnects none.
        server.shared.connections.disconnect(look, Duration::ZERO);
        assert_eq!(looked_at.get(), 1);
    }
}
