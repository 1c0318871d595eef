//! `everbyte fs mv`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use everbyte_control::{FileKind, FilePlace, PathBytes};
use serde::Serialize;

use super::files::{FileTarget, Files, below};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  everbyte fs mv /dev/shm/p/files:/letter /letter.old
  everbyte fs mv /dev/shm/p/files:/a /dev/shm/p/files:/docs        into an existing directory
  everbyte fs mv --force /dev/shm/p/files:/new /current            replaces the file /current

TO is a path in the volume of FROM, or a whole POOL/VOLUME:PATH of the same volume. If TO is an existing
directory, or a link to one, the file goes into it. A file of the new name is not replaced, unless
--force is given: then the replacement is atomic. A directory is replaced only if it is empty.";

/// Rename a file or a directory within its file system, or move it into another directory.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file or directory.
    #[arg(value_name = "POOL/VOLUME:PATH")]
    from: PathBuf,
    /// The new path, or the directory to move it into.
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// Replace an existing file of the new name.
    #[arg(short, long)]
    force: bool,
    /// Print the two names as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct MovedFile {
    from: PathBytes,
    to: PathBytes,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    use std::os::unix::ffi::OsStrExt;
    let from = FileTarget::new(&args.from)?;
    let to = match FileTarget::new(&args.to) {
        Ok(to) => {
            // By identity: two paths can lead to one pool.
            let identity = |pool| everbyte_path::look(pool).map(|found| found.identity());
            let is_same_pool = match (identity(&from.pool), identity(&to.pool)) {
                (Ok(from), Ok(to)) => from == to,
                _ => false,
            };
            if !is_same_pool || to.volume != from.volume {
                bail!("{} and {} are in different file systems", from.shown(), to.shown());
            }
            to.path
        }
        // Without a pool in it, the text is a path in the volume of FROM.
        Err(_) => PathBytes(args.to.as_os_str().as_bytes().to_vec()),
    };
    let mut files = Files::change(&from)?;
    let done = rename(&mut files, &from.path, &to, args.force);
    let to = files.finish(done)?;
    if args.json {
        output::json(&MovedFile { from: from.path, to })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Renames, and returns the new path.
fn rename(
    files: &mut Files,
    from: &PathBytes,
    to: &PathBytes,
    force: bool,
) -> anyhow::Result<PathBytes> {
    let shown = files.shown(from);
    let (at, _) = files.place(from)?;
    let found = files.find(None, to, true)?;
    let (new_at, to) = match (found.file, found.at) {
        (Some(file), _) if file.kind == FileKind::Directory => {
            let place = FilePlace { directory: file.id(), name: at.name.clone() };
            (place, below(to, &at.name))
        }
        // A link at the end is a name like others.
        (Some(_), _) => (files.place(to)?.0, to.clone()),
        (None, Some(place)) => (place, to.clone()),
        (None, None) => bail!("{}: no such file or directory", files.shown(to)),
    };
    let to_shown = files.shown(&to);
    // `move_to` refuses an existing name in one step with the rename, so no file can appear in
    // between.
    let renamed = if force { files.rename(&at, &new_at) } else { files.move_to(&at, &new_at) };
    renamed.with_context(|| format!("{shown} to {to_shown}"))?;
    Ok(to)
}
