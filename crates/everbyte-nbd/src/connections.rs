//! The connections of a server: the open ones, those in their handshake, and their end.
//!
//! Invariants: a connection is in the table from before its thread starts until that thread is done
//! with its device. Once the table is stopping, it takes no connection. A handshake is pending
//! while it waits for its client, and is not pending while it waits for an export. If the table is
//! full, a new connection replaces a pending handshake: the oldest silent one, or else the oldest
//! one.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use everbyte_device::connection::{self, ConnectionInfo};
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::Shutdown;

use crate::counters::{Activity, ServerStats};
use crate::exports::{Export, ExportInfo, Exports, OpenError};

/// Concurrent handshakes that open the same export. The others wait.
const OPENS_MAX: usize = 4;

/// Limit of threads of replaced handshakes. The limit is the number of possible connections if this
/// is larger.
const LEAVING_MAX: usize = 128;

/// A pending handshake is silent if its client has sent nothing for as long.
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// Time that a shutdown waits for broken connections before it leaves their threads behind.
const BROKEN_TIME_MAX: Duration = Duration::from_secs(2);

/// Result of ending connections: the ended connections, and the connections that are still in their
/// device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Disconnected {
    /// Connections that have ended and hold nothing.
    pub ended: usize,
    /// Connections with a closed socket and a thread in a request of their device. They end with
    /// that request.
    pub stuck: Vec<ConnectionInfo>,
}

/// One connection, as the server sees it.
pub(crate) struct Connection {
    pub(crate) id: u64,
    pub(crate) peer: String,
    pub(crate) socket: OwnedFd,
    pub(crate) activity: Activity,
    /// True if the connection must end without further waits.
    is_cut: AtomicBool,
    /// True while the connection is a handshake that waits for its client. Changes only under the
    /// lock of the table.
    is_pending: AtomicBool,
    /// True if a newer connection has taken the place of this one.
    is_replaced: AtomicBool,
}

impl Connection {
    fn info(&self) -> ConnectionInfo {
        self.activity.info(self.id, &self.peer)
    }

    /// Returns true if the server has given the place of this handshake to a newer connection.
    pub(crate) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    fn shut(&self, how: Shutdown) {
        // The peer may have closed already.
        let _ = rustix::net::shutdown(&self.socket, how);
    }
}

/// The connections of a server, each with its export and the means to end it.
pub(crate) struct Connections {
    /// Written to when the acceptor has to look.
    wake: OwnedFd,
    stopping: AtomicBool,
    state: Mutex<State>,
    /// Signalled when a connection has ended or is to end, when an export was opened, and when the
    /// shutdown has begun.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    open: HashMap<u64, Arc<Connection>>,
    threads: Vec<JoinHandle<()>>,
    /// Handshakes that are opening an export, by its name.
    opening: HashMap<String, usize>,
    /// Sums over connections that have ended.
    totals: ServerStats,
    stopping_since: Option<Instant>,
}

impl State {
    /// The pending handshakes.
    fn pending(&self) -> impl Iterator<Item = &Arc<Connection>> {
        let open = self.open.values().filter(|connection| !connection.is_replaced());
        open.filter(|connection| connection.is_pending.load(Ordering::Relaxed))
    }

    /// Connections that were not replaced.
    fn held(&self) -> usize {
        self.open.values().filter(|connection| !connection.is_replaced()).count()
    }

    /// Ends a pending handshake: the oldest silent one, or else the oldest one. Returns false if
    /// there is none.
    fn replace_one(&self) -> bool {
        let order = |connection: &&Arc<Connection>| {
            // `false` precedes `true`, so silent handshakes come first. Ids grow with time.
            (connection.activity.idle() < SILENCE_MIN, connection.id)
        };
        let Some(replaced) = self.pending().min_by_key(order) else { return false };
        // Both flags precede the shutdown: the thread that it wakes reads its reason from them.
        replaced.is_replaced.store(true, Ordering::Relaxed);
        replaced.is_cut.store(true, Ordering::Relaxed);
        replaced.shut(Shutdown::Both);
        true
    }
}

