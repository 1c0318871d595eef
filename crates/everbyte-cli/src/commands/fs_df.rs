//! `everbyte fs df`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use everbyte_control::FileSpace;
use serde::Serialize;

use super::files::{FileTarget, Files};
use crate::output::{self, Column};
use crate::size::show_size;

const EXAMPLES: &str = "\
Examples:
  everbyte fs df /dev/shm/p/files
  everbyte fs df --json /dev/shm/p/files | jq .free_bytes

FREE is the largest amount of data of one more file. If the pool has less space than the file system,
FREE is less than SIZE - USED. 'df' of a mount shows the same figures.";

/// Show size, used and free space, and inodes of a file system.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file system.
    #[arg(value_name = "POOL/VOLUME")]
    target: PathBuf,
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Space {
    volume: String,
    #[serde(flatten)]
    space: FileSpace,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let target = FileTarget::new(&args.target)?;
    let mut files = Files::look(&target)?;
    let space = files.space().with_context(|| target.shown())?;
    if args.json {
        output::json(&Space { volume: target.volume, space })?;
        return Ok(ExitCode::SUCCESS);
    }
    let columns = [
        Column::Left("VOLUME"),
        Column::Right("SIZE"),
        Column::Right("USED"),
        Column::Right("FREE"),
        Column::Right("USE%"),
        Column::Right("INODES"),
        Column::Right("IUSED"),
        Column::Right("IFREE"),
    ];
    let percent = (space.used_bytes * 100).div_ceil(space.size_bytes.max(1));
    let row = [
        target.volume,
        show_size(space.size_bytes),
        show_size(space.used_bytes),
        show_size(space.free_bytes),
        format!("{percent}%"),
        space.inodes.to_string(),
        space.used_inodes.to_string(),
        space.free_inodes.to_string(),
    ];
    output::table(columns, &[row]);
    Ok(ExitCode::SUCCESS)
}
