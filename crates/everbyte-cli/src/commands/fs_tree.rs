//! `everbyte fs tree`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use everbyte_control::{FileEntry, FileKind, FileStatus, PathBytes};
use serde::Serialize;

use super::files::{FileTarget, Files, LEVELS_MAX, below};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  everbyte fs tree /dev/shm/p/files
  everbyte fs tree --depth 2 /dev/shm/p/files:/src
  everbyte fs tree --json /dev/shm/p/files | jq '[.. | select(.kind? == \"regular\") | .size_bytes] | add'

Symbolic links are shown and not followed. In JSON every listed directory has its entries under 'entries'.";

/// Show a directory with its contents.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The directory.
    #[arg(value_name = "POOL/VOLUME[:PATH]")]
    target: PathBuf,
    /// Depth of the listing, in levels.
    #[arg(long, value_name = "N", default_value_t = LEVELS_MAX as u16,
          value_parser = clap::value_parser!(u16).range(1..=LEVELS_MAX as i64))]
    depth: u16,
    /// Print the tree as JSON.
    #[arg(long)]
    json: bool,
}

/// A file, with its entries if it is a listed directory.
#[derive(Serialize)]
struct Node {
    name: PathBytes,
    #[serde(flatten)]
    file: FileStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<Node>>,
}

/// Files of a tree.
#[derive(Default)]
struct Count {
    directories: u64,
    others: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let target = FileTarget::new(&args.target)?;
    let mut files = Files::look(&target)?;
    let file = files.existing(&target.path, true)?;
    if file.kind != FileKind::Directory {
        bail!("{}: not a directory", target.shown());
    }
    let top = FileEntry { name: target.path.clone(), file };
    let depth = usize::from(args.depth);
    let tree = gather(&mut files, top, &target.path, depth)?;
    if args.json {
        output::json(&tree)?;
        return Ok(files.exit_code());
    }
    output::line(target.shown());
    let mut count = Count::default();
    show(tree.entries.as_deref().unwrap_or_default(), "", &mut count);
    output::line(format!("{} directories, {} files", count.directories, count.others));
    Ok(files.exit_code())
}

/// Lists `entry` at `path` down to `depth` levels.
fn gather(
    files: &mut Files,
    entry: FileEntry,
    path: &PathBytes,
    depth: usize,
) -> anyhow::Result<Node> {
    let FileEntry { name, file } = entry;
    if file.kind != FileKind::Directory || depth == 0 {
        return Ok(Node { name, file, entries: None });
    }
    let listed = match files.list(file.id(), path) {
        Err(error) => {
            // An unreadable directory is shown without its entries, and the tree continues.
            files.go_on(path, Err(error))?;
            return Ok(Node { name, file, entries: None });
        }
        Ok(listed) => listed.keep(),
    };
    let nodes = listed.into_iter().map(|entry| {
        let path = below(path, &entry.name);
        gather(files, entry, &path, depth - 1)
    });
    let entries = Some(nodes.collect::<anyhow::Result<_>>()?);
    Ok(Node { name, file, entries })
}

fn show(nodes: &[Node], indent: &str, count: &mut Count) {
    for (place, node) in nodes.iter().enumerate() {
        let is_last = place + 1 == nodes.len();
        let target = node.file.target.as_ref().map(|target| format!(" -> {target}"));
        let branch = if is_last { "└── " } else { "├── " };
        output::line(format!("{indent}{branch}{}{}", node.name, target.unwrap_or_default()));
        let is_directory = node.file.kind == FileKind::Directory;
        *(if is_directory { &mut count.directories } else { &mut count.others }) += 1;
        let below = if is_last { "    " } else { "│   " };
        // The depth is bounded by `gather`.
        show(node.entries.as_deref().unwrap_or_default(), &format!("{indent}{below}"), count);
    }
}
