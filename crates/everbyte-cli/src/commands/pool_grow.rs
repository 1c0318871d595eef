//! `everbyte pool grow`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_control::{Request, Response};
use serde::Serialize;

use super::unexpected;
use crate::output;
use crate::session::{Access, ask};
use crate::size::{parse_size, show_size};

const EXAMPLES: &str = "\
Examples:
  everbyte pool grow /dev/shm/p --size 1G

Grow a device before its pool.";

/// Grow a pool, served or not.
///
/// The file's new space is allocated immediately. Pools never shrink. A served pool can grow to 16
/// times its size at the server's start, or to 1 TiB if that is larger.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// New size of the whole pool, such as 1G, a multiple of 4096 bytes.
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    size: u64,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct GrownPool {
    size_bytes: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match ask(&args.pool, Access::Write, Request::Grow { size_bytes: args.size })? {
        Response::Grown { size_bytes } if args.json => output::json(&GrownPool { size_bytes })?,
        Response::Grown { size_bytes } => {
            output::line(format!("{} has {} now", args.pool.display(), show_size(size_bytes)));
        }
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}
