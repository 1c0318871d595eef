//! The metrics server: HTTP with one page, and one request per connection.
//!
//! Invariants: a connection has at most [`CONNECTION_TIME_MAX`]. There are at most
//! [`CONNECTIONS_MAX`] connections: a further one ends the oldest. A slow or endless client
//! therefore delays no other client and not the end of the server.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use everbyte_nbd::Address;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;
use rustix::pipe::{PipeFlags, pipe_with};

use super::request::{HEAD_BYTES_MAX, Reply, reply_to};

/// Connections at most.
const CONNECTIONS_MAX: usize = 16;
/// Longest time of a connection.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest time from the acceptance of a connection to the end of its request's head.
const HEAD_TIME_MAX: Duration = Duration::from_secs(3);
/// Longest wait for the peer's end of the connection after the answer.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// Bytes of a peer that are dropped after the answer, at most.
const LINGER_BYTES_MAX: usize = 64 << 10;
/// Pause after a failure to accept, for example without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Media type of the page.
const PAGE_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The address of a metrics server: TCP, on loopback unless a host is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetricsAddress(SocketAddr);

impl MetricsAddress {
    /// The address as the system knows it.
    #[must_use]
    pub fn socket_address(self) -> SocketAddr {
        self.0
    }
}

impl FromStr for MetricsAddress {
    type Err = String;

    /// Reads `HOST:PORT` or `PORT`, with or without `tcp:` before. An IPv6 host stands in brackets.
    fn from_str(text: &str) -> Result<Self, String> {
        let place = text.strip_prefix("tcp:").unwrap_or(text);
        match format!("tcp:{place}").parse() {
            Ok(Address::Tcp(address)) => Ok(Self(address)),
            _ => Err(format!("{text:?} is not a TCP address: use HOST:PORT, or PORT on loopback")),
        }
    }
}

/// A metrics server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// The system refused.
    #[error("cannot serve metrics on {address}: {source}")]
    Io {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A descriptor is not a listening TCP socket.
    #[error("the descriptor for metrics is not a listening TCP socket: {source}")]
    NotAListener {
        /// The system's error.
        source: io::Error,
    },
}

/// The source of the page. `None` means that the pool is being closed.
type PageSource = dyn Fn() -> Option<String> + Send + Sync;

/// A running metrics server. A drop ends it without a wait for its clients.
pub struct MetricsServer {
    address: SocketAddr,
    /// Its drop ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for MetricsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl MetricsServer {
    /// Listens at `address` and serves the page from `source`.
    ///
    /// # Errors
    /// `Io`.
    pub fn bind(
        address: MetricsAddress,
        source: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self, MetricsError> {
        let address = address.socket_address();
        let failed = |source| MetricsError::Io { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        Self::start(listener, Arc::new(source)).map_err(failed)
    }

    /// Serves the page from `source` on a listening TCP socket of another program.
    ///
    /// # Errors
    /// `NotAListener`.
    pub fn adopt(
        socket: OwnedFd,
        source: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self, MetricsError> {
        let failed = |source| MetricsError::NotAListener { source };
        if !sockopt::socket_acceptconn(&socket).map_err(|error| failed(error.into()))? {
            return Err(failed(io::Error::other("it does not listen")));
        }
        Self::start(TcpListener::from(socket), Arc::new(source)).map_err(failed)
    }

    fn start(listener: TcpListener, source: Arc<PageSource>) -> io::Result<Self> {
        // The client can leave between `poll` and `accept`.
        listener.set_nonblocking(true)?;
        // Fails for a socket of another family.
        let address = listener.local_addr()?;
        let (ended, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let acceptor = Acceptor { listener, ended, source, connections: Arc::default() };
        let run = move || acceptor.run();
        let thread = Builder::new().name("metrics".to_owned()).spawn(run)?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Its address, with the port chosen by the system if none was given.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the metrics server has panicked");
        }
    }
}

/// Open connections, the oldest first.
type Connections = Mutex<VecDeque<Arc<TcpStream>>>;

struct Acceptor {
    listener: TcpListener,
    /// Ready once the server is to end.
    ended: OwnedFd,
    source: Arc<PageSource>,
    connections: Arc<Connections>,
}

impl Acceptor {
    fn run(&self) {
        while self.wait() {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Err(error) = self.serve(stream) {
                        tracing::warn!(%error, "cannot serve a client of the metrics");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Without a pause, a lack of descriptors would keep a processor busy.
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
        }
        // Their threads then end soon.
        for stream in self.connections.lock().iter() {
            let _already_closed = stream.shutdown(Shutdown::Both);
        }
    }

    /// Waits for a client. Returns false at the end of the server.
    fn wait(&self) -> bool {
        let ended = PollFd::new(&self.ended, PollFlags::IN);
        let mut ready = [PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN), ended];
        // An interrupted wait ends without an event.
        let _interrupted = poll(&mut ready, None);
        ready[1].revents().is_empty()
    }

    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let deadline = Instant::now() + CONNECTION_TIME_MAX;
        stream.set_nonblocking(false)?;
        let stream = Arc::new(stream);
        {
            let mut connections = self.connections.lock();
            // The oldest one has had the most time. A scrape takes far less.
            if connections.len() >= CONNECTIONS_MAX
                && let Some(oldest) = connections.pop_front()
            {
                let _already_closed = oldest.shutdown(Shutdown::Both);
            }
            connections.push_back(Arc::clone(&stream));
        }
        let entry = ConnectionEntry {
            stream: Arc::clone(&stream),
            connections: Arc::clone(&self.connections),
        };
        let source = Arc::clone(&self.source);
        let run = move || {
            let _entry = entry;
            // A peer that leaves early is its own affair.
            if let Err(error) = answer(&stream, &*source, deadline) {
                tracing::debug!(%error, "a client of the metrics has failed");
            }
        };
        Builder::new().name("metrics-client".to_owned()).spawn(run).map(drop)
    }
}

/// The place of a connection in the list. A drop removes it.
struct ConnectionEntry {
    stream: Arc<TcpStream>,
    connections: Arc<Connections>,
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        self.connections.lock().retain(|other| !Arc::ptr_eq(other, &self.stream));
    }
}

/// The time left until `deadline`.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn answer(stream: &TcpStream, source: &PageSource, deadline: Instant) -> io::Result<()> {
    let head_deadline = Instant::now() + HEAD_TIME_MAX;
    let (mut received, mut len) = ([0; HEAD_BYTES_MAX], 0);
    let reply = loop {
        match reply_to(&received[..len]) {
            Reply::Incomplete => {}
            reply => break reply,
        }
        // Bounds the whole head: a client may send its bytes one by one.
        stream.set_read_timeout(Some(left(head_deadline)?))?;
        match (&*stream).read(&mut received[len..])? {
            0 => return Ok(()),
            more => len += more,
        }
    };
    let page = match reply {
        Reply::Page { .. } => source(),
        _ => None,
    };
    let is_head = reply == Reply::Page { is_head: true };
    let (status, kind, body) = match (reply, page) {
        (Reply::Refused(status, text), _) => {
            (format!("{status} {text}"), "text/plain", format!("{text}\n"))
        }
        (_, Some(page)) => ("200 OK".to_owned(), PAGE_TYPE, page),
        _ => ("503 Service Unavailable".to_owned(), "text/plain", "closing\n".to_owned()),
    };
    let len = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    );
    send(stream, head.as_bytes(), deadline)?;
    if !is_head {
        send(stream, body.as_bytes(), deadline)?;
    }
    drop(body);
    linger(stream)
}