impl Connections {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (state, changed) = (Mutex::default(), Condvar::new());
        Ok(Self { wake, stopping: AtomicBool::new(false), state, changed })
    }

    /// Returns the descriptor that wakes the acceptor. It is readable when the table has changed.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn wake(&self) {
        // A full counter has not been read yet, so the acceptor will look up anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Set once nothing more is accepted.
    pub(crate) fn stopping(&self) -> &AtomicBool {
        &self.stopping
    }

    /// Adds a connection, as a pending handshake. If the table is full, or has `handshakes_max`
    /// pending handshakes, the new one replaces one of those. Returns `None` if no handshake is
    /// pending and there are `connections_max` connections.
    pub(crate) fn enter(
        &self,
        socket: OwnedFd,
        connections_max: usize,
        handshakes_max: usize,
    ) -> Option<Arc<Connection>> {
        let peer = connection::peer_of(&socket);
        let mut state = self.state.lock();
        // Joined here, so that a server collects no handles of ended threads. Such a join does not
        // wait.
        let (ended, running) = state.threads.drain(..).partition(JoinHandle::is_finished);
        state.threads = running;
        join_all(ended);
        // `stop` holds this lock while it shuts all sockets, so no connection enters unseen.
        if state.stopping_since.is_some() {
            return None;
        }
        state.totals.connections_total += 1;
        let pending = state.pending().count();
        // With a limit of zero no client could ever connect.
        let is_full = state.held() >= connections_max || pending >= handshakes_max.max(1);
        // The threads of replaced handshakes end soon. Until then they count, too.
        let leaving_max = connections_max.max(LEAVING_MAX);
        let has_threads = state.open.len() < connections_max.saturating_add(leaving_max);
        if is_full && !(has_threads && state.replace_one()) {
            state.totals.connections_refused += 1;
            tracing::warn!(peer, "refused: {} connections are open", state.open.len());
            return None;
        }
        let id = connection::next_id();
        let connection = Arc::new(Connection {
            id,
            peer,
            socket,
            activity: Activity::new(),
            is_cut: AtomicBool::new(false),
            is_pending: AtomicBool::new(true),
            is_replaced: AtomicBool::new(false),
        });
        state.open.insert(id, Arc::clone(&connection));
        Some(connection)
    }

    pub(crate) fn add_thread(&self, thread: JoinHandle<()>) {
        self.state.lock().threads.push(thread);
    }

    /// Counts a connection that the server ended because of its peer.
    pub(crate) fn count_dropped(&self) {
        self.state.lock().totals.connections_dropped += 1;
    }

    fn set_pending(&self, connection: &Connection, is_pending: bool) {
        // `replace_one` chooses under this lock: it never cuts a handshake that has just ceased to
        // wait.
        let _unchanged_by_others = self.state.lock();
        connection.is_pending.store(is_pending, Ordering::Relaxed);
    }

    fn leave(&self, connection: &Connection) {
        let mut state = self.state.lock();
        // Under one lock with the sums, so `stats` counts each request once.
        state.open.remove(&connection.id);
        connection.activity.add_to(&mut state.totals);
        self.changed.notify_all();
    }

    pub(crate) fn stats(&self) -> ServerStats {
        let state = self.state.lock();
        let mut stats = ServerStats { connections: state.open.len() as u64, ..state.totals };
        for connection in state.open.values() {
            connection.activity.add_to(&mut stats);
        }
        stats
    }

    /// Returns the open connections, the oldest first.
    pub(crate) fn list(&self) -> Vec<ConnectionInfo> {
        let state = self.state.lock();
        let mut list: Vec<_> = state.open.values().map(|connection| connection.info()).collect();
        list.sort_by_key(|info| info.id);
        list
    }

    /// Shuts the sockets of the `chosen` connections and waits for their threads.
    pub(crate) fn disconnect(
        &self,
        chosen: impl Fn(&Connection) -> bool,
        time_max: Duration,
    ) -> Disconnected {
        let deadline = Instant::now() + time_max;
        let mut state = self.state.lock();
        let mut left: Vec<_> = state.open.values().filter(|c| chosen(c)).cloned().collect();
        let total = left.len();
        for connection in &left {
            tracing::info!(id = connection.id, peer = connection.peer, "disconnecting");
            // `begin_open` checks this flag: no end of a socket wakes a handshake that waits there.
            connection.is_cut.store(true, Ordering::Relaxed);
            connection.shut(Shutdown::Both);
        }
        self.changed.notify_all();
        loop {
            left.retain(|connection| state.open.contains_key(&connection.id));
            if left.is_empty() || self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        // A connection can leave between the last check and the timeout.
        left.retain(|connection| state.open.contains_key(&connection.id));
        let stuck: Vec<_> = left.iter().map(|connection| connection.info()).collect();
        Disconnected { ended: total - stuck.len(), stuck }
    }

    /// Begins the shutdown without waiting. The table takes no further connection, and each
    /// connection ends after the answers to the requests that it has taken.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        // A second call must not move the deadlines, which count from the first one.
        if state.stopping_since.is_some() {
            return;
        }
        state.stopping_since = Some(Instant::now());
        // Set before the sockets are shut: a connection that wakes must refuse later requests.
        self.stopping.store(true, Ordering::Relaxed);
        for connection in state.open.values() {
            // Only the receiving side: each connection still sends the replies to its taken
            // requests.
            connection.shut(Shutdown::Read);
        }
        self.changed.notify_all();
        self.wake();
    }

    /// Waits until all connections have ended. Breaks them when `polite_max` has passed since the
    /// shutdown began, and leaves behind the connections that still do not end.
    pub(crate) fn await_end(&self, polite_max: Duration) {
        let mut state = self.state.lock();
        let since = state.stopping_since.unwrap_or_else(Instant::now);
        self.await_none(&mut state, since + polite_max);
        // This also ends a send to a peer that takes no replies.
        for connection in state.open.values() {
            connection.shut(Shutdown::Both);
        }
        self.await_none(&mut state, since + polite_max + BROKEN_TIME_MAX);
        for connection in state.open.values() {
            let export = connection.activity.export();
            tracing::error!(
                id = connection.id,
                peer = connection.peer,
                export,
                "a connection is stuck in its device; leaving it"
            );
        }
        let is_stuck = !state.open.is_empty();
        let mut threads = std::mem::take(&mut state.threads);
        // `stats` and `list` need the lock, and a join can take a while.
        drop(state);
        if is_stuck {
            // A join would wait for the stuck device. A dropped handle leaves its thread to end by
            // itself.
            threads.retain(JoinHandle::is_finished);
        }
        join_all(threads);
    }

    fn await_none(&self, state: &mut parking_lot::MutexGuard<'_, State>, deadline: Instant) {
        while !state.open.is_empty() {
            if self.changed.wait_until(state, deadline).timed_out() {
                break;
            }
        }
    }

    /// Waits until few enough others are opening this export.
    fn begin_open(
        &self,
        connection: &Connection,
        name: &str,
        deadline: Instant,
    ) -> Result<(), OpenError> {
        let mut state = self.state.lock();
        loop {
            // Checked after each wake-up: a cut handshake must not wait for a device that others
            // open.
            if state.stopping_since.is_some() || connection.is_cut.load(Ordering::Relaxed) {
                return Err(OpenError::ShuttingDown);
            }
            let opening = state.opening.entry(name.to_owned()).or_default();
            if *opening < OPENS_MAX {
                *opening += 1;
                return Ok(());
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                let reason = "others are waiting for it to be opened; try again later".to_owned();
                return Err(OpenError::Unavailable { reason });
            }
        }
    }

    fn end_open(&self, name: &str) {
        let mut state = self.state.lock();
        if let Some(opening) = state.opening.get_mut(name) {
            *opening -= 1;
            // Names come from clients. An entry without openers would stay for each name ever
            // requested.
            if *opening == 0 {
                state.opening.remove(name);
            }
        }
        self.changed.notify_all();
    }
}

