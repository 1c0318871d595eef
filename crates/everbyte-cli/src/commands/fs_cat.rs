//! `everbyte fs cat`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use everbyte_control::{FileKind, FileStatus};

use super::files::{FileTarget, Files, Piece, is_of_one_file, show_kind};
use crate::output::{self, SparseOutput};

const EXAMPLES: &str = "\
Examples:
  everbyte fs cat /dev/shm/p/files:/docs/letter | less
  everbyte fs cat /dev/shm/p/files:a /dev/shm/p/files:b > both

A file that cannot be read is named on standard error; the others follow, and the exit status is 1 then.
Holes stay holes if standard output is a file.";

/// Write the bytes of files to standard output, one after the other.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The files.
    #[arg(value_name = "POOL/VOLUME:PATH", required = true)]
    targets: Vec<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut status = ExitCode::SUCCESS;
    for target in &args.targets {
        match show(target) {
            // As cat: a bad file does not stop the others. A single one gives its own error and
            // hint.
            Err(error) if args.targets.len() > 1 && is_of_one_file(&error) => {
                tracing::error!("{}", crate::describe(&error));
                status = ExitCode::FAILURE;
            }
            shown => shown?,
        }
    }
    Ok(status)
}

fn show(target: &Path) -> anyhow::Result<()> {
    let target = FileTarget::new(target)?;
    let mut files = Files::look(&target)?;
    let file = files.existing(&target.path, true)?;
    show_bytes(&mut files, &target, &file)
}

/// Writes the bytes of a regular file to standard output.
pub(super) fn show_bytes(
    files: &mut Files,
    target: &FileTarget,
    file: &FileStatus,
) -> anyhow::Result<()> {
    if file.kind != FileKind::Regular {
        bail!("{}: it is a {}", target.shown(), show_kind(file.kind));
    }
    let mut out = SparseOutput::new();
    let shown = files.read_all(file.id(), |piece| {
        match piece {
            Piece::Bytes(bytes) => output::bytes(bytes),
            Piece::Hole(len) => out.hole(len),
        }
        Ok(())
    });
    shown.with_context(|| target.shown())?;
    // Only after a complete read: a hole at the end would otherwise extend a partial copy.
    out.finish();
    Ok(())
}
