//! The server's side of the control socket: one thread accepts, one more serves each connection.
//!
//! Invariants: the server holds at most 128 connections. A user other than root holds at most half of
//! them. A line has at most [`LINE_BYTES_MAX`] bytes and takes at most [`LINE_TIME_MAX`]. An idle client
//! keeps its place until a new connection needs it. Bad input ends the connection of its client only.
//! Untrusted users are refused before they get a place.

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use everbyte_path::{Identity, Kind, look_at_link};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType, recvmsg,
};

use crate::credentials::{Peer, Trusted, peer_of};
use crate::files::PIECE_BYTES_MAX;
use crate::message::{Cause, PROTOCOL_VERSION, Request, RequestLine, Response, ResponseLine};
use crate::places::{Place, Places};
use crate::{LINE_BYTES_MAX, ShortPath, socket_path};

/// Longest time a client may take for a line from its first byte on, and for the first byte of all.
const LINE_TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// Longest time a client may take to accept an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// Time between two signs of life to a waiting client.
const PULSE: Duration = Duration::from_secs(2);
const BACKLOG: i32 = 16;
/// Longest time to wait for answers when the server ends.
const LAST_ANSWERS_TIME_MAX: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);
/// Bytes of one receive call.
const CHUNK_BYTES: usize = 16 << 10;
/// Rest after a failed accept, so that a shortage of descriptors does not use a processor.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// The reason for a refused or failed request.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct RequestError {
    /// The reason in words: facts without advice.
    pub reason: String,
    /// The cause, for programs with advice.
    pub cause: Option<Cause>,
}

impl RequestError {
    /// Makes a refusal without a cause.
    #[must_use]
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), cause: None }
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, cause: Cause) -> Self {
        self.cause = Some(cause);
        self
    }
}

impl From<String> for RequestError {
    fn from(reason: String) -> Self {
        Self::new(reason)
    }
}

/// The answer to a request.
pub type Answer = Result<Response, RequestError>;

/// The answer to a request, with the bytes announced by the response.
pub type AttachedAnswer = Result<(Response, Vec<u8>), RequestError>;

/// Bytes and descriptor of a request.
#[derive(Debug, Default)]
pub struct Attached {
    /// The bytes announced by the request.
    pub bytes: Vec<u8>,
    /// A descriptor, if one was sent.
    pub descriptor: Option<OwnedFd>,
    /// The user of the client, by the kernel; `None` if the request comes from this process.
    pub client: Option<u32>,
}

/// Executes requests. Several threads call it concurrently.
pub trait Handler: Send + Sync + 'static {
    /// Carries out one request.
    ///
    /// # Errors
    /// The reason for a refusal or failure.
    fn handle(&self, request: Request) -> Answer;

    /// Executes one request with its bytes and descriptor. Returns as many bytes as the answer
    /// announces. Handlers without bytes and descriptors need not implement it.
    ///
    /// # Errors
    /// As [`Handler::handle`].
    fn handle_attached(&self, request: Request, _: Attached) -> AttachedAnswer {
        Ok((self.handle(request)?, Vec::new()))
    }
}

/// The running server; stops, and removes its socket, when dropped.
pub struct ControlServer {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
    path: PathBuf,
    /// The socket's file.
    identity: Option<Identity>,
}

struct Shared {
    listener: UnixListener,
    trusted: Trusted,
    handler: Arc<dyn Handler>,
    connections: Arc<Places>,
    activity: Activity,
}

/// The work of all connections.
#[derive(Default)]
struct Activity {
    /// No further request is taken.
    stopping: AtomicBool,
    /// Requests in execution or being answered.
    requests: AtomicUsize,
}

impl Activity {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits a moment for the answers to the requests under way.
    fn wait_for_answers(&self) {
        let deadline = Instant::now() + LAST_ANSWERS_TIME_MAX;
        while self.requests.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
    }
}

/// Counts a request until it is answered, even if its thread panics.
struct UnderWay<'a>(&'a AtomicUsize);

