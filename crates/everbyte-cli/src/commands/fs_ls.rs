//! `everbyte fs ls`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_control::{FileEntry, FileKind, PathBytes};

use super::files::{FileTarget, Files, show_mode};
use crate::output::{self, Column};
use crate::time::show_time;

const EXAMPLES: &str = "\
Examples:
  everbyte fs ls /dev/shm/p/files
  everbyte fs ls -l /dev/shm/p/files:/docs
  everbyte fs ls --json /dev/shm/p/files:docs | jq -r '.files[] | select(.kind == \"regular\") | .name'

Names are in the order of their bytes, and all are shown, those with a leading dot too. Sizes are in
bytes, that of a directory is the number of its entries; times are UTC. In JSON a name is a string, or
{\"hex\": DIGITS} if it is not UTF-8; permissions are a decimal number.";

/// List a directory, or show one file.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The directory or file.
    #[arg(value_name = "POOL/VOLUME[:PATH]")]
    target: PathBuf,
    /// Show type, permissions, links, owner, group, size and time of modification as well.
    #[arg(short, long)]
    long: bool,
    /// Show a directory itself instead of its entries.
    #[arg(short, long)]
    directory: bool,
    /// Print the list as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let target = FileTarget::new(&args.target)?;
    let mut files = Files::look(&target)?;
    let file = files.existing(&target.path, true)?;
    let entries = if file.kind == FileKind::Directory && !args.directory {
        files.list(file.id(), &target.path)?.keep()
    } else {
        let is_root = target.path.0.is_empty();
        let name = if is_root { PathBytes(b"/".to_vec()) } else { target.path };
        vec![FileEntry { name, file }]
    };
    if args.json {
        output::json(&BTreeMap::from([("files", &entries)]))?;
    } else if args.long {
        show(&entries);
    } else {
        entries.iter().for_each(|entry| output::line(entry.name.to_string()));
    }
    Ok(files.exit_code())
}

fn show(entries: &[FileEntry]) {
    let columns = [
        Column::Left("MODE"),
        Column::Right("LINKS"),
        Column::Right("UID"),
        Column::Right("GID"),
        Column::Right("SIZE"),
        Column::Left("MODIFIED"),
        Column::Left("NAME"),
    ];
    let row = |entry: &FileEntry| {
        let file = &entry.file;
        let target = file.target.as_ref().map(|target| format!(" -> {target}"));
        [
            show_mode(file),
            file.links.to_string(),
            file.uid.to_string(),
            file.gid.to_string(),
            file.size_bytes.to_string(),
            show_time(file.modified_ns),
            format!("{}{}", entry.name, target.unwrap_or_default()),
        ]
    };
    output::table(columns, &entries.iter().map(row).collect::<Vec<_>>());
}
