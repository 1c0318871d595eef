//! Advice about errors, in the words of the command line.
//!
//! Errors of the crates below state facts, because they know no commands. This file alone says what
//! a user can type; `main` prints it on a line of its own, `hint: ...`.

use std::error::Error;

use everbyte_control::{Cause, ControlError, Refused};
use everbyte_nbd::BindError;
use everbyte_policy::trace::TraceError;
use everbyte_pool::PoolError;
use everbyte_pool::file::FileError;
use everbyte_server::{Busy, SessionError};

/// Returns what a user can type about `error`, if there is something.
pub(crate) fn advice(error: &anyhow::Error) -> Option<&'static str> {
    error.chain().find_map(of)
}

fn of(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(error) = error.downcast_ref::<SessionError>() {
        // It says no more than what is in it, which is not in the chain therefore.
        return match error {
            SessionError::File(error) => of_file(error),
            SessionError::Busy(busy) => Some(of_busy(busy)),
            SessionError::Control(error) => of_control(error),
            SessionError::Refused(refused) => of_refusal(refused),
            _ => None,
        };
    }
    let control = || error.downcast_ref().and_then(of_control);
    let bind = || error.downcast_ref().and_then(of_bind);
    let file = || error.downcast_ref().and_then(of_file);
    let refusal = || error.downcast_ref().and_then(of_refusal);
    let trace = || error.downcast_ref().and_then(of_trace);
    let pool = || error.downcast_ref().and_then(of_pool);
    control().or_else(bind).or_else(file).or_else(refusal).or_else(trace).or_else(pool)
}

fn of_control(error: &ControlError) -> Option<&'static str> {
    match error {
        ControlError::Refused(refused) => of_refusal(refused),
        ControlError::Untrusted { .. } => Some(
            "run this command as the user who serves the pool, or find out who has put the socket \
             there",
        ),
        _ => None,
    }
}

fn of_bind(error: &BindError) -> Option<&'static str> {
    match error {
        BindError::InUse { .. } => Some("stop it, or choose another address"),
        BindError::NotASocket { .. } => Some("remove it, or choose another path"),
        _ => None,
    }
}

fn of_trace(error: &TraceError) -> Option<&'static str> {
    match error {
        TraceError::UnknownFormat { .. } => Some(
            "--format FORMAT, or --columns time_s,op,offset,len with the columns that there are",
        ),
        TraceError::NoOperations { .. } => Some("--assume-reads takes every request as a read"),
        _ => None,
    }
}

fn of_file(error: &FileError) -> Option<&'static str> {
    match error {
        FileError::NotFound { .. } => Some("'everbyte pool create' makes one"),
        FileError::Exists { .. } => {
            Some("choose another path, or pass --force to destroy what is there")
        }
        FileError::NoSize { .. } => Some("pass --size"),
        FileError::Lent { .. } => Some("end them first"),
        FileError::NotBlank { .. } => Some("pass --force to destroy what it holds"),
        FileError::Pool { source, .. } => of_pool(source),
        _ => None,
    }
}

fn of_pool(error: &PoolError) -> Option<&'static str> {
    let is_it = matches!(error, PoolError::NoSuchVolume { .. });
    is_it.then(|| of_cause(Cause::NoSuchVolume)).flatten()
}

fn of_busy(busy: &Busy) -> &'static str {
    if busy.is_served() {
        "this needs the pool alone: end the server first. Commands that do not, such as 'everbyte volume', \
         reach the server by themselves"
    } else {
        "try again, or end it"
    }
}

fn of_refusal(refused: &Refused) -> Option<&'static str> {
    refused.cause.and_then(of_cause)
}

fn of_cause(cause: Cause) -> Option<&'static str> {
    Some(match cause {
        Cause::NoSuchVolume => "'everbyte volume list' shows those there are",
        Cause::NoSuchClient => "'everbyte client list' shows those there are",
        Cause::HasClients => "disconnect them first, or pass --force to disconnect them",
        Cause::DeletedUnderClients => "disconnect them, or pass --force to delete it under them",
        Cause::ServedReadOnly => {
            "end the server and serve the pool without --read-only, or try again when nobody serves it"
        }
        Cause::OtherBacking => {
            "give the cache its own backing device again; if that has moved, attach it by \
            'everbyte volume attach'"
        }
        Cause::BackingGrown => {
            "'everbyte volume resize' with --follow-backing makes the cache as large"
        }
        Cause::BackingShrunk => {
            "a cache cannot shrink with its backing device: bring that back to its old size, and \
             detach the cache before you make it smaller"
        }
        Cause::CacheReadOnly => "see 'everbyte pool check' for why, and mend the pool",
        Cause::CacheSize => {
            "make that larger and pass --follow-backing instead of --size; --scm and --dram change \
            how much the cache can hold"
        }
        Cause::CacheDirty => {
            "'everbyte volume detach' writes them there and then deletes it, --force throws them away"
        }
        Cause::CacheUnread => {
            "'everbyte pool check' says what is damaged; --force deletes it with whatever it has"
        }
        Cause::UntrustedPool => {
            "'chown' and 'chmod' the pool so that one user can change it, or pass --trust-pool to the command \
            that opens it ('everbyte serve', if a server has it) if you trust all who can"
        }
        Cause::NoSuchFile => "'everbyte fs ls' shows the files there are",
        Cause::FilesFull => {
            "remove files, or make room: 'everbyte volume list' and 'everbyte pool info' show how much \
            there is"
        }
        _ => return None,
    })
}
