//! `everbyte fs mkdir`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use everbyte_control::{FileKind, FileStatus, NewFile, PathBytes};

use super::files::{FileTarget, Files};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  everbyte fs mkdir /dev/shm/p/files:/docs
  everbyte fs mkdir -p /dev/shm/p/files:/docs/2026/letters
  everbyte fs mkdir --mode 700 /dev/shm/p/files:/private

The directories belong to the user who runs the command, with the permissions of --mode.";

/// Make directories.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The directories.
    #[arg(value_name = "POOL/VOLUME:PATH", required = true)]
    targets: Vec<PathBuf>,
    /// Make missing parents too, and accept an existing directory.
    #[arg(short, long)]
    parents: bool,
    /// Permissions, as octal digits.
    #[arg(short, long, value_name = "MODE", default_value = "755", value_parser = parse_mode)]
    mode: u32,
    /// Print the directories as JSON, each as 'everbyte fs stat' does.
    #[arg(long)]
    json: bool,
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| format!("{text:?} is not an octal number up to 7777"))
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut made = Vec::new();
    for target in &args.targets {
        let target = FileTarget::new(target)?;
        let mut files = Files::change(&target)?;
        let done = make(&mut files, &target, args);
        made.push(files.finish(done)?);
    }
    if args.json {
        output::json(&made)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a directory, and its parents if these are asked for.
fn make(files: &mut Files, target: &FileTarget, args: &Args) -> anyhow::Result<FileStatus> {
    let parts: Vec<&[u8]> =
        target.path.0.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
    // With --parents every prefix of the path is made or found in turn.
    let first = if args.parents { 1 } else { parts.len() };
    let mut last = None;
    for count in first..=parts.len() {
        let mut path = vec![b'/'];
        path.extend(parts[..count].join(&b'/'));
        let path = PathBytes(path);
        let shown = files.shown(&path);
        // With --parents a link to a directory counts as the directory.
        let found = files.find(None, &path, args.parents)?;
        last = Some(match (found.file, found.at) {
            (Some(file), _) if args.parents && file.kind == FileKind::Directory => file,
            (Some(_), _) => bail!("{shown}: the name exists already"),
            (None, Some(at)) => files.make(&at, new_directory(args.mode)).context(shown)?,
            (None, None) => bail!("{shown}: no such file or directory"),
        });
    }
    match last {
        Some(file) => Ok(file),
        None if args.parents => files.existing(&target.path, true),
        None => bail!("{}: the root exists already", target.shown()),
    }
}

fn new_directory(permissions: u32) -> NewFile {
    NewFile {
        kind: FileKind::Directory,
        permissions,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        target: None,
    }
}
