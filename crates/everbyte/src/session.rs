//! Where a command goes: to the pool itself, or to the server that has it.
//!
//! Invariant: a command that only looks leaves an unserved pool's file untouched; one that changes
//! the pool leaves it cleanly shut down, whether the command itself succeeds or not.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use everbyte_block::kinds;
use everbyte_control::{
    ControlClient, ControlError, Handler, Request, Response, ServingStatus, socket_path,
};
use everbyte_media::MediaOptions;
use everbyte_pool::OpenOptions;
use everbyte_pool::file::{FileError, InUse, Sharing, inspect, open_locked};

use crate::registry::Registry;

/// How long to wait for a pool that another command, or a server that is starting, has.
const BUSY_TIME_MAX: Duration = Duration::from_secs(5);
const BUSY_REST: Duration = Duration::from_millis(25);
/// How long a server may take to say who it is.
const ASK_TIME_MAX: Duration = Duration::from_secs(2);

/// What a command does to a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// It looks.
    Look,
    /// It changes something.
    Change,
}

/// A pool within reach.
pub(crate) enum Session {
    /// By its server.
    Served(ControlClient),
    /// Opened by this process.
    Local(Box<Registry>),
}

impl Session {
    /// Reaches the pool at `path`, for looking only.
    ///
    /// # Errors
    /// The pool cannot be opened or reached.
    pub(crate) fn look(path: &Path) -> anyhow::Result<Self> {
        open(path, Need::Look)
    }

    /// Reaches the pool at `path`, for changing it. To be ended with [`Session::finish`].
    ///
    /// # Errors
    /// The pool cannot be opened or reached.
    pub(crate) fn change(path: &Path) -> anyhow::Result<Self> {
        open(path, Need::Change)
    }

    /// Ends a session whose outcome is `done`.
    ///
    /// # Errors
    /// That of `done`, or the pool could not be closed cleanly.
    pub(crate) fn finish<T>(self, done: anyhow::Result<T>) -> anyhow::Result<T> {
        let closed = match self {
            Self::Served(_) => Ok(()),
            Self::Local(registry) => {
                registry.close().context("the pool could not be closed cleanly")
            }
        };
        let done = done?;
        closed.map(|()| done)
    }

    /// Carries out one request.
    ///
    /// # Errors
    /// The request is refused, or the server gone.
    pub(crate) fn ask(&mut self, request: Request) -> anyhow::Result<Response> {
        match self {
            Self::Served(client) => Ok(client.call(request)?),
            Self::Local(registry) => Ok(registry.handle(request)?),
        }
    }
}

/// Carries out `request` on the pool at `path`, by its server if it has one.
///
/// # Errors
/// The pool cannot be opened or reached, or the request is refused.
pub(crate) fn ask(path: &Path, need: Need, request: Request) -> anyhow::Result<Response> {
    let mut session = open(path, need)?;
    let answer = session.ask(request);
    session.finish(answer)
}

fn open(path: &Path, need: Need) -> anyhow::Result<Session> {
    let deadline = Instant::now() + BUSY_TIME_MAX;
    loop {
        let busy = match open_local(path, need) {
            Ok(registry) => return Ok(Session::Local(Box::new(registry))),
            Err(FileError::InUse(holder)) => holder,
            Err(error) => return Err(error.into()),
        };
        // It may be a server, or one that is still recovering, or a command that is soon done.
        match ControlClient::connect(path) {
            Ok(client) => return Ok(Session::Served(client)),
            Err(error @ ControlError::Untrusted { .. }) => return Err(error.into()),
            Err(_) if Instant::now() >= deadline => return Err(Busy::found(busy).into()),
            Err(_) => {}
        }
        std::thread::sleep(BUSY_REST);
    }
}

fn open_local(path: &Path, need: Need) -> Result<Registry, FileError> {
    let media = MediaOptions::new();
    match need {
        Need::Look => {
            let found = inspect(path, Sharing::Shared, media, kinds())?;
            Ok(Registry::new(found.pool, path, found.medium, None, true))
        }
        Need::Change => {
            let pool = open_locked(path, &media, kinds(), &OpenOptions::default())?;
            let medium = pool.medium().describe();
            Ok(Registry::new(pool, path, medium, None, false))
        }
    }
}

/// Opens a pool by `open`, again and again for a while if another command has it. A pool that is
/// served is not waited for.
///
/// # Errors
/// `open`'s last.
pub(crate) fn wait_for<T>(mut open: impl FnMut() -> Result<T, FileError>) -> Result<T, FileError> {
    let deadline = Instant::now() + BUSY_TIME_MAX;
    loop {
        match open() {
            Err(FileError::InUse(holder))
                if serving(&holder.path).is_none() && Instant::now() < deadline =>
            {
                std::thread::sleep(BUSY_REST);
            }
            other => return other,
        }
    }
}

/// What the server of the pool at `path` says of itself, if there is one and it answers.
fn serving(path: &Path) -> Option<ServingStatus> {
    let mut client = ControlClient::connect(path).ok()?;
    client.set_timeout(Some(ASK_TIME_MAX)).ok()?;
    match client.call(Request::Exports).ok()? {
        Response::Serving(serving) => Some(serving),
        _ => None,
    }
}

/// A pool that somebody else has, and what is known of them.
#[derive(Debug)]
struct Busy {
    holder: InUse,
    serving: Option<ServingStatus>,
}

impl Busy {
    fn found(holder: InUse) -> Self {
        let serving = serving(&holder.path);
        Self { holder, serving }
    }
}

impl std::error::Error for Busy {}

impl std::fmt::Display for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (path, socket) = (self.holder.path.display(), socket_path(&self.holder.path));
        let Some(serving) = &self.serving else {
            let socket = socket.display();
            let holder = &self.holder;
            return write!(f, "{holder}, which does not answer on {socket}; try again, or end it");
        };
        write!(
            f,
            "{path} is being served by process {} on {}; `everbyte pool` and `everbyte volume` \
             commands reach it through {} by themselves",
            serving.pid,
            serving.addresses.join(", "),
            socket.display()
        )?;
        let uris: Vec<&str> =
            serving.exports.iter().flat_map(|e| &e.uris).map(String::as_str).collect();
        if uris.is_empty() { Ok(()) } else { write!(f, ", clients at {}", uris.join(" ")) }
    }
}

/// `error` for the user: of a pool that somebody has, it says who and how to reach them.
pub(crate) fn explained(error: FileError) -> anyhow::Error {
    match error {
        FileError::InUse(holder) => Busy::found(holder).into(),
        other => other.into(),
    }
}
