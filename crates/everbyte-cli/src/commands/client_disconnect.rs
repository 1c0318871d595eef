//! `everbyte client disconnect`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_control::{Request, Response};
use serde::Serialize;

use super::unexpected;
use crate::output;
use crate::session::{Access, ask};

const EXAMPLES: &str = "\
Examples:
  everbyte client disconnect /dev/shm/p 17       the client that 'everbyte client list' calls 17

Answered requests keep their effect. A request without an answer may have been carried out or not. A
client may connect again immediately. To keep clients away from a cache while it is changed, pass --force to
the command that changes it.";

/// Disconnect a client of a pool's server.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// The client's number.
    id: u64,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct DisconnectedClient {
    disconnected: u64,
    /// True if it is still in an unanswered request.
    stuck: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match ask(&args.pool, Access::Read, Request::ClientDisconnect { id: args.id })? {
        Response::Disconnected { id, stuck } if args.json => {
            output::json(&DisconnectedClient { disconnected: id, stuck })?;
        }
        Response::Disconnected { id, stuck: false } => {
            output::line(format!("disconnected client {id}"));
        }
        // The connection is closed, but its request keeps the volume in use until it ends.
        Response::Disconnected { id, stuck: true } => output::line(format!(
            "disconnected client {id}, whose last request has not ended yet: it waits for a \
             backing device"
        )),
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}
