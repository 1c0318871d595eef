//! `everbyte fs cat`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use everbyte_control::FileKind;

use super::files::{FileTarget, Files, show_kind};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  everbyte fs cat /dev/shm/p/files:/docs/letter | less
  everbyte fs cat /dev/shm/p/files:a /dev/shm/p/files:b > both";

/// Write the bytes of files to standard output, one after the other.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The files.
    #[arg(value_name = "POOL/VOLUME:PATH", required = true)]
    targets: Vec<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    for target in &args.targets {
        let target = FileTarget::new(target)?;
        let mut files = Files::look(&target)?;
        let file = files.existing(&target.path, true)?;
        if file.kind != FileKind::Regular {
            bail!("{}: it is a {}", target.shown(), show_kind(file.kind));
        }
        let shown = files.read_all(file.id(), |bytes| {
            output::bytes(bytes);
            Ok(())
        });
        shown.with_context(|| target.shown())?;
    }
    Ok(ExitCode::SUCCESS)
}
