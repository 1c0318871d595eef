//! The server: accepts connections, gives each a thread, bounds them, and shuts down.
//!
//! Invariants: a connection is in `State::connections` from before its thread starts until that
//! thread is done with its device; handshakes in progress are counted in `State::handshakes` and
//! never exceed the setting; once `stopping` is set nothing is accepted.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, sockopt};

use crate::address::Address;
use crate::counters::{Counters, ServerStats};
use crate::end::End;
use crate::handshake::{Exports, Session, haggle};
use crate::listener::{BindError, Listener};
use crate::transmission::Transmission;
use crate::wire::Wire;

/// How long accepting rests when the system has no descriptors or memory left.
const EXHAUSTED_REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The bounds of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Connections at once; further ones are closed as soon as they are accepted. Default 128.
    pub connections_max: usize,
    /// Handshakes at once; further connections wait to be accepted. Default 16.
    pub handshakes_max: usize,
    /// How long a handshake may take from start to end. Default 10 s.
    pub handshake_time_max: Duration,
    /// How long a shutdown waits for connections before it breaks them, and then again before
    /// it leaves their threads behind. Default 5 s.
    pub shutdown_time_max: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections_max: 128,
            handshakes_max: 16,
            handshake_time_max: Duration::from_secs(10),
            shutdown_time_max: Duration::from_secs(5),
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
    /// Where the acceptor listens; the socket is its own, and closed when it stops.
    address: Address,
    counters: Counters,
    stopping: AtomicBool,
    /// Written to when the acceptor has to look up.
    wake: OwnedFd,
    state: Mutex<State>,
    /// Signalled when a connection has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    connections: HashMap<u64, Arc<OwnedFd>>,
    threads: Vec<JoinHandle<()>>,
    handshakes: usize,
    next_id: u64,
}

impl Server {
    /// Listens on `address` and serves `exports` from threads of its own, with default settings.
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
        let failed = |source| BindError::Io { address: address.clone(), source };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| failed(errno.into()))?;
        let listener = Listener::bind(address)?;
        let shared = Arc::new(Shared {
            exports,
            settings,
            address: listener.address.clone(),
            counters: Counters::default(),
            stopping: AtomicBool::new(false),
            wake,
            state: Mutex::default(),
            ended: Condvar::new(),
        });
        let acceptor = {
            let shared = Arc::clone(&shared);
            let accept_all = move || shared.accept_all(&listener);
            thread::Builder::new().name("nbd-accept".to_owned()).spawn(accept_all)
        };
        let acceptor = acceptor.map_err(failed)?;
        tracing::info!(address = %shared.address, "listening");
        Ok(Self { shared, acceptor: Mutex::new(Some(acceptor)) })
    }

    /// Where the server listens, with the port that the system chose if it had to.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// What was counted so far.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        let connections = self.shared.state.lock().connections.len();
        self.shared.counters.snapshot(connections as u64)
    }

    /// Stops accepting, lets each connection finish the requests it has taken, and returns when
    /// all have ended, or when the time for it has passed twice. Later requests are answered with
    /// a shutdown error. May be called from any thread; only the first call does anything.
    pub fn shutdown(&self) {
        // Held to the end, so that every caller returns to a server that is down.
        let mut acceptor = self.acceptor.lock();
        let Some(acceptor) = acceptor.take() else { return };
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.wake();
        if acceptor.join().is_err() {
            tracing::error!("the accepting thread has panicked");
        }
        self.shared.end_connections();
        tracing::info!(address = %self.shared.address, "shut down");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// What an acceptor does next.
enum Acceptable {
    Connection(OwnedFd),
    Nothing,
    Stop,
}

impl Shared {
    fn wake(&self) {
        // A full counter has not been read yet, so the acceptor will look up anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn accept_all(self: &Arc<Self>, listener: &Listener) {
        loop {
            match self.accept(listener) {
                Acceptable::Connection(socket) => self.start(socket),
                Acceptable::Nothing => {}
                Acceptable::Stop => return,
            }
        }
    }

    /// Waits for something to do.
    fn accept(&self, listener: &Listener) -> Acceptable {
        let full = self.state.lock().handshakes >= self.settings.handshakes_max;
        let mut polled =
            [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&listener.socket, PollFlags::IN)];
        // A handshake that ends wakes us to listen again.
        let polled = if full { &mut polled[..1] } else { &mut polled[..] };
        let waited = poll(polled, None);
        let mut woken = [0; 8];
        // Empty if it was the listener that had something.
        let _ = rustix::io::read(&self.wake, &mut woken);
        if self.stopping.load(Ordering::Relaxed) {
            return Acceptable::Stop;
        }
        if waited.is_err() || full {
            return Acceptable::Nothing;
        }
        match rustix::net::accept_with(&listener.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => Acceptable::Connection(socket),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Acceptable::Nothing,
            Err(error) => {
                tracing::warn!("accepting failed: {error}");
                // Nothing is lost if this wait is cut short.
                let _ = poll(&mut polled[..1], Some(&EXHAUSTED_REST));
                Acceptable::Nothing
            }
        }
    }

    /// Gives a connection its thread.
    fn start(self: &Arc<Self>, socket: OwnedFd) {
        self.counters.connections_total.add(1);
        let socket = Arc::new(socket);
        let peer = peer_of(&socket);
        let mut state = self.state.lock();
        let (ended, running) = state.threads.drain(..).partition(JoinHandle::is_finished);
        state.threads = running;
        join_all(ended);
        if state.connections.len() >= self.settings.connections_max {
            self.counters.connections_refused.add(1);
            tracing::warn!(peer, "refused: {} connections are open", state.connections.len());
            return;
        }
        let id = state.next_id;
        state.next_id += 1;
        state.handshakes += 1;
        state.connections.insert(id, Arc::clone(&socket));
        let connection = Connection { shared: Arc::clone(self), id, peer, socket, haggling: true };
        // Dropping a connection takes the lock. If there is no thread for it, that is here.
        drop(state);
        let spawned =
            thread::Builder::new().name(format!("nbd-{id}")).spawn(move || connection.run());
        match spawned {
            Ok(thread) => self.state.lock().threads.push(thread),
            Err(error) => tracing::warn!("no thread for a connection: {error}"),
        }
    }

    /// Ends all connections: politely, then by breaking them.
    fn end_connections(&self) {
        let mut state = self.state.lock();
        for how in [Shutdown::Read, Shutdown::Both] {
            for socket in state.connections.values() {
                // The peer may have closed already.
                let _ = rustix::net::shutdown(socket, how);
            }
            let deadline = Instant::now() + self.settings.shutdown_time_max;
            while !state.connections.is_empty() {
                if self.ended.wait_until(&mut state, deadline).timed_out() {
                    break;
                }
            }
        }
        let stuck = state.connections.len();
        let mut threads = std::mem::take(&mut state.threads);
        drop(state);
        if stuck > 0 {
            tracing::error!("{stuck} connections are stuck in their device; leaving them");
            threads.retain(JoinHandle::is_finished);
        }
        join_all(threads);
    }
}

