//! The client's side of the control socket.

use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use everbyte_text::escaped;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg,
};

use crate::answers;
use crate::credentials::{Trusted, peer_of};
use crate::files::PIECE_BYTES_MAX;
use crate::message::{
    PROTOCOL_VERSION, Request, RequestLine, Response, ResponseLine, ServingStatus,
};
use crate::server::RequestError;
use crate::{LINE_BYTES_MAX, ShortPath, socket_path};

/// Longest silence of a server. A working server sends a sign of life far more often.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Longest time a server may take to accept a connection or a request.
const ACCEPT_TIME_MAX: Duration = Duration::from_secs(10);

/// Errors of requests to a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No process answers on the socket.
    #[error("cannot reach the pool's server on {}: {source}", path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The listening process belongs to a user without trust for the pool.
    #[error(
        "{} is not the socket of the pool's server: {what}; no request was sent. A server belongs to root, to the pool's owner or to you",
        path.display()
    )]
    Untrusted {
        /// The socket.
        path: PathBuf,
        /// The socket's or the process's user.
        what: String,
    },
    /// The server has said nothing for too long; the request may still be carried out.
    #[error(
        "the pool's server on {} has said nothing for {} s; it may be stopped, and may still carry \
         the request out",
        path.display(),
        after.as_secs()
    )]
    Silent {
        /// The socket.
        path: PathBuf,
        /// Time of the wait.
        after: Duration,
    },
    /// The server has shown signs of life for too long without an answer; the request may still be carried out.
    #[error(
        "the pool's server on {} has not answered within {} s, and may still carry the request out",
        path.display(),
        after.as_secs()
    )]
    Slow {
        /// The socket.
        path: PathBuf,
        /// Time of the wait for the answer.
        after: Duration,
    },
    /// The connection broke before the answer came; the request may have been carried out.
    #[error("the pool's server on {} ended before it answered: {source}", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The answer makes no sense.
    #[error("the answer on {} is unreadable: {what}", path.display())]
    Nonsense {
        /// The socket.
        path: PathBuf,
        /// Its mistake.
        what: String,
    },
    /// The server refused, with the reason.
    #[error(transparent)]
    Refused(#[from] RequestError),
}

/// A connection to the server of a pool.
#[derive(Debug)]
pub struct ControlClient {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    silence_max: Duration,
    /// Longest time of each request, instead of the request's own.
    time_max: Option<Duration>,
}

/// The end of the time for one request.
#[derive(Clone, Copy)]
struct Deadline {
    at: Option<Instant>,
    after: Duration,
}

impl Deadline {
    fn new(after: Option<Duration>) -> Self {
        // A time beyond the clock's range is never reached, so it counts as no limit.
        let at = after.and_then(|after| Instant::now().checked_add(after));
        Self { at, after: after.unwrap_or(Duration::MAX) }
    }

    /// Time left; `None` if it is not bounded.
    ///
    /// # Errors
    /// There is none.
    fn left(self) -> io::Result<Option<Duration>> {
        let left = self.at.map(|at| at.saturating_duration_since(Instant::now()));
        // A socket's timeout of zero would mean no limit.
        if left == Some(Duration::ZERO) { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    fn is_over(self) -> bool {
        self.left().is_err()
    }
}

/// Connects to the socket at `path`. Its server must accept within a time.
fn connect(path: &Path) -> io::Result<UnixStream> {
    // Lives until the connection exists: the path may go through its descriptor.
    let short = ShortPath::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Bounds connecting as well, which waits while the backlog is full.
    set_socket_timeout(&socket, Timeout::Send, Some(ACCEPT_TIME_MAX))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(short.as_path())?)?;
    Ok(UnixStream::from(socket))
}

impl ControlClient {
    /// Connects to the server of the pool at `pool`.
    ///
    /// # Errors
    /// `Unreachable`; `Untrusted`, if the socket or its process belongs to a user other than root,
    /// the pool's owner and the caller.
    pub fn connect(pool: &Path) -> Result<Self, ControlError> {
        Self::connect_at(pool, socket_path(pool))
    }

    /// Connects to the server of the pool at `pool` with the socket at `path`: for threads that
    /// must not call the C library's allocator, which the search for the socket uses.
    ///
    /// # Errors
    /// As [`ControlClient::connect`].
    pub fn connect_at(pool: &Path, path: PathBuf) -> Result<Self, ControlError> {
        let unreachable = |source| ControlError::Unreachable { path: path.clone(), source };
        let untrusted = |what| ControlError::Untrusted { path: path.clone(), what };
        let trusted = Trusted::for_pool(pool).map_err(unreachable)?;
        // Before the connection: another user's socket could accept and then keep the client
        // waiting.
        trusted.check_owner(&path).map_err(unreachable)?.map_err(untrusted)?;
        let stream = connect(&path).map_err(unreachable)?;
        // The file's owner proves nothing: another file can replace it before the connection. The
        // kernel's credentials are of the connected process.
        let peer = peer_of(&stream).map_err(unreachable)?;
        trusted.check_peer(&peer).map_err(untrusted)?;
        let mut client = Self::over(stream, path);
        // Only for real servers: streams of tests and of the same process have no signs of life.
        client.set_timeout(Some(SILENCE_MAX))?;
        Ok(client)
    }

