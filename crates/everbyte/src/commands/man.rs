//! `everbyte man`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap_mangen::Man;

use crate::output;

const EXAMPLES: &str = "\
Examples:
  everbyte man | man -l -
  everbyte man --dir ~/.local/share/man/man1     one page for each command";

/// Print the manual page, or write one for each command.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Directory to write the pages of all commands to. It is made if need be.
    #[arg(long)]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    command.build();
    let Some(dir) = &args.dir else {
        output::bytes(&page(&command)?);
        return Ok(ExitCode::SUCCESS);
    };
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    write_pages(dir, &command)?;
    Ok(ExitCode::SUCCESS)
}

fn page(command: &clap::Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    Ok(page)
}

fn write_pages(dir: &Path, command: &clap::Command) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let file = dir.join(format!("{name}.1"));
    std::fs::write(&file, page(command)?)
        .with_context(|| format!("cannot write {}", file.display()))?;
    let shown = command.get_subcommands().filter(|c| c.get_name() != "help" && !c.is_hide_set());
    shown.into_iter().try_for_each(|command| write_pages(dir, command))
}
