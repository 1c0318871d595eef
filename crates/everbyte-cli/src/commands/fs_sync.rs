//! `everbyte fs sync`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use super::files::{FileTarget, Files};

const EXAMPLES: &str = "\
Examples:
  everbyte fs sync /dev/shm/p/files && echo all there

The kernel does not forward sync(2) to FUSE mounts: this command replaces 'sync -f'. Stores through a shared mapping
without a later msync are still in the kernel, and not included. If a mount of the file system has lost such stores,
the next 'fs sync' of the same server exits with status 1. Without such an 'fs sync' the server exits with status 1.";

/// Make all earlier changes of a file system durable.
///
/// Exit status 0 confirms it.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file system.
    #[arg(value_name = "POOL/VOLUME")]
    target: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let target = FileTarget::new(&args.target)?;
    let mut files = Files::change(&target)?;
    let synced = files.sync().with_context(|| target.shown());
    files.finish(synced)?;
    Ok(ExitCode::SUCCESS)
}
