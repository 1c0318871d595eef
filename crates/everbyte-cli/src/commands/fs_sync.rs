//! `everbyte fs sync`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use super::files::{FileTarget, Files};

const EXAMPLES: &str = "\
Examples:
  everbyte fs sync /dev/shm/p/files && echo all there

The kernel does not pass 'sync' on to mounts of this kind: this command is what 'sync -f' is elsewhere.
Bytes that a program has stored in a shared mapping and not written out by msync are still the
kernel's, and no part of it. If a mount of the file system has lost such bytes, the next 'fs sync' of a
server that runs since then ends with status 1, and so does the server if there was none.";

/// Make everything durable that was done in a file system before.
///
/// Exit status 0 says that it is.
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