/// Sends all bytes before `deadline`, however slowly the peer receives them.
fn send(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(bytes)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            sent => bytes = &bytes[sent..],
        }
    }
    Ok(())
}

/// Waits until the peer has the answer: a close with unread bytes would destroy it on its way.
fn linger(mut stream: &TcpStream) -> io::Result<()> {
    let deadline = Instant::now() + LINGER_TIME_MAX;
    stream.shutdown(Shutdown::Write)?;
    let (mut dropped, mut bytes) = (0, [0; 4096]);
    while dropped < LINGER_BYTES_MAX {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut bytes)? {
            0 => break,
            len => dropped += len,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(page: &str) -> MetricsServer {
        let page = page.to_owned();
        MetricsServer::bind("0".parse().unwrap(), move || Some(page.clone())).unwrap()
    }

    fn connect(server: &MetricsServer) -> TcpStream {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// The answer to `request`, with its head.
    fn ask(server: &MetricsServer, request: &str) -> String {
        let mut stream = connect(server);
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn page_and_refusals_are_complete_answers() {
        let server = start("the page\n");
        let page = ask(&server, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        assert!(page.contains("Content-Length: 9\r\n") && page.contains("openmetrics"), "{page}");
        assert!(page.ends_with("\r\n\r\nthe page\n"), "{page}");
        assert!(ask(&server, "HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("close\r\n\r\n"));
        assert!(ask(&server, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        let long = format!("GET /metrics HTTP/1.1\r\n{}", "x: y\r\n".repeat(2000));
        assert!(ask(&server, &long).starts_with("HTTP/1.1 431 "));
    }

    #[test]
    fn slow_clients_neither_block_nor_hold_the_server() {
        let large = "x".repeat(64 << 20);
        let server = start(&large);
        let mut held = Vec::new();
        for number in 0..3 * CONNECTIONS_MAX {
            let mut stream = connect(&server);
            // Some never end their head, and some never receive their page.
            let request: &[u8] = match number % 2 {
                0 => b"GET /metrics HTTP/1.1\r\nx: ",
                _ => b"GET /metrics HTTP/1.1\r\n\r\n",
            };
            stream.write_all(request).unwrap();
            held.push(stream);
        }
        assert!(ask(&server, "GET /none HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        drop(server);
    }

    #[test]
    fn closing_pool_is_reported_as_unavailable() {
        let server = MetricsServer::bind("0".parse().unwrap(), || None).unwrap();
        assert!(ask(&server, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 503 "));
    }

    #[test]
    fn addresses_are_loopback_without_host() {
        for (text, address) in [
            ("9500", "127.0.0.1:9500"),
            ("tcp:9500", "127.0.0.1:9500"),
            ("127.0.0.1:9500", "127.0.0.1:9500"),
            ("tcp:[::1]:9500", "[::1]:9500"),
            ("0.0.0.0:1", "0.0.0.0:1"),
        ] {
            let read = text.parse::<MetricsAddress>().unwrap();
            assert_eq!(read.socket_address(), address.parse().unwrap(), "{text}");
        }
        for text in ["", "x", "unix:/run/x", "127.0.0.1:99999", "1.2.3.4"] {
            assert!(text.parse::<MetricsAddress>().is_err(), "{text}");
        }
    }
}