    /// Uses a stream with a connected server; `path` names it in errors. There is no time limit
    /// unless [`ControlClient::set_timeout`] sets one.
    #[must_use]
    pub fn over(stream: UnixStream, path: PathBuf) -> Self {
        Self { path, stream: BufReader::new(stream), silence_max: Duration::MAX, time_max: None }
    }

    /// Sets the longest silence of the server during a request: 30 s after
    /// [`ControlClient::connect`]; `None` has no limit. An answer may take longer, because a
    /// working server is not silent.
    ///
    /// # Errors
    /// `Unreachable` if the system refuses.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), ControlError> {
        self.silence_max = timeout.unwrap_or(Duration::MAX);
        self.stream
            .get_ref()
            .set_read_timeout(timeout)
            .map_err(|source| ControlError::Unreachable { path: self.path.clone(), source })
    }

    /// Bounds the time from each request to the end of its answer. By default the bound depends on the request:
    /// a minute for looks, a day for changes of a whole pool, none for waiting for the end of a mount.
    pub fn set_time_max(&mut self, time_max: Option<Duration>) {
        self.time_max = time_max;
    }

    /// The user of the process that listened at the time of the connection.
    ///
    /// # Errors
    /// The system's.
    pub fn server_uid(&self) -> io::Result<u32> {
        Ok(peer_of(self.stream.get_ref())?.uid)
    }

    /// Names a user with write access to the pool's bytes, other than root and the user of this
    /// process: the user of the server, or a user with access to the file or device. `None` if no
    /// other user has access.
    ///
    /// # Errors
    /// As [`ControlClient::call`].
    pub fn distrust(&mut self) -> Result<Option<String>, ControlError> {
        // The effective user decides about access, also in a set-user-id program.
        let own = rustix::process::geteuid().as_raw();
        let server = self.server_uid().map_err(|source| self.broken(source))?;
        // A server that lies about the writers is such a user itself, so its user is checked first.
        if server != 0 && server != own {
            return Ok(Some(format!("user {server} serves the pool")));
        }
        match self.call(Request::Exports)? {
            Response::Serving(ServingStatus { writers: Some(writers), .. }) => {
                Ok(writers.reason(own).map(str::to_owned))
            }
            // An older server does not know the field. Unknown writers are not trusted.
            Response::Serving(_) => {
                Ok(Some("the server does not tell who can change the pool".into()))
            }
            other => Err(self.nonsense(format!("unexpected answer of a server: {other:?}"))),
        }
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// `Refused` if the server refuses or fails; `Silent`, `Broken` and `Nonsense`, after which the
    /// connection is unusable.
    pub fn call(&mut self, request: Request) -> Result<Response, ControlError> {
        self.call_attached(request, &[], None).map(|(response, _)| response)
    }

    /// Sends a request with its bytes or its descriptor, and waits for the answer with its bytes.
    ///
    /// # Errors
    /// As [`ControlClient::call`].
    pub fn call_attached(
        &mut self,
        request: Request,
        bytes: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(Response, Vec<u8>), ControlError> {
        let message = RequestLine { version: PROTOCOL_VERSION, request };
        let mut line = serde_json::to_vec(&message).map_err(|e| self.nonsense(e.to_string()))?;
        // The server would end the connection at a longer line. A refusal here keeps the connection
        // usable.
        if line.len() > LINE_BYTES_MAX {
            return Err(RequestError::new(format!(
                "the request has more than {LINE_BYTES_MAX} bytes"
            ))
            .into());
        }
        line.push(b'\n');
        let request = &message.request;
        // One deadline for sending, waiting and receiving, so a server cannot stretch the time by
        // parts.
        let deadline = Deadline::new(self.time_max.or_else(|| answers::time_max(request)));
        // A server that refuses the caller answers before the request, and hangs up.
        let hung_up = match self.send(&line, bytes, descriptor, deadline) {
            Ok(()) => None,
            Err(source) if is_hung_up(&source) => Some(source),
            Err(source) => return Err(self.failed(source, deadline)),
        };
        let answer = self.receive_line(answers::bytes_max(request), deadline);
        // Without an answer the first error counts: the failed read only follows from the hang-up.
        let answer = answer.map_err(|source| self.failed(hung_up.unwrap_or(source), deadline))?;
        let answer: ResponseLine =
            serde_json::from_slice(&answer).map_err(|e| self.nonsense(e.to_string()))?;
        match (answer.response, answer.error) {
            (_, Some(reason)) => {
                // Written by a server, and on its way to a terminal or a log.
                let reason = escaped(&answers::shortened(reason)).into_owned();
                Err(RequestError { reason, cause: answer.cause }.into())
            }
            (Some(response), None) => {
                answers::check(request, &response).map_err(|what| self.nonsense(what))?;
                // Checked before the allocation, because the number comes from the server.
                let len = response.attached_bytes();
                if len > PIECE_BYTES_MAX {
                    return Err(self.nonsense(format!("{len} bytes are too many for one message")));
                }
                let attached = self.receive_bytes(len as usize, deadline);
                let attached = attached.map_err(|source| self.failed(source, deadline))?;
                Ok((response, attached))
            }
            (None, None) => {
                let version = answer.version;
                Err(self.nonsense(format!("it is empty; the server speaks version {version}")))
            }
        }
    }

    fn failed(&self, source: io::Error, deadline: Deadline) -> ControlError {
        match self.broken(source) {
            // Both limits end in the same error of the socket. An expired deadline means that signs
            // of life came.
            ControlError::Silent { path, .. } if deadline.is_over() => {
                ControlError::Slow { path, after: deadline.after }
            }
            error => error,
        }
    }

    pub(crate) fn nonsense(&self, what: String) -> ControlError {
        let what = escaped(&what).into_owned();
        ControlError::Nonsense { path: self.path.clone(), what }
    }

    pub(crate) fn broken(&self, source: io::Error) -> ControlError {
        let path = self.path.clone();
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ControlError::Silent { path, after: self.silence_max }
            }
            io::ErrorKind::InvalidData => self.nonsense(source.to_string()),
            _ => ControlError::Broken { path, source },
        }
    }