fn join_all(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a connection's thread has panicked");
        }
    }
}

/// A connection's place in the table. Dropping it removes the connection, even if its thread
/// panics.
pub(crate) struct Place {
    pub(crate) connections: Arc<Connections>,
    pub(crate) connection: Arc<Connection>,
}

impl Place {
    pub(crate) fn new(connections: Arc<Connections>, connection: Arc<Connection>) -> Self {
        Self { connections, connection }
    }

    /// Notes that the connection waits for its client, or waits no longer.
    pub(crate) fn set_pending(&self, is_pending: bool) {
        self.connections.set_pending(&self.connection, is_pending);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.leave(&self.connection);
    }
}

/// The exports as one handshake sees them: while it waits for one of them, it is not pending, so no
/// newer connection replaces it.
pub(crate) struct RequestGuard<'a> {
    pub(crate) exports: &'a dyn Exports,
    pub(crate) place: &'a Place,
    /// The moment when the handshake must be over.
    pub(crate) deadline: Instant,
}

/// Makes the handshake pending again, even if opening panics.
struct PendingGuard<'a> {
    place: &'a Place,
    opened: Option<&'a str>,
}

impl Drop for PendingGuard<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.opened {
            self.place.connections.end_open(name);
        }
        self.place.connection.activity.note_activity();
        self.place.set_pending(true);
    }
}

impl Exports for RequestGuard<'_> {
    fn list(&self) -> Vec<ExportInfo> {
        self.place.connection.activity.note_activity();
        self.place.set_pending(false);
        let _resume = PendingGuard { place: self.place, opened: None };
        self.exports.list()
    }

    fn open(&self, name: &str) -> Result<Export, OpenError> {
        self.place.connection.activity.note_activity();
        self.place.set_pending(false);
        let mut resume = PendingGuard { place: self.place, opened: None };
        let Place { connections, connection, .. } = self.place;
        connections.begin_open(connection, name, self.deadline)?;
        // Set only now: after a refusal of `begin_open` there is no turn to give back.
        resume.opened = Some(name);
        let export = self.exports.open(name)?;
        // The real name, so `disconnect_export` also finds clients of the default export.
        self.place.connection.activity.opened(&export.name);
        Ok(export)
    }
}
