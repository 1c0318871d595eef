//! The route of a command: to the pool or to its server.
//!
//! Invariant: if a command only inspects an unserved pool, the pool's file stays untouched. If a
//! command changes the pool, it leaves the pool cleanly shut down, even if the command fails.

use std::path::Path;
use std::time::{Duration, Instant};

use everbyte::error::{FileError, InUse};
use everbyte::{Pool, PoolBuilder};
use everbyte_control::{
    Attached, ControlClient, ControlError, Handler, Request, RequestError, Response, ServingStatus,
    socket_path,
};
use everbyte_server::{OpenPool, Options};

/// Longest silence of a backing device while a server or a command ends.
const CLOSE_STALL_MAX: Duration = Duration::from_secs(4);

/// Longest time to wait for a pool in use by another command or by a starting server.
const BUSY_TIME_MAX: Duration = Duration::from_secs(5);
const BUSY_REST: Duration = Duration::from_millis(25);
/// Longest time a server may take to identify itself.
const ASK_TIME_MAX: Duration = Duration::from_secs(2);
/// Longest time a server may take to answer the first request of a command for its health.
const PROBE_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest silence of a server after this first answer.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Access to a pool, as needed by a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// It looks.
    Read,
    /// It changes something.
    Write,
    /// The command changes the pool. Files and devices named by the pool are opened with the rights
    /// of the process, even if other users can change the pool.
    WriteTrusted,
}

/// Errors of a command's request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The pool cannot be opened.
    #[error(transparent)]
    File(FileError),
    /// Another process has the pool, and takes no commands.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// The server cannot be reached, or refused the request.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The pool cannot do it.
    #[error(transparent)]
    Refused(#[from] RequestError),
    /// The pool could not be closed cleanly afterwards.
    #[error("the pool could not be closed cleanly: {0}")]
    Close(everbyte::Error),
}

/// A pool within reach.
pub(crate) enum Session {
    /// By its server.
    Served(ControlClient),
    /// Opened by this process.
    Local(Box<OpenPool>),
}

impl Session {
    /// Reaches the pool at `path` as the command needs it. To be ended with [`Session::finish`].
    ///
    /// # Errors
    /// The pool cannot be opened or reached.
    pub(crate) fn open(path: &Path, access: Access) -> Result<Self, SessionError> {
        let deadline = Instant::now() + BUSY_TIME_MAX;
        let (read_only, trust) = (access == Access::Read, access == Access::WriteTrusted);
        let local = |pool| Self::Local(Box::new(OpenPool::new(pool, Options::default())));
        let builder = builder().read_only(read_only).trust_pool(trust);
        loop {
            let busy = match builder.open_file(path) {
                Ok(pool) => return Ok(local(pool)),
                Err(FileError::InUse(holder)) => holder,
                Err(error) => return Err(error.into()),
            };
            // It may be a server, a recovering server, or a short command.
            match ControlClient::connect(path) {
                Ok(client) => return Ok(Self::Served(client)),
                // A foreign socket stays foreign: a retry does not help.
                Err(error @ ControlError::Untrusted { .. }) => return Err(error.into()),
                Err(_) if Instant::now() >= deadline => return Err(Busy::found(busy).into()),
                Err(_) => {}
            }
            std::thread::sleep(BUSY_REST);
        }
    }

    /// Ends a session with the outcome `done`.
    ///
    /// # Errors
    /// The error of `done`, or the failure to close the pool cleanly.
    pub(crate) fn finish<T, E: From<SessionError>>(self, done: Result<T, E>) -> Result<T, E> {
        let closed = match self {
            Self::Served(_) => Ok(()),
            Self::Local(pool) => pool.close().map_err(SessionError::Close),
        };
        // The error of the work takes precedence over the error of the close.
        let done = done?;
        Ok(closed.map(|()| done)?)
    }

    /// Names a user with write access to the pool's bytes, other than root and the user of this
    /// process. `None` without such a user.
    ///
    /// # Errors
    /// The server does not answer.
    pub(crate) fn distrust(&mut self) -> Result<Option<String>, SessionError> {
        match self {
            Self::Served(client) => Ok(client.distrust()?),
            Self::Local(pool) => Ok(pool.distrust()),
        }
    }

