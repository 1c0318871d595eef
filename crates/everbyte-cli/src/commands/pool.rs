//! `everbyte pool`: its subcommands.

use std::process::ExitCode;

use clap::Subcommand;

use super::{pool_check, pool_create, pool_delete, pool_grow, pool_info, pool_scrub, pool_status};

/// Create, inspect, check, scrub, grow and delete pools.
///
/// POOL is a file or a device. If a server has the pool, the command uses the server's control
/// socket, POOL.sock. Otherwise it opens the pool.
#[derive(Subcommand)]
pub(crate) enum PoolCommand {
    Create(pool_create::Args),
    Info(pool_info::Args),
    Status(pool_status::Args),
    Check(pool_check::Args),
    Scrub(pool_scrub::Args),
    Grow(pool_grow::Args),
    Delete(pool_delete::Args),
}

pub(crate) fn run(command: &PoolCommand) -> anyhow::Result<ExitCode> {
    match command {
        PoolCommand::Create(args) => pool_create::run(args),
        PoolCommand::Info(args) => pool_info::run(args),
        PoolCommand::Status(args) => Ok(pool_status::run(args)),
        PoolCommand::Check(args) => pool_check::run(args),
        PoolCommand::Scrub(args) => pool_scrub::run(args),
        PoolCommand::Grow(args) => pool_grow::run(args),
        PoolCommand::Delete(args) => pool_delete::run(args),
    }
}