    /// Sends a line, with the descriptor, and then the bytes.
    fn send(
        &self,
        line: &[u8],
        bytes: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
        deadline: Deadline,
    ) -> io::Result<()> {
        let mut stream = self.stream.get_ref();
        let mut sent = 0;
        if let Some(descriptor) = descriptor {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let descriptors = [descriptor];
            if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
                return Err(io::Error::other("there is no room for a descriptor"));
            }
            // The descriptor travels with the first byte of the line, even if the call sends only a
            // part of it.
            sent = sendmsg(stream, &[IoSlice::new(line)], &mut ancillary, SendFlags::NOSIGNAL)?;
        }
        for mut rest in [&line[sent..], bytes] {
            while !rest.is_empty() {
                // Each write has a separate timeout, so a slow reader could otherwise take
                // unbounded time.
                deadline.left()?;
                match stream.write(rest) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(written) => rest = &rest[written..],
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Lets the next read wait no longer than the server may be silent and the request may take.
    fn bound_read(&self, deadline: Deadline) -> io::Result<()> {
        let silence_max = (self.silence_max != Duration::MAX).then_some(self.silence_max);
        // Set before each wait: the time left shrinks, and a sign of life begins a new silence.
        let bounds = [deadline.left()?, silence_max];
        self.stream.get_ref().set_read_timeout(bounds.into_iter().flatten().min())
    }

    /// The next line without signs of life before it.
    fn receive_line(&mut self, bytes_max: u64, deadline: Deadline) -> io::Result<Vec<u8>> {
        let mut answer = Vec::new();
        loop {
            if self.stream.buffer().is_empty() {
                self.bound_read(deadline)?;
            }
            // Not `read_line`: it has no limit of bytes, and would collect the signs of life.
            let received = match self.stream.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                received => received?,
            };
            if received.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let end = received.iter().position(|&byte| byte == b'\n');
            let len = end.map_or(received.len(), |end| end + 1);
            // Signs of life are spaces before the answer. Inside of it a space belongs to a text.
            let blanks = match answer.is_empty() {
                true => received[..len].iter().take_while(|&&byte| byte == b' ').count(),
                false => 0,
            };
            answer.extend_from_slice(&received[blanks..len]);
            self.stream.consume(len);
            if end.is_some() {
                return Ok(answer);
            }
            // After the search for the end, so an answer may exceed the limit by at most one
            // buffer.
            if answer.len() as u64 > bytes_max {
                let what = format!("the answer has more than {bytes_max} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }

    fn receive_bytes(&mut self, len: usize, deadline: Deadline) -> io::Result<Vec<u8>> {
        let (mut bytes, mut done) = (vec![0; len], 0);
        while done < len {
            if self.stream.buffer().is_empty() {
                self.bound_read(deadline)?;
            }
            match self.stream.read(&mut bytes[done..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }
}

/// Returns true if the server has closed the connection. The connection is reset if the server
/// closed it during a wait to send, before it had read all bytes.
fn is_hung_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
