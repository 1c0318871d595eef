//! A synchronous client of one export, with as many requests in flight as its caller likes.
//!
//! Requests gather until a caller waits for a reply or many bytes have gathered. They are sent in
//! the order of submission. Replies may come in any order.
//!
//! Invariants: `pending` holds exactly the requests with incomplete replies. A reply without a
//! request breaks the connection permanently, and so does a failure of the socket. Sending never
//! stops receiving, so a client and a server with much to send do not block each other.

mod connect;
mod negotiate;
mod replies;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use everbyte_device::{Extent, Fua, Hole};
use everbyte_path::Rights;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown, sockopt};

use crate::address::{Address, AddressError, Place};
use crate::cancel::{Cancel, is_cancelled};
use crate::exports::ExportInfo;
use crate::protocol::{PAYLOAD_MAX, Request, command, command_flag, transmission_flag};
use crate::wire::{Wire, recv_now, wait};

use connect::connect_any;
pub(crate) use connect::resolve;
use negotiate::NegotiatedExport;
use replies::{PendingRequest, ReceiveBuffer, ReplyContent};

/// Bytes of gathered requests that start sending.
const OUTGOING_MAX: usize = 256 << 10;

/// Bytes of replies dropped in one step, and the number of steps before the next check.
const GIVEN_UP_LEN: usize = 64 << 10;
const GIVEN_UP_ROUNDS: usize = 1024;

/// Limits of a client's waits, and the handle to end them.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Time to resolve a host's name, and again for the server to take the connection. Default 10
    /// s.
    pub connect_time_max: Duration,
    /// Time for the handshake. Default 10 s.
    pub handshake_time_max: Duration,
    /// Time for the reply to a request, counted from when it is waited for; the connection breaks
    /// afterwards. `None`, the default, is as long as it takes.
    pub request_time_max: Option<Duration>,
    /// Ends every wait. Default: none.
    pub cancel: Option<Cancel>,
    /// Rights for each connection to a server. Default: the rights of the process.
    pub rights: Rights,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_time_max: Duration::from_secs(10),
            handshake_time_max: Duration::from_secs(10),
            request_time_max: None,
            cancel: None,
            rights: Rights::Own,
        }
    }
}

impl ClientOptions {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    fn handshake<'a>(&'a self, socket: &'a OwnedFd) -> Wire<'a> {
        self.wire(socket, Some(Instant::now() + self.handshake_time_max))
    }

    fn wire<'a>(&'a self, socket: &'a OwnedFd, deadline: Option<Instant>) -> Wire<'a> {
        Wire { socket: socket.as_fd(), deadline, cancel: self.cancel.as_ref() }
    }
}

/// A client's request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The text of an address or URI is wrong.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// No connection to the server.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The server's address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The server refused an option of the handshake.
    #[error("the server refused to {what}: {message}")]
    Refused {
        /// The request.
        what: &'static str,
        /// The server's words, or the number of its error.
        message: String,
    },
    /// The server answered a request with an error. The connection stays usable.
    #[error("the server failed with error {errno}: {message}")]
    Request {
        /// The error's number in the protocol, which is Linux's.
        errno: u32,
        /// The server's words; may be empty.
        message: String,
    },
    /// The connection is of no further use: the socket failed or the server broke the protocol.
    #[error("the connection is broken: {reason}")]
    Broken {
        /// The violation, for people.
        reason: String,
    },
    /// The server came back without an answered write, and refuses to take it again. The write is
    /// kept, and offered again by later requests that need it.
    #[error("the server does not take again what it had answered: error {errno}: {message}")]
    NotTakenAgain {
        /// The error's number in the protocol, which is Linux's.
        errno: u32,
        /// The server's words; may be empty.
        message: String,
    },
    /// [`Cancel::cancel`] ended the wait. The server may have executed the request. The connection
    /// is unusable.
    #[error("cancelled")]
    Cancelled,
    /// The request is longer than the protocol's 32 MiB for payloads; nothing was sent.
    #[error("a request of {len} bytes is too long")]
    TooLong {
        /// Its bytes.
        len: usize,
    },
    /// The export found after reconnecting is another one; nothing was sent to it.
    #[error(
        "the export is another one than before: it had {was}, and now has {is}; serve the old one \
         again"
    )]
    OtherExport {
        /// The property before.
        was: String,
        /// The property now.
        is: String,
    },
    /// No request with this cookie was submitted, or its reply was taken already.
    #[error("no reply is due for cookie {0:?}")]
    UnknownCookie(Cookie),
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        if is_cancelled(&error) {
            return Self::Cancelled;
        }
        Self::Broken { reason: error.to_string() }
    }
}

