//! The server of one device on one socket: it takes a connection at a time, as virtual machines expect.
//!
//! Invariant: after `shutdown` no thread of the server runs, and the device is released, unless a request hangs in
//! the device.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use everbyte_device::BlockDevice;
use everbyte_device::connection::ConnectionInfo;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use vhost::vhost_user::{BackendReqHandler, Error};

use crate::connection::Connection;
use crate::notice::SizeNotices;
use crate::session::Session;

/// Pause after a failure to accept, usually because the process has no descriptors left.
const EXHAUSTED_REST: Duration = Duration::from_millis(100);

/// Time that a shutdown waits for requests in their device. Then it leaves their threads behind.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(4);
const SHUTDOWN_LOOK: Duration = Duration::from_millis(2);

/// Opens the device for a connection. The reason of a failure is for the log; the virtual machine can reconnect.
pub type OpenDevice = dyn Fn() -> Result<Arc<dyn BlockDevice>, String> + Send + Sync;

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct VhostSettings {
    /// The name of the disk in the log, and its serial number for the guest (at most 20 bytes).
    pub name: String,
    /// The address that lists of clients print.
    pub address: String,
    /// True if the guest may have a volatile write cache. It has one initially, if its driver can flush.
    pub write_back: bool,
}

/// A vhost-user-blk server. Dropping it shuts it down.
pub struct VhostServer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    settings: VhostSettings,
    open: Box<OpenDevice>,
    is_stopping: AtomicBool,
    stopping_since: Mutex<Option<Instant>>,
    /// Readable once the server stops.
    stop: OwnedFd,
    current: Mutex<Option<Arc<Connection>>>,
    /// Signalled when the current connection has ended and holds nothing.
    ended: Condvar,
}

impl VhostServer {
    /// Serves connections to `listener`, a listening Unix socket that does not block, on new threads. The server
    /// drops the listener at its end.
    ///
    /// # Errors
    /// The system has no thread or no descriptor left.
    pub fn start<L: AsFd + Send + 'static>(
        listener: L,
        settings: VhostSettings,
        open: Box<OpenDevice>,
    ) -> io::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let name = format!("vhost-{}", settings.name);
        let (is_stopping, stopping_since) = (AtomicBool::new(false), Mutex::default());
        let (current, ended) = (Mutex::default(), Condvar::new());
        let shared = Shared { settings, open, is_stopping, stopping_since, stop, current, ended };
        let shared = Arc::new(shared);
        let theirs = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name(name).spawn(move || theirs.accept_all(&listener))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// The name of the served disk.
    #[must_use]
    pub fn disk(&self) -> &str {
        &self.shared.settings.name
    }

    /// The address that lists of clients print.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.shared.settings.address
    }

    /// Returns the open connection, if a virtual machine is connected.
    #[must_use]
    pub fn connection(&self) -> Option<ConnectionInfo> {
        self.shared.current.lock().as_ref().map(|current| current.info(self.disk()))
    }

    /// Ends the open connection, or only the connection of the number `id`. The taken requests complete; unanswered ones
    /// stay in their ring. Returns `None` without a connection of this number. Otherwise returns true if the connection
    /// has ended within `time_max`.
    /// The virtual machine may reconnect immediately: refuse it in [`OpenDevice`] first.
    pub fn disconnect(&self, id: Option<u64>, time_max: Duration) -> Option<bool> {
        let deadline = Instant::now() + time_max;
        let mut current = self.shared.current.lock();
        let found = current.as_ref().filter(|found| id.is_none_or(|id| found.id() == id))?;
        let id = found.id();
        tracing::info!(id, disk = self.disk(), "disconnecting a virtual machine");
        found.shut();
        let is_left = |current: &Option<Arc<Connection>>| {
            current.as_ref().is_some_and(|current| current.id() == id)
        };
        while is_left(&current) && !self.shared.ended.wait_until(&mut current, deadline).timed_out()
        {
        }
        Some(!is_left(&current))
    }

    /// Begins a shutdown and returns immediately. Running requests end, and later ones stay in their ring.
    pub fn begin_shutdown(&self) {
        self.shared.stopping_since.lock().get_or_insert_with(Instant::now);
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        // It fails only if it is readable already.
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        // For a message whose rest never arrives.
        if let Some(current) = &*self.shared.current.lock() {
            current.shut();
        }
    }

    /// Shuts down, and returns when the requests have ended, or 4 s after the shutdown began.
    pub fn shutdown(&self) {
        self.begin_shutdown();
        let began = self.shared.stopping_since.lock().unwrap_or_else(Instant::now);
        let Some(thread) = self.thread.lock().take() else { return };
        while !thread.is_finished() {
            // A thread in the device cannot be interrupted.
            if began.elapsed() > SHUTDOWN_TIME_MAX {
                tracing::warn!(disk = self.shared.settings.name, "a request hangs in the device");
                return;
            }
            thread::sleep(SHUTDOWN_LOOK);
        }
        if thread.join().is_err() {
            tracing::error!("a thread of the vhost server has panicked");
        }
    }
}