    /// Checks that a server answers a small request soon, to avoid the wait for a hanging server.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn probe(&mut self) -> Result<(), SessionError> {
        let Self::Served(client) = self else { return Ok(()) };
        ask_within(client, PROBE_TIME_MAX)?;
        // After a first answer the server may take longer for large requests.
        client.set_timeout(Some(SILENCE_MAX))?;
        client.set_time_max(None);
        Ok(())
    }

    /// Carries out one request with its announced bytes, and returns the bytes announced by the
    /// answer.
    ///
    /// # Errors
    /// The request is refused, or the server has ended.
    pub(crate) fn ask_attached(
        &mut self,
        request: Request,
        bytes: &[u8],
    ) -> Result<(Response, Vec<u8>), SessionError> {
        match self {
            Self::Served(client) => Ok(client.call_attached(request, bytes, None)?),
            Self::Local(pool) => {
                let attached = Attached { bytes: bytes.to_vec(), ..Attached::default() };
                Ok(pool.handle_attached(request, attached)?)
            }
        }
    }

    /// Carries out one request.
    ///
    /// # Errors
    /// The request is refused, or the server has ended.
    pub(crate) fn ask(&mut self, request: Request) -> Result<Response, SessionError> {
        self.ask_attached(request, &[]).map(|(response, _)| response)
    }
}

/// Carries out `request` on the pool at `path`, by its server if it has one.
///
/// # Errors
/// The pool cannot be opened or reached, or the request is refused.
pub(crate) fn ask(path: &Path, access: Access, request: Request) -> Result<Response, SessionError> {
    let mut session = Session::open(path, access)?;
    let answer = session.ask(request);
    session.finish(answer)
}

/// Options of opening a pool for a server or a command: its end waits for a silent backing device for a few seconds only.
pub(crate) fn builder() -> PoolBuilder {
    Pool::builder().close_timeout(CLOSE_STALL_MAX)
}

/// Opens a pool by `open`, and retries for a while if another command has it. Does not wait for a
/// served pool.
///
/// # Errors
/// `open`'s last.
pub(crate) fn wait_for<T>(mut open: impl FnMut() -> Result<T, FileError>) -> Result<T, FileError> {
    let deadline = Instant::now() + BUSY_TIME_MAX;
    loop {
        match open() {
            // A server keeps its pool for long, a command for a moment.
            Err(FileError::InUse(holder))
                if serving(&holder.path).is_none() && Instant::now() < deadline =>
            {
                std::thread::sleep(BUSY_REST);
            }
            other => return other,
        }
    }
}

/// Answer of the pool's server about itself; `None` without a server or without its answer.
fn serving(path: &Path) -> Option<ServingStatus> {
    let mut client = ControlClient::connect(path).ok()?;
    match ask_within(&mut client, ASK_TIME_MAX).ok()? {
        Response::Serving(serving) => Some(serving),
        _ => None,
    }
}

/// Asks a server about itself. Waits at most `time_max`.
fn ask_within(client: &mut ControlClient, time_max: Duration) -> Result<Response, ControlError> {
    // Both: signs of life would stretch a limit of the silence alone.
    client.set_timeout(Some(time_max))?;
    client.set_time_max(Some(time_max));
    client.call(Request::Exports)
}

/// A pool in use by another process, and the known facts about this process.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.text())]
pub(crate) struct Busy {
    holder: InUse,
    serving: Option<Box<ServingStatus>>,
}

impl Busy {
    /// Returns true if it is a server. Commands reach it through its socket.
    #[must_use]
    pub(crate) fn is_served(&self) -> bool {
        self.serving.is_some()
    }

    fn found(holder: InUse) -> Self {
        let serving = serving(&holder.path).map(Box::new);
        Self { holder, serving }
    }

    fn text(&self) -> String {
        let (path, socket) = (self.holder.path.display(), socket_path(&self.holder.path));
        let socket = socket.display();
        let Some(serving) = &self.serving else {
            return format!("{}, which does not answer on {socket}", self.holder);
        };
        let (pid, addresses) = (serving.pid, serving.shown_addresses(" on "));
        let uris: Vec<_> = serving.exports.iter().flat_map(|export| export.uris.clone()).collect();
        let clients = match uris.is_empty() {
            true => String::new(),
            false => format!(", clients at {}", uris.join(" ")),
        };
        format!(
            "{path} is being served by process {pid}{addresses}, and takes commands on {socket}{clients}"
        )
    }
}

impl From<FileError> for SessionError {
    /// Adds to `InUse` the process's addresses, if it serves the pool.
    fn from(error: FileError) -> Self {
        match error {
            FileError::InUse(holder) => Self::Busy(Busy::found(holder)),
            other => Self::File(other),
        }
    }
}