/// Identifies a submitted request of one client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cookie(u64);

/// The reply to a successful request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The request was carried out.
    Done,
    /// The read bytes.
    Data(Vec<u8>),
    /// The extents from the start of the range on. They may end before the range.
    Extents(Vec<Extent>),
}

/// A connection to one export. The `submit` methods queue a request and return immediately, and
/// `wait` returns its reply. The other methods do both. The server checks ranges.
pub struct Client {
    socket: OwnedFd,
    options: ClientOptions,
    agreed: NegotiatedExport,
    outgoing: Vec<u8>,
    incoming: ReceiveBuffer,
    pending: HashMap<u64, PendingRequest>,
    finished: HashMap<u64, Result<Reply, ClientError>>,
    cookie_next: u64,
    broken: Option<String>,
}

impl Client {
    /// Connects to an export; the empty name is the server's default one.
    ///
    /// # Errors
    /// If the server, the export or a common protocol is missing.
    pub fn connect(address: &Address, export: &str) -> Result<Self, ClientError> {
        Self::connect_with(address, export, &ClientOptions::default())
    }

    /// Connects with time limits of the caller's.
    ///
    /// # Errors
    /// As `connect`, and `Cancelled`.
    pub fn connect_with(
        address: &Address,
        export: &str,
        options: &ClientOptions,
    ) -> Result<Self, ClientError> {
        Self::connect_any(std::slice::from_ref(address), export, options)
    }

    pub(crate) fn connect_any(
        addresses: &[Address],
        export: &str,
        options: &ClientOptions,
    ) -> Result<Self, ClientError> {
        Self::over_with(connect_any(addresses, options)?, export, options)
    }

    /// Opens an export over a stream socket that is connected to a server.
    ///
    /// # Errors
    /// If the export or a common protocol is missing.
    pub fn over(socket: OwnedFd, export: &str) -> Result<Self, ClientError> {
        Self::over_with(socket, export, &ClientOptions::default())
    }

    fn over_with(
        socket: OwnedFd,
        export: &str,
        options: &ClientOptions,
    ) -> Result<Self, ClientError> {
        let agreed = negotiate::go(&options.handshake(&socket), export)?;
        Ok(Self {
            socket,
            options: options.clone(),
            agreed,
            outgoing: Vec::with_capacity(OUTGOING_MAX),
            incoming: ReceiveBuffer::new(),
            pending: HashMap::new(),
            finished: HashMap::new(),
            cookie_next: 1,
            broken: None,
        })
    }

    /// Connects to the export of an NBD URI. If the host has several addresses, the first one that
    /// accepts is used.
    ///
    /// # Errors
    /// As `connect`, and if the URI is wrong.
    pub fn connect_uri(uri: &str) -> Result<Self, ClientError> {
        Self::connect_uri_with(uri, &ClientOptions::default())
    }

    /// Connects to the export of an NBD URI with time limits of the caller's.
    ///
    /// # Errors
    /// As `connect_uri`, and `Cancelled`.
    pub fn connect_uri_with(uri: &str, options: &ClientOptions) -> Result<Self, ClientError> {
        let (place, export) = Place::from_uri(uri)?;
        Self::connect_any(&resolve(&place, options)?, &export, options)
    }

    /// Returns the exports of a server.
    ///
    /// # Errors
    /// If the server is missing or refuses to list.
    pub fn list(address: &Address) -> Result<Vec<ExportInfo>, ClientError> {
        let options = ClientOptions::default();
        let socket = connect_any(std::slice::from_ref(address), &options)?;
        negotiate::list(&options.handshake(&socket))
    }

