//! Where a command goes: to the pool itself, or to the server that has it.
//!
//! Invariant: a command that only looks leaves an unserved pool's file untouched; one that changes
//! the pool leaves it cleanly shut down, whether the command itself succeeds or not.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use everbyte_block::owners;
use everbyte_media::MediaOptions;
use everbyte_pool::OpenOptions;
use everbyte_pool::control::{ControlClient, Handler, Request, Response};
use everbyte_pool::file::{FileError, Sharing, inspect, open_locked};

use crate::registry::Registry;

/// How long to wait for a pool that another command, or a server that is starting, has.
const BUSY_TIME_MAX: Duration = Duration::from_secs(5);
const BUSY_REST: Duration = Duration::from_millis(25);

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
            Err(error @ FileError::InUse(_)) => error,
            Err(error) => return Err(error.into()),
        };
        // It may be a server, or one that is still recovering, or a command that is soon done.
        if let Ok(client) = ControlClient::connect(path) {
            return Ok(Session::Served(client));
        }
        if Instant::now() >= deadline {
            return Err(busy.into());
        }
        std::thread::sleep(BUSY_REST);
    }
}

fn open_local(path: &Path, need: Need) -> Result<Registry, FileError> {
    let media = MediaOptions::new();
    match need {
        Need::Look => {
            let found = inspect(path, Sharing::Shared, media, owners())?;
            Ok(Registry::new(found.pool, path, found.medium, None, true))
        }
        Need::Change => {
            let pool = open_locked(path, &media, owners(), &OpenOptions::default())?;
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
                if holder.serving.is_none() && Instant::now() < deadline =>
            {
                std::thread::sleep(BUSY_REST);
            }
            other => return other,
        }
    }
}
