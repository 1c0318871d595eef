//! `everbyte client`: its subcommands.

use std::process::ExitCode;

use clap::Subcommand;

use super::{client_disconnect, client_list};

/// List and disconnect the clients of a served pool.
#[derive(Subcommand)]
pub(crate) enum ClientCommand {
    List(client_list::Args),
    Disconnect(client_disconnect::Args),
}

pub(crate) fn run(command: &ClientCommand) -> anyhow::Result<ExitCode> {
    match command {
        ClientCommand::List(args) => client_list::run(args),
        ClientCommand::Disconnect(args) => client_disconnect::run(args),
    }
}