    /// Returns the size of the export in bytes, as it was when connecting.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.agreed.size_bytes
    }

    /// Returns the smallest legal request and alignment, and the preferred one, in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> (u32, u32) {
        (self.agreed.minimum_bytes, self.agreed.preferred_bytes)
    }

    /// Returns the largest size of a read or a write, in bytes.
    #[must_use]
    pub fn payload_bytes_max(&self) -> u32 {
        self.agreed.payload_bytes_max
    }

    /// Returns true if the server refuses writes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.can(transmission_flag::READ_ONLY)
    }

    /// Returns true if several connections see each other's flushes (`CAN_MULTI_CONN`).
    #[must_use]
    pub fn can_multi_conn(&self) -> bool {
        self.can(transmission_flag::CAN_MULTI_CONN)
    }

    /// Returns true if the server makes writes durable on request.
    #[must_use]
    pub fn can_flush(&self) -> bool {
        self.can(transmission_flag::SEND_FLUSH)
    }

    pub(crate) fn can(&self, flag: u16) -> bool {
        self.agreed.flags & flag != 0
    }

    /// Returns true if the server answers `block_status`.
    #[must_use]
    pub fn can_block_status(&self) -> bool {
        self.agreed.context.is_some()
    }

    /// Queues a read.
    ///
    /// # Errors
    /// `TooLong`, `Broken`.
    pub fn submit_read(&mut self, offset: u64, len: usize) -> Result<Cookie, ClientError> {
        let wire_len = payload_len(len)?;
        let wanted = ReplyContent::Data(vec![0; len]);
        self.submit(command::READ, 0, offset, wire_len, &[], wanted)
    }

    /// Queues a write. `data` is copied.
    ///
    /// # Errors
    /// `TooLong`, `Broken`.
    pub fn submit_write(
        &mut self,
        offset: u64,
        data: &[u8],
        fua: Fua,
    ) -> Result<Cookie, ClientError> {
        let len = payload_len(data.len())?;
        self.submit(command::WRITE, fua_flag(fua), offset, len, data, ReplyContent::Nothing)
    }

    /// Queues a flush. It covers all writes that the server has answered.
    ///
    /// # Errors
    /// `Broken`.
    pub fn submit_flush(&mut self) -> Result<Cookie, ClientError> {
        self.submit(command::FLUSH, 0, 0, 0, &[], ReplyContent::Nothing)
    }

    /// Reads `len` bytes.
    ///
    /// # Errors
    /// The server's, `TooLong`, `Broken`.
    pub fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, ClientError> {
        let cookie = self.submit_read(offset, len)?;
        match self.wait(cookie)? {
            Reply::Data(data) => Ok(data),
            // Replies have the content that their requests expect.
            Reply::Done | Reply::Extents(_) => Ok(Vec::new()),
        }
    }

    /// Writes `data`.
    ///
    /// # Errors
    /// The server's, `TooLong`, `Broken`.
    pub fn write(&mut self, offset: u64, data: &[u8], fua: Fua) -> Result<(), ClientError> {
        let cookie = self.submit_write(offset, data, fua)?;
        self.wait(cookie).map(drop)
    }

    /// Makes all answered writes durable.
    ///
    /// # Errors
    /// The server's, `Broken`.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        let cookie = self.submit_flush()?;
        self.wait(cookie).map(drop)
    }

    /// Discards the bytes of a range.
    ///
    /// # Errors
    /// The server's, `Broken`.
    pub fn trim(&mut self, offset: u64, len: u32, fua: Fua) -> Result<(), ClientError> {
        self.do_one(command::TRIM, fua_flag(fua), offset, len)
    }

    /// Zeroes a range; with `fast`, only if this is faster than writing zeroes.
    ///
    /// # Errors
    /// The server's, `Broken`.
    pub fn write_zeroes(
        &mut self,
        offset: u64,
        len: u32,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), ClientError> {
        let mut flags = fua_flag(fua);
        if hole == Hole::Forbidden {
            flags |= command_flag::NO_HOLE;
        }
        if fast {
            flags |= command_flag::FAST_ZERO;
        }
        self.do_one(command::WRITE_ZEROES, flags, offset, len)
    }

    /// Hints that a range will be read soon.
    ///
    /// # Errors
    /// The server's, `Broken`.
    pub fn cache(&mut self, offset: u64, len: u32) -> Result<(), ClientError> {
        self.do_one(command::CACHE, 0, offset, len)
    }

    /// Returns the extents of a range; with `only_one`, at most the first.
    ///
    /// # Errors
    /// The server's, `Broken`.
    pub fn block_status(
        &mut self,
        offset: u64,
        len: u32,
        only_one: bool,
    ) -> Result<Vec<Extent>, ClientError> {
        let flags = if only_one { command_flag::REQ_ONE } else { 0 };
        let wanted = ReplyContent::Extents(Vec::new());
        let cookie = self.submit(command::BLOCK_STATUS, flags, offset, len, &[], wanted)?;
        match self.wait(cookie)? {
            Reply::Extents(extents) => Ok(extents),
            Reply::Done | Reply::Data(_) => Ok(Vec::new()),
        }
    }

    /// Sends a goodbye. Sends the submitted requests, and drops unclaimed replies.
    ///
    /// # Errors
    /// `Broken`.
    pub fn disconnect(mut self) -> Result<(), ClientError> {
        // All replies are received first: TCP resets a connection that is closed with unread bytes,
        // and the goodbye could be lost.
        let cookies: Vec<_> = self.pending.keys().copied().collect();
        for cookie in cookies {
            // The caller drops the client and does not ask whether it failed.
            let _ = self.wait(Cookie(cookie));
        }
        self.submit(command::DISC, 0, 0, 0, &[], ReplyContent::Nothing)?;
        self.send_outgoing(self.deadline())
    }

    /// Ends a broken connection. Returns its rest if the server has not closed it and may still
    /// execute an unanswered change. Then no newer request may be sent before the rest is over.
    pub(crate) fn abandon(self) -> Option<AbandonedConnection> {
        // Lemma R2 of `docs/proofs.md`: the server may still execute a change. The end of this side
        // makes it close when it is done with all earlier requests.
        if self.pending.values().any(PendingRequest::changes)
            && shutdown(&self.socket, Shutdown::Write).is_ok()
        {
            let abandoned = AbandonedConnection { socket: self.socket };
            return (!abandoned.is_over()).then_some(abandoned);
        }
        drop_unsent(&self.socket);
        None
    }

    fn do_one(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        len: u32,
    ) -> Result<(), ClientError> {
        let cookie = self.submit(command, flags, offset, len, &[], ReplyContent::Nothing)?;
        self.wait(cookie).map(drop)
    }

    fn submit(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        len: u32,
        payload: &[u8],
        wanted: ReplyContent,
    ) -> Result<Cookie, ClientError> {
        self.check_broken()?;
        let cookie = self.cookie_next;
        self.cookie_next += 1;
        Request { flags, command, cookie, offset, len }.encode(&mut self.outgoing);
        self.outgoing.extend_from_slice(payload);
        let changes = matches!(command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        // Known before anything is sent: the reply can arrive while the sending goes on.
        self.pending.insert(cookie, PendingRequest::new(offset, len, wanted, changes));
        if self.outgoing.len() >= OUTGOING_MAX {
            self.send_outgoing(self.deadline())?;
        }
        Ok(Cookie(cookie))
    }

    /// Sends the submitted requests, and waits for the reply to one of them.
    ///
    /// # Errors
    /// The server's, `Broken`, `UnknownCookie`.
    pub fn wait(&mut self, cookie: Cookie) -> Result<Reply, ClientError> {
        let deadline = self.deadline();
        loop {
            // Before the check: a reply received before the connection broke is still valid.
            if let Some(reply) = self.finished.remove(&cookie.0) {
                return reply;
            }
            self.check_broken()?;
            if !self.pending.contains_key(&cookie.0) {
                return Err(ClientError::UnknownCookie(cookie));
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                // However many bytes have arrived, they were not the reply.
                return Err(self.break_off(io::Error::from(io::ErrorKind::TimedOut).into()));
            }
            self.send_outgoing(deadline)?;
            self.receive(deadline)?;
        }
    }

    /// Returns the deadline of a request whose wait begins now.
    fn deadline(&self) -> Option<Instant> {
        self.options.request_time_max.map(|time_max| Instant::now() + time_max)
    }

    fn check_broken(&self) -> Result<(), ClientError> {
        if self.options.is_cancelled() {
            return Err(ClientError::Cancelled);
        }
        match &self.broken {
            Some(reason) => Err(ClientError::Broken { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    fn send_outgoing(&mut self, deadline: Option<Instant>) -> Result<(), ClientError> {
        // Taken out because the sending receives replies; put back for its memory.
        let outgoing = std::mem::take(&mut self.outgoing);
        let sent = self.send_receiving(&outgoing, deadline);
        self.outgoing = outgoing;
        self.outgoing.clear();
        // One long gathering must not keep its memory for the life of the client.
        self.outgoing.shrink_to(2 * OUTGOING_MAX);
        sent
    }

    /// Sends `bytes`, and receives the server's replies while the server takes no bytes.
    fn send_receiving(
        &mut self,
        mut bytes: &[u8],
        deadline: Option<Instant>,
    ) -> Result<(), ClientError> {
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let events = PollFlags::IN | PollFlags::OUT;
                    let cancel = self.options.cancel.as_ref();
                    let ready = wait(&self.socket, events, deadline, cancel)
                        .map_err(|error| self.break_off(error.into()))?;
                    // The server may take nothing before its replies are taken. Both sides would
                    // wait forever.
                    if ready.contains(PollFlags::IN) {
                        self.receive(deadline)?;
                    }
                }
                Err(error) => {
                    return Err(self.break_off(io::Error::from(error).into()));
                }
            }
        }
        Ok(())
    }

    /// Receives one simple reply or chunk.
    fn receive(&mut self, deadline: Option<Instant>) -> Result<(), ClientError> {
        let wire = self.options.wire(&self.socket, deadline);
        let received = replies::receive(&wire, &mut self.incoming, &self.agreed, &mut self.pending);
        match received {
            Ok(Some((cookie, reply))) => {
                self.finished.insert(cookie, reply);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => Err(self.break_off(error)),
        }
    }

    fn break_off(&mut self, error: ClientError) -> ClientError {
        // A message may be half sent or half received, so the connection is unusable.
        if let ClientError::Cancelled = error {
            self.broken = Some(error.to_string());
            return error;
        }
        let reason = error.to_string();
        self.broken = Some(reason.clone());
        ClientError::Broken { reason }
    }
}

/// A connection that is only kept until its end.
pub(crate) struct AbandonedConnection {
    socket: OwnedFd,
}

impl AbandonedConnection {
    /// Returns true once the server has closed the connection, or the connection is dead.
    pub(crate) fn is_over(&self) -> bool {
        let mut replies = vec![0; GIVEN_UP_LEN];
        // A server can send without end, so one check takes a bounded number of bytes.
        for _ in 0..GIVEN_UP_ROUNDS {
            match recv_now(self.socket.as_fd(), &mut replies) {
                // In both cases the server takes no further request from this connection.
                Ok(Some(0)) | Err(_) => {
                    drop_unsent(&self.socket);
                    return true;
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
            }
        }
        false
    }
}

/// With a linger time of zero the kernel drops unsent bytes when the socket is closed. If the
/// option fails, the socket is closed as usual.
fn drop_unsent(socket: &OwnedFd) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

fn fua_flag(fua: Fua) -> u16 {
    match fua {
        Fua::Yes => command_flag::FUA,
        Fua::No => 0,
    }
}

fn payload_len(len: usize) -> Result<u32, ClientError> {
    match u32::try_from(len) {
        Ok(wire_len) if wire_len <= PAYLOAD_MAX => Ok(wire_len),
        _ => Err(ClientError::TooLong { len }),
    }
}
