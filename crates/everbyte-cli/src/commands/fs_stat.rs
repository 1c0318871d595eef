//! `everbyte fs stat`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_control::{FileFlag, FileStatus};

use super::files::{FileTarget, Files, show_kind, show_mode};
use crate::output;
use crate::time::show_time;

const EXAMPLES: &str = "\
Examples:
  everbyte fs stat /dev/shm/p/files:/docs/letter
  everbyte fs stat --json /dev/shm/p/files:/docs/letter | jq .modified_ns

The command shows a symbolic link at the end of PATH itself. -L follows it. Times are UTC. In JSON they are
nanoseconds since 1970.";

/// Show the attributes of a file.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file.
    #[arg(value_name = "POOL/VOLUME[:PATH]")]
    target: PathBuf,
    /// Follow a symbolic link at the end.
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print the record as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let target = FileTarget::new(&args.target)?;
    let file = Files::look(&target)?.existing(&target.path, args.dereference)?;
    if args.json {
        output::json(&file)?;
    } else {
        show(&target, &file);
    }
    Ok(ExitCode::SUCCESS)
}

/// The flags of a file in words.
fn show_flags(file: &FileStatus) -> String {
    let name = |flag: &FileFlag| match flag {
        FileFlag::Immutable => "immutable",
        FileFlag::AppendOnly => "append-only",
        FileFlag::NoDump => "no dump",
        FileFlag::NoAtime => "no access time",
    };
    match file.flags.as_slice() {
        [] => "none".to_owned(),
        flags => flags.iter().map(name).collect::<Vec<_>>().join(", "),
    }
}

fn show(target: &FileTarget, file: &FileStatus) {
    let permissions = format!("{:04o} ({})", file.permissions, show_mode(file));
    let leads_to = file.target.as_ref().map(|target| format!(", leads to {target}"));
    for (what, value) in [
        ("file", target.shown()),
        ("type", format!("{}{}", show_kind(file.kind), leads_to.unwrap_or_default())),
        ("size", format!("{} bytes, {} used", file.size_bytes, file.used_bytes)),
        ("inode", format!("{}, generation {}", file.inode, file.generation)),
        ("links", file.links.to_string()),
        ("permissions", permissions),
        ("owner", format!("user {}, group {}", file.uid, file.gid)),
        ("flags", show_flags(file)),
        ("accessed", show_time(file.accessed_ns)),
        ("modified", show_time(file.modified_ns)),
        ("changed", show_time(file.changed_ns)),
        ("created", show_time(file.created_ns)),
    ] {
        output::line(format!("{:<13}{value}", format!("{what}:")));
    }
}