fn join_all(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a connection's thread has panicked");
        }
    }
}

/// One connection. Dropping it takes it off the books, even if its thread panics.
struct Connection {
    shared: Arc<Shared>,
    id: u64,
    peer: String,
    socket: Arc<OwnedFd>,
    /// Whether it still counts as a handshake.
    haggling: bool,
}

impl Connection {
    fn run(mut self) {
        tracing::debug!(peer = self.peer, "connected");
        match self.serve() {
            Ok(()) => tracing::debug!(peer = self.peer, "disconnected"),
            Err(end) if end.is_offence() => {
                self.shared.counters.connections_dropped.add(1);
                tracing::warn!(peer = self.peer, "dropped: {end}");
            }
            Err(end) => tracing::debug!(peer = self.peer, "ended: {end}"),
        }
    }

    fn serve(&mut self) -> Result<(), End> {
        let socket = Arc::clone(&self.socket);
        if matches!(self.shared.address, Address::Tcp(_)) {
            sockopt::set_tcp_nodelay(&*socket, true).map_err(io::Error::from)?;
            sockopt::set_socket_keepalive(&*socket, true).map_err(io::Error::from)?;
        }
        let time_max = self.shared.settings.handshake_time_max;
        let haggled = haggle_in_time(socket.as_fd(), &*self.shared.exports, time_max);
        let Some(session) = haggled? else {
            return Ok(());
        };
        self.end_handshake();
        tracing::debug!(peer = self.peer, export = session.export, "transmission begins");
        Transmission::new(socket.as_fd(), &session, &self.shared.counters)
            .run(&self.shared.stopping)
    }

    fn end_handshake(&mut self) {
        if std::mem::take(&mut self.haggling) {
            self.shared.state.lock().handshakes -= 1;
            self.shared.wake();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end_handshake();
        self.shared.state.lock().connections.remove(&self.id);
        self.shared.ended.notify_all();
    }
}

/// Haggles for at most `time_max`. `None` means that the client left politely.
fn haggle_in_time(
    socket: BorrowedFd<'_>,
    exports: &dyn Exports,
    time_max: Duration,
) -> Result<Option<Session>, End> {
    let wire = Wire { socket, deadline: Some(Instant::now() + time_max) };
    haggle(&wire, exports).map_err(|end| match end {
        End::Socket(error) if error.kind() == io::ErrorKind::TimedOut => End::Late,
        end => end,
    })
}

/// Why a connection that was served with [`serve_connection`] ended.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ConnectionEnd(#[from] End);

/// Serves one connected stream socket on the calling thread until its peer has left: for sockets
/// that somebody else accepted. Knows no bound but `handshake_time_max`, and no shutdown.
///
/// # Errors
/// Why the connection ended other than by a goodbye; a peer that just closes is such an end, too.
pub fn serve_connection(
    socket: BorrowedFd<'_>,
    exports: &dyn Exports,
    handshake_time_max: Duration,
) -> Result<(), ConnectionEnd> {
    let Some(session) = haggle_in_time(socket, exports, handshake_time_max)? else {
        return Ok(());
    };
    let counters = Counters::default();
    let never = AtomicBool::new(false);
    Ok(Transmission::new(socket, &session, &counters).run(&never)?)
}

/// What a log calls the peer of a socket.
fn peer_of(socket: &OwnedFd) -> String {
    let tcp = rustix::net::getpeername(socket).ok().flatten();
    if let Some(address) = tcp.and_then(|address| std::net::SocketAddr::try_from(address).ok()) {
        return address.to_string();
    }
    match sockopt::socket_peercred(socket) {
        Ok(peer) => format!("process {} of user {}", peer.pid, peer.uid),
        Err(_) => "unknown".to_owned(),
    }
}
