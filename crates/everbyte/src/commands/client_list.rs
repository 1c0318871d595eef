//! `everbyte client list`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_control::{ClientStatus, Request, Response};
use everbyte_server::{Need, ask};
use serde::Serialize;

use super::unexpected;
use crate::output;
use crate::size::show_size;

const EXAMPLES: &str = "\
Examples:
  everbyte client list /dev/shm/p
  everbyte client list /dev/shm/p --json | jq '.clients[] | select(.export == \"disk\") | .id'

IDLE is how long ago a client was last heard of: one whose machine is gone without a goodbye is idle
until its connection is given up, about a minute later.";

/// List the clients that are connected to a pool's server.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Print the list as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listed {
    clients: Vec<ClientStatus>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match ask(&args.pool, Need::Look, Request::ClientList)? {
        Response::Clients(clients) if args.json => output::json(&Listed { clients })?,
        Response::Clients(clients) => show(&clients),
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}

fn show(clients: &[ClientStatus]) {
    let heading = ["ID", "VOLUME", "PEER", "ADDRESS", "AGE", "IDLE", "REQUESTS", "READ", "WRITTEN"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for client in clients {
        rows.push(vec![
            client.id.to_string(),
            client.export.clone().unwrap_or_else(|| "-".to_owned()),
            client.peer.clone(),
            client.address.clone(),
            seconds(client.age_ms),
            seconds(client.idle_ms),
            client.requests.to_string(),
            show_size(client.read_bytes),
            show_size(client.written_bytes),
        ]);
    }
    output::table(&rows, &[0, 4, 5, 6, 7, 8]);
}

fn seconds(ms: u64) -> String {
    format!("{} s", ms / 1000)
}