impl Drop for VhostServer {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Shared {
    fn accept_all(&self, listener: &impl AsFd) {
        while self.wait(listener.as_fd(), None).is_some() {
            match accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.serve(UnixStream::from(socket)),
                // The client can leave between the two calls.
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    tracing::warn!("accepting failed: {error}");
                    self.wait(self.stop.as_fd(), Some(EXHAUSTED_REST));
                }
            }
        }
    }

    /// Waits until `socket` is readable or the time is over, and returns true in the first case. Returns `None` if
    /// the server stops.
    fn wait(&self, socket: impl AsFd, time: Option<Duration>) -> Option<bool> {
        let mut polled = [
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
        ];
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        // An interrupted wait only leads to the next one.
        let _ = poll(&mut polled, time.as_ref());
        let is_readable = !polled[1].revents().is_empty();
        (!self.is_stopping.load(Ordering::SeqCst)).then_some(is_readable)
    }

    fn serve(&self, socket: UnixStream) {
        let Ok(clone) = socket.try_clone() else { return };
        let connection = Arc::new(Connection::new(clone));
        // Before the device: a disconnection finds each connection that has the device.
        *self.current.lock() = Some(Arc::clone(&connection));
        self.serve_device(socket, connection);
        // After the device: after the end of a connection the volume has no client.
        *self.current.lock() = None;
        self.ended.notify_all();
    }

    fn serve_device(&self, socket: UnixStream, connection: Arc<Connection>) {
        let disk = &self.settings.name;
        let device = match (self.open)() {
            Ok(device) => device,
            Err(reason) => {
                tracing::warn!(disk, "a virtual machine cannot have the volume: {reason}");
                return;
            }
        };
        tracing::debug!(disk, "a virtual machine connected");
        let (write_back, theirs) = (self.settings.write_back, Arc::clone(&device));
        let session = Session::new(theirs, disk, disk, write_back, connection);
        match self.messages(socket, session, &*device) {
            Ok(()) | Err(Error::Disconnected | Error::SocketBroken(_)) => {
                tracing::debug!(disk, "the virtual machine disconnected");
            }
            Err(error) => tracing::warn!(disk, "a virtual machine was disconnected: {error}"),
        }
    }

    /// Handles messages until the virtual machine or the server ends the connection.
    fn messages(
        &self,
        socket: UnixStream,
        session: Session,
        device: &dyn BlockDevice,
    ) -> Result<(), Error> {
        let session = Arc::new(StdMutex::new(session));
        let events = socket.try_clone().map_err(Error::SocketError)?;
        let mut handler = BackendReqHandler::from_stream(socket, Arc::clone(&session));
        let mut notices = SizeNotices::default();
        while let Some(is_readable) = self.wait(&events, notices.look_time()) {
            // Also without a message: the wait ends after each look time.
            notices.send(device);
            if !is_readable {
                continue;
            }
            // Before the crate receives the message, and with it the descriptor.
            notices.look_at(events.as_fd(), device);
            handle(&mut handler, &session)?;
        }
        Ok(())
    }
}

/// Handles one message.
fn handle(
    handler: &mut BackendReqHandler<StdMutex<Session>>,
    session: &StdMutex<Session>,
) -> Result<(), Error> {
    let handled = handler.handle_request();
    match session.lock().is_ok_and(|mut session| session.take_refusal()) {
        // The virtual machine has got the refusal, and its other messages stay valid.
        true => Ok(()),
        false => handled,
    }
}

/// Serves one connected socket, accepted elsewhere, on the calling thread until the virtual machine has left. Each
/// queue has a thread for as long.
///
/// # Errors
/// The reason of an end by the server, for the log.
pub fn serve_connection(
    socket: UnixStream,
    device: Arc<dyn BlockDevice>,
    settings: &VhostSettings,
) -> io::Result<()> {
    let connection = Arc::new(Connection::new(socket.try_clone()?));
    let (name, write_back) = (&settings.name, settings.write_back);
    let session = Arc::new(StdMutex::new(Session::new(device, name, name, write_back, connection)));
    let mut handler = BackendReqHandler::from_stream(socket, Arc::clone(&session));
    loop {
        match handle(&mut handler, &session) {
            Ok(()) => {}
            Err(Error::Disconnected | Error::SocketBroken(_)) => return Ok(()),
            Err(error) => return Err(io::Error::other(error.to_string())),
        }
    }
}
