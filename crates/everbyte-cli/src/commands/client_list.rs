//! `everbyte client list`.

use std::process::ExitCode;

use everbyte_control::{ClientStatus, Request, Response};

use super::listing::Listing;
use super::unexpected;
use crate::output::{self, Column};
use crate::size::show_size;

const EXAMPLES: &str = "\
Examples:
  everbyte client list /dev/shm/p
  everbyte client list /dev/shm/p --json | jq '.clients[] | select(.export == \"disk\") | .id'

IDLE is the time since a client's last message. After the loss of a client's machine the server ends
the connection within about a minute.";

/// List the clients of a pool's server.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    listing: Listing,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let clients = match args.listing.ask(Request::ClientList)? {
        Response::Clients(clients) => clients,
        other => return Err(unexpected(&other)),
    };
    args.listing.print("clients", &clients, show)
}

fn show(clients: &[ClientStatus]) {
    let columns = [
        Column::Right("ID"),
        Column::Left("VOLUME"),
        Column::Left("PEER"),
        Column::Left("ADDRESS"),
        Column::Right("AGE"),
        Column::Right("IDLE"),
        Column::Right("REQUESTS"),
        Column::Right("READ"),
        Column::Right("WRITTEN"),
    ];
    let row = |client: &ClientStatus| {
        [
            client.id.to_string(),
            client.export.clone().unwrap_or_else(|| "-".to_owned()),
            client.peer.clone(),
            client.address.clone(),
            seconds(client.age_ms),
            seconds(client.idle_ms),
            client.requests.to_string(),
            show_size(client.read_bytes),
            show_size(client.written_bytes),
        ]
    };
    output::table(columns, &clients.iter().map(row).collect::<Vec<_>>());
}

fn seconds(ms: u64) -> String {
    format!("{} s", ms / 1000)
}
