//! `everbyte completions`.

use std::process::ExitCode;

use clap_complete::Shell;

use crate::output;

const EXAMPLES: &str = "\
Examples:
  everbyte completions bash > ~/.local/share/bash-completion/completions/everbyte
  everbyte completions zsh > ~/.zfunc/_everbyte";

/// Print a completion script for a shell.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "everbyte", &mut script);
    output::bytes(&script);
    Ok(ExitCode::SUCCESS)
}