impl<'a> UnderWay<'a> {
    fn new(requests: &'a AtomicUsize) -> Self {
        requests.fetch_add(1, Ordering::AcqRel);
        Self(requests)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ControlServer {
    /// Listens beside the pool at `pool`. The caller holds the pool's exclusive lock, so an
    /// existing socket is stale and is replaced. Answers `owner`, the owner of the locked file, in
    /// addition to this process's user and root.
    ///
    /// # Errors
    /// The system's; also if the socket's path is something else than a socket, or its name is
    /// too long for one.
    pub fn start(pool: &Path, owner: Option<u32>, handler: Arc<dyn Handler>) -> io::Result<Self> {
        let path = socket_path(pool);
        let trusted = Trusted::for_owner(owner);
        let listener = listen(&path, trusted)?;
        // Noted after the bind: only this socket is removed at the end, and no later server's.
        let identity = identity(&path);
        let shared = Arc::new(Shared {
            listener,
            trusted,
            handler,
            connections: Arc::default(),
            activity: Activity::default(),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept_all(&accepting))?;
        Ok(Self { shared, acceptor: Some(acceptor), path, identity })
    }

    /// The path of its socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlServer {
    /// Running requests end by themselves. The server waits only for the answers of short ones.
    fn drop(&mut self) {
        // Before the wake: the acceptor reads the flag after each accept.
        self.shared.activity.stopping.store(true, Ordering::Release);
        // The next server may have replaced the socket already.
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // If it cannot be removed the next server replaces it.
            let _best_effort = remove(&self.path);
        }
        // Wakes the acceptor. Only a socket that does not listen refuses.
        let woken = rustix::net::shutdown(&self.shared.listener, Shutdown::Both);
        if let (Ok(()), Some(acceptor)) = (woken, self.acceptor.take())
            && acceptor.join().is_err()
        {
            tracing::error!("the control thread panicked");
        }
        // After the acceptor's end, so the number of requests cannot grow by new connections.
        self.shared.activity.wait_for_answers();
    }
}

fn identity(path: &Path) -> Option<Identity> {
    look_at_link(path).ok().map(|found| found.identity())
}

/// Removes the socket found at `path`, and never a file that replaced it.
fn remove(path: &Path) -> io::Result<()> {
    let place = everbyte_path::Place::of(path)?;
    match place.find()? {
        Some(found) if found.kind() == Kind::Socket => {
            place.dir.remove_exact(place.name()?, found.identity()).map(drop)
        }
        _ => Ok(()),
    }
}

/// Another file is at the path of a control socket.
#[derive(Debug, thiserror::Error)]
#[error("{} is a {kind} of user {uid}, not a control socket of this pool", path.display())]
pub struct Occupied {
    /// The place.
    pub path: PathBuf,
    /// The kind of the file there.
    pub kind: Kind,
    /// Its owner.
    pub uid: u32,
}

/// Removes the socket at `path` left by a server of a pool of `owner`. A socket of another user
/// stays.
///
/// # Errors
/// The system's.
pub fn remove_left_socket(path: &Path, owner: Option<u32>) -> io::Result<()> {
    match clear(path, Trusted::for_owner(owner)) {
        Err(error) if error.get_ref().is_some_and(|error| error.is::<Occupied>()) => Ok(()),
        cleared => cleared,
    }
}

/// Removes a socket left by a server of this pool.
///
/// # Errors
/// [`Occupied`] if another file is at the path: it is not removed. The system's.
fn clear(path: &Path, trusted: Trusted) -> io::Result<()> {
    let place = everbyte_path::Place::of(path)?;
    let Some(found) = place.find()? else { return Ok(()) };
    let (kind, uid) = (found.kind(), found.metadata().uid());
    // Another user's socket is not removed: the name can be a trap to have files removed.
    if kind == Kind::Socket && trusted.includes(uid) {
        place.dir.remove_exact(place.name()?, found.identity())?;
        return Ok(());
    }
    let occupied = Occupied { path: path.to_owned(), kind, uid };
    Err(io::Error::new(io::ErrorKind::AlreadyExists, occupied))
}

/// Binds and listens; at no moment can a user other than the owner connect.
fn listen(path: &Path, trusted: Trusted) -> io::Result<UnixListener> {
    // A bind fails at an existing file. The pool's lock proves that the old server has ended.
    clear(path, trusted)?;
    let short = ShortPath::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file made by `bind` gets the socket's mode, less the mask. A change of mode by path could
    // reach another file there.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(short.as_path())?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

fn accept_all(shared: &Arc<Shared>) {
    loop {
        let accepted = shared.listener.accept();
        // A shutdown of the listener makes the accept fail, and so wakes this thread.
        if shared.activity.is_stopping() {
            return;
        }
        match accepted {
            Ok((stream, _)) => start(shared, stream),
            Err(error) => {
                tracing::warn!(%error, "accepting on the control socket failed");
                std::thread::sleep(ACCEPT_REST);
            }
        }
    }
}

fn start(shared: &Arc<Shared>, stream: UnixStream) {
    let peer = match trusted_peer(&shared.trusted, &stream) {
        Ok(peer) => peer,
        Err(refused) => {
            tracing::warn!("a control connection was refused: {refused}");
            // Nothing was sent there before, so this does not wait.
            let _it_has_left = answer(&stream, Err(refused));
            return;
        }
    };
    let place = match Places::take(&shared.connections, &peer, &stream) {
        Ok(Some(place)) => place,
        Ok(None) => {
            tracing::warn!(uid = peer.uid, "a control connection was refused: there are too many");
            return;
        }
        Err(error) => {
            tracing::warn!(%error, "a control connection was refused");
            return;
        }
    };
    let shared = Arc::clone(shared);
    let spawned = std::thread::Builder::new().name("control-peer".into()).spawn(move || {
        let Shared { handler, activity, .. } = &*shared;
        if let Err(error) = serve(&**handler, activity, &stream, Some(&place)) {
            tracing::debug!(%error, "a control connection ended");
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "no thread for a control connection");
    }
}

/// Returns the reason if the peer is not a trusted user.
fn trusted_peer(trusted: &Trusted, stream: &UnixStream) -> Result<Peer, RequestError> {
    let peer = peer_of(stream).map_err(|error| {
        RequestError::new(format!("the user of the client is unknown: {error}"))
    })?;
    trusted.check_peer(&peer).map_err(|what| {
        RequestError::new(format!(
            "{what}: only the server's user, the pool's owner and root may use it"
        ))
    })?;
    Ok(peer)
}

/// Serves one connected stream on the calling thread until its peer has left or gone wrong.
///
/// # Errors
/// The socket's; `TimedOut` if the peer took too long.
pub fn serve_stream(handler: &dyn Handler, stream: &UnixStream) -> io::Result<()> {
    serve(handler, &Activity::default(), stream, None)
}

fn serve(
    handler: &dyn Handler,
    activity: &Activity,
    stream: &UnixStream,
    place: Option<&Place>,
) -> io::Result<()> {
    stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
    let client = Some(peer_of(stream)?.uid);
    let mut input = Input { stream, buffer: Vec::new(), descriptor: None };
    let mut is_known = false;
    while !activity.is_stopping() {
        let line = match input.line(|| is_known && !activity.is_stopping()) {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return answer(stream, Err(RequestError::new(error.to_string())));
            }
            Err(error) => return Err(error),
        };
        let request = match parse(&line) {
            Ok(request) => request,
            Err(refused) => return answer(stream, Err(refused)),
        };
        is_known = true;
        // Counted before the bytes arrive, so a stopping server waits for a request that it has
        // begun to take.
        let _under_way = UnderWay::new(&activity.requests);
        // A place with a running request is not replaced: its client waits for the answer.
        let _at_work = place.map(Place::work);
        let len = request.attached_bytes();
        if len > PIECE_BYTES_MAX {
            let what = format!("{len} bytes are more than {PIECE_BYTES_MAX} in one message");
            return answer(stream, Err(RequestError::new(what)));
        }
        // A client that leaves within its bytes has its request not executed.
        let Some(bytes) = input.bytes(len)? else { return Ok(()) };
        // The descriptor goes with its request, so a later one cannot use it.
        let attached = Attached { bytes, descriptor: input.descriptor.take(), client };
        answer(stream, handle(handler, stream, request, attached))?;
    }
    Ok(())
}

/// Executes a request, and sends the client signs of life in the time between.
fn handle(
    handler: &dyn Handler,
    stream: &UnixStream,
    request: Request,
    attached: Attached,
) -> AttachedAnswer {
    std::thread::scope(|scope| {
        // Dropped when the request is done, even if by a panic.
        let (_at_work, done) = mpsc::channel::<()>();
        let pulse = move || {
            let mut stream = stream;
            while done.recv_timeout(PULSE) == Err(RecvTimeoutError::Timeout) {
                if stream.write_all(b" ").is_err() {
                    // The client has disconnected; the request is carried out all the same.
                    return;
                }
            }
        };
        // Without signs of life a short request still succeeds. A long one looks silent to its
        // client.
        if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, pulse) {
            tracing::debug!(%error, "no thread for signs of life");
        }
        handler.handle_attached(request, attached)
    })
}

fn parse(line: &[u8]) -> Result<Request, RequestError> {
    #[derive(serde::Deserialize)]
    struct Envelope {
        version: u32,
    }
    let wrong = |e: serde_json::Error| RequestError::new(format!("this is no request: {e}"));
    // The version first: a newer client deserves a better answer than "unknown command".
    let Envelope { version } = serde_json::from_slice(line).map_err(wrong)?;
    if version != PROTOCOL_VERSION {
        return Err(RequestError::new(format!(
            "the request has version {version}, the server has version {PROTOCOL_VERSION}: use the everbyte command of the server's version"
        )));
    }
    serde_json::from_slice::<RequestLine>(line).map(|line| line.request).map_err(wrong)
}

fn answer(mut stream: &UnixStream, result: AttachedAnswer) -> io::Result<()> {
    let (line, attached) = match result {
        Ok((response, attached)) => {
            // The client would take the following bytes for the next answer, so the connection ends
            // instead.
            if response.attached_bytes() as usize != attached.len() {
                return Err(io::Error::other("the answer has other bytes than it announces"));
            }
            let response = Some(response);
            let line =
                ResponseLine { version: PROTOCOL_VERSION, response, error: None, cause: None };
            (line, attached)
        }
        Err(RequestError { reason, cause }) => {
            let error = Some(reason);
            (ResponseLine { version: PROTOCOL_VERSION, response: None, error, cause }, Vec::new())
        }
    };
    let mut bytes = serde_json::to_vec(&line)?;
    bytes.push(b'\n');
    bytes.extend_from_slice(&attached);
    // One write for line and bytes: the writer of signs of life has ended, and nothing comes
    // between.
    stream.write_all(&bytes)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

/// The input from a client.
struct Input<'s> {
    stream: &'s UnixStream,
    /// Bytes after the last line.
    buffer: Vec<u8>,
    /// The last received descriptor, until a request takes it.
    descriptor: Option<OwnedFd>,
}

impl Input<'_> {
    /// The next line without its end; `None` at the end of the stream. Bytes of an unfinished last line
    /// are dropped. Before its first byte the client is waited for as long as `may_rest` says.
    fn line(&mut self, may_rest: impl Fn() -> bool) -> io::Result<Option<Vec<u8>>> {
        let mut deadline = Instant::now() + LINE_TIME_MAX;
        let mut seen = 0;
        loop {
            // Only new bytes are searched: a client that sends single bytes would otherwise cost
            // quadratic time.
            if let Some(end) = self.buffer[seen..].iter().position(|&b| b == b'\n') {
                let rest = self.buffer.split_off(seen + end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Ok(Some(line));
            }
            seen = self.buffer.len();
            if seen > LINE_BYTES_MAX {
                let what = format!("a line has more than {LINE_BYTES_MAX} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            match self.receive(deadline) {
                Ok(0) => return Ok(None),
                Err(error) if !(is_timeout(&error) && seen == 0 && may_rest()) => {
                    return Err(error);
                }
                // The line begins, or is waited for again.
                _ if seen == 0 => deadline = Instant::now() + LINE_TIME_MAX,
                _ => {}
            }
        }
    }

    /// The next `len` bytes; `None` if the stream ends before.
    fn bytes(&mut self, len: u32) -> io::Result<Option<Vec<u8>>> {
        let len = len as usize;
        let deadline = Instant::now() + LINE_TIME_MAX;
        while self.buffer.len() < len {
            if self.receive(deadline)? == 0 {
                return Ok(None);
            }
        }
        let rest = self.buffer.split_off(len);
        Ok(Some(std::mem::replace(&mut self.buffer, rest)))
    }

    /// Adds received bytes, perhaps with a descriptor, to the buffer; 0 at the end of the stream.
    fn receive(&mut self, deadline: Instant) -> io::Result<usize> {
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // The time left, not the whole: a client could stretch a line by single bytes.
            self.stream.set_read_timeout(Some(left))?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut chunk)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received = match recvmsg(self.stream, &mut parts, &mut ancillary, flags) {
                Err(Errno::INTR) => continue,
                received => received?.bytes,
            };
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    // A drop closes the others, so a client cannot fill the server's table of
                    // descriptors.
                    self.descriptor = descriptors.last().or(self.descriptor.take());
                }
            }
            self.buffer.extend_from_slice(&chunk[..received]);
            return Ok(received);
        }
    }
}
