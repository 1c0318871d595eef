//! `everbyte fs rm`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use everbyte_control::{FileKind, FileLeak, FilePlace, PathBytes};
use serde::Serialize;

use super::files::{FileTarget, Files, LEVELS_MAX, below};
use crate::output;
use crate::size::show_size;

const EXAMPLES: &str = "\
Examples:
  everbyte fs rm /dev/shm/p/files:/docs/letter
  everbyte fs rm -r /dev/shm/p/files:/docs
  everbyte fs rm -r --json /dev/shm/p/files:/docs | jq .leaked

The command removes a symbolic link itself and never follows it. It refuses the root, '.' and '..'.

It removes a name even if the file or the entry is damaged. A line names the remains:
  blocks    have no owner; 'everbyte pool check --repair' frees them
  an inode  stays in use with its blocks, because other names can lead to it
  entries   are unreadable; all entries in the damaged part of the directory are removed

Exit status: 0 if everything is removed, else 1. With -r the command continues after an error, and lists the
remaining names at its end.";

/// Remove files, links and directories, including damaged ones.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The files.
    #[arg(value_name = "POOL/VOLUME:PATH", required = true)]
    targets: Vec<PathBuf>,
    /// Remove directories with their contents.
    #[arg(short, long)]
    recursive: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize, Default)]
struct RemovalStatus {
    /// Removed names.
    removed: u64,
    /// Removed damaged names, with their remains.
    leaked: Vec<LeakedFile>,
}

#[derive(Serialize)]
struct LeakedFile {
    path: String,
    #[serde(flatten)]
    leak: FileLeak,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut removed = RemovalStatus::default();
    let mut status = ExitCode::SUCCESS;
    for target in &args.targets {
        let target = FileTarget::new(target)?;
        let mut files = Files::change(&target)?;
        let done = remove(&mut files, &target, args.recursive, &mut removed);
        // Before `finish`, which ends the session: the losses belong to this target.
        let code = files.conclude();
        files.finish(done)?;
        if code != ExitCode::SUCCESS {
            status = code;
        }
    }
    for LeakedFile { path, leak } in removed.leaked.iter().filter(|_| !args.json) {
        output::line(format!("{path}: removed, damaged: {}", describe(leak)));
    }
    if args.json {
        output::json(&removed)?;
    }
    Ok(status)
}

/// The losses in words.
fn describe(leak: &FileLeak) -> String {
    let mut parts = Vec::new();
    if let Some(inode) = leak.inode {
        parts
            .push(format!("inode {inode} stays in use with its blocks, because it cannot be read"));
    }
    match leak.bytes {
        Some(0) => {}
        Some(bytes) => parts.push(format!("up to {} leak", show_size(bytes))),
        None if leak.inode.is_none() => parts.push("the files of its entries may leak".to_owned()),
        None => {}
    }
    if leak.entries > 0 {
        parts.push(format!("{} entries that cannot be read are removed", leak.entries));
    }
    if leak.has_lost_names {
        parts.push("files whose names cannot be read are left without a name".to_owned());
    }
    if parts.is_empty() { "nothing is left behind".to_owned() } else { parts.join("; ") }
}

fn remove(
    files: &mut Files,
    target: &FileTarget,
    recursive: bool,
    removed: &mut RemovalStatus,
) -> anyhow::Result<()> {
    let path = &target.path;
    let shown = target.shown();
    let last = path.0.split(|byte| *byte == b'/').rfind(|part| !part.is_empty());
    // Removing these would empty the directory under another name than the typed one.
    if matches!(last, None | Some(b"." | b"..")) {
        bail!("{shown}: the root, '.' and '..' are not removed");
    }
    let (at, kind) = files.place(path)?;
    match kind {
        Some(FileKind::Directory) if !recursive => {
            bail!("{shown}: it is a directory: pass -r to remove it with everything in it")
        }
        Some(FileKind::Directory) => remove_tree(files, &at, path, removed, 0),
        _ => remove_name(files, &at, path, false, removed).with_context(|| shown),
    }
}

/// Removes the name of a file or of an empty directory.
fn remove_name(
    files: &mut Files,
    at: &FilePlace,
    path: &PathBytes,
    is_directory: bool,
    removed: &mut RemovalStatus,
) -> anyhow::Result<()> {
    let leak = files.remove_or_drop(at, is_directory)?;
    removed.removed += 1;
    if let Some(leak) = leak {
        removed.leaked.push(LeakedFile { path: files.shown(path), leak });
    }
    Ok(())
}

/// Removes a directory with its contents. Keeps entries after an error.
fn remove_tree(
    files: &mut Files,
    at: &FilePlace,
    path: &PathBytes,
    removed: &mut RemovalStatus,
    level: usize,
) -> anyhow::Result<()> {
    if level >= LEVELS_MAX {
        bail!("{}: more than {LEVELS_MAX} directories within each other", files.shown(path));
    }
    // An unreadable directory is dropped below.
    if let Ok(Some(file)) = files.status_at(at) {
        let directory = file.id();
        // By names, not by entries: unreadable entries have to go as well.
        for (name, kind) in files.names(directory, path)? {
            let entry = FilePlace { directory, name: name.clone() };
            let entry_path = below(path, &name);
            let done = match kind {
                Some(FileKind::Directory) => {
                    remove_tree(files, &entry, &entry_path, removed, level + 1)
                }
                _ => remove_name(files, &entry, &entry_path, false, removed),
            };
            // One damaged file must not keep the rest of the tree.
            files.go_on(&entry_path, done)?;
        }
    }
    let done = remove_name(files, at, path, true, removed);
    files.go_on(path, done)
}
