//! The client's side of the control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::message::{PROTOCOL_VERSION, Request, RequestLine, Response, ResponseLine};
use super::{ShortPath, socket_path};

/// Longest answer that is taken, in bytes: the longest list of volumes or problems is far shorter.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Why a request to a server failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Nobody answers on the socket.
    #[error("cannot reach the pool's server on {}: {source}", path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
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
    #[error("the answer on {} cannot be understood: {what}", path.display())]
    Nonsense {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The server says why not.
    #[error("{0}")]
    Refused(String),
}

/// A connection to the server of a pool.
#[derive(Debug)]
pub struct ControlClient {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl ControlClient {
    /// Connects to the server of the pool at `pool`.
    ///
    /// # Errors
    /// `Unreachable`.
    pub fn connect(pool: &Path) -> Result<Self, ControlError> {
        let path = socket_path(pool);
        let connected =
            ShortPath::new(&path).and_then(|short| UnixStream::connect(short.as_path()));
        match connected {
            Ok(stream) => Ok(Self::over(stream, path)),
            Err(source) => Err(ControlError::Unreachable { path, source }),
        }
    }

    /// Speaks over a stream that is connected to a server already; `path` names it in errors.
    #[must_use]
    pub fn over(stream: UnixStream, path: PathBuf) -> Self {
        Self { path, stream: BufReader::new(stream) }
    }

    /// Bounds how long an answer may take; `None`, the default, waits for as long as the server
    /// works.
    ///
    /// # Errors
    /// `Unreachable` if the system refuses.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), ControlError> {
        self.stream
            .get_ref()
            .set_read_timeout(timeout)
            .map_err(|source| ControlError::Unreachable { path: self.path.clone(), source })
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// `Refused` if the server will not or cannot do it; `Broken` and `Nonsense`, after which
    /// the connection is of no further use.
    pub fn call(&mut self, request: Request) -> Result<Response, ControlError> {
        let nonsense =
            |path: &Path, what: String| ControlError::Nonsense { path: path.into(), what };
        let message = RequestLine { version: PROTOCOL_VERSION, request };
        let mut line =
            serde_json::to_vec(&message).map_err(|e| nonsense(&self.path, e.to_string()))?;
        line.push(b'\n');
        let answer = self
            .exchange(&line)
            .map_err(|source| ControlError::Broken { path: self.path.clone(), source })?;
        let answer: ResponseLine =
            serde_json::from_slice(&answer).map_err(|e| nonsense(&self.path, e.to_string()))?;
        match (answer.response, answer.error) {
            (_, Some(error)) => Err(ControlError::Refused(error)),
            (Some(response), None) => Ok(response),
            (None, None) => {
                let version = answer.version;
                Err(nonsense(
                    &self.path,
                    format!("it is empty; the server speaks version {version}"),
                ))
            }
        }
    }

    fn exchange(&mut self, line: &[u8]) -> io::Result<Vec<u8>> {
        self.stream.get_ref().write_all(line)?;
        let mut answer = Vec::new();
        self.stream.by_ref().take(ANSWER_BYTES_MAX).read_until(b'\n', &mut answer)?;
        if answer.last() != Some(&b'\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(answer)
    }
}
