//! The `everbyte` command.
//!
//! Owns the command line, logging and exit status: 0 done, 1 failed, 2 bad usage. Everything else
//! is glue between the crates below: `commands` has a file for each subcommand.

#![forbid(unsafe_code)]

mod advice;
mod arguments;
mod commands;
mod demo;
mod output;
mod simulation;
mod size;
mod time;
mod traces;

use std::process::ExitCode;

use clap::{ArgAction, CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use advice::advice;
use arguments::UsageError;
use commands::{client, completions, fs, man, mount, pool, run, serve, sim, volume};

/// Exit status for a wrong command line, as clap's.
const BAD_USAGE_STATUS: u8 = 2;

const AFTER_HELP: &str = "\
Quick start:
  everbyte pool create /dev/shm/p --size 512M
  everbyte volume create /dev/shm/p disk --size 256M
  everbyte serve /dev/shm/p --nbd unix:/tmp/everbyte.sock
  nbdinfo 'nbd+unix:///disk?socket=/tmp/everbyte.sock'

Sizes take K, M, G and T, which are powers of 1024, also written KiB or KB, and fractions that come
out at whole bytes: 1.5G. Times have a unit: 500ms, 5s, 2m, 1h. Addresses are unix:PATH or
tcp:HOST:PORT.
Exit status: 0 done, 1 failed (standard error says what, where and what to do), 2 bad usage.
RUST_LOG sets what is logged to standard error, for example RUST_LOG=debug.";

/// Storage-class memory for programs you cannot change.
///
/// A pool is a file or device of byte-addressable memory: persistent memory, CXL memory, or plain
/// DRAM standing in for them. Volumes in it are block devices that survive crashes at any moment,
/// and any NBD client can use them.
#[derive(Parser)]
#[command(name = "everbyte", version, after_long_help = AFTER_HELP, arg_required_else_help = true)]
struct Cli {
    /// Log more to standard error; twice for even more.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    #[command(subcommand)]
    Pool(pool::PoolCommand),
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    Serve(serve::Args),
    Mount(mount::Args),
    Run(run::Args),
    #[command(subcommand)]
    Fs(fs::FsCommand),
    #[command(subcommand)]
    Client(client::ClientCommand),
    Sim(Box<sim::Args>),
    Completions(completions::Args),
    Man(man::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let is_server = match &cli.command {
        Command::Serve(_) => true,
        Command::Mount(args) => args.is_in_foreground(),
        _ => false,
    };
    start_logging(cli.verbose, is_server);
    let done = match &cli.command {
        Command::Demo(args) => demo::run(args),
        Command::Pool(command) => pool::run(command),
        Command::Volume(command) => volume::run(command),
        Command::Serve(args) => serve::run(args),
        Command::Mount(args) => mount::run(args),
        Command::Run(args) => run::run(args),
        Command::Fs(command) => fs::run(command),
        Command::Client(command) => client::run(command),
        Command::Sim(args) => sim::run(args),
        Command::Completions(args) => completions::run(args, Cli::command()),
        Command::Man(args) => man::run(args, Cli::command()),
    };
    done.unwrap_or_else(|error| {
        #[expect(clippy::print_stderr, reason = "this is where errors reach the user")]
        {
            if error.is::<UsageError>() {
                eprintln!("error: {error}\n\nFor more information, try '--help'.");
                return ExitCode::from(BAD_USAGE_STATUS);
            }
            eprintln!("everbyte: {}", describe(&error));
            if let Some(advice) = advice(&error) {
                eprintln!("hint: {advice}");
            }
        }
        ExitCode::FAILURE
    })
}

/// The error and its causes, each said once: many messages contain their cause already.
fn describe(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |said, cause| {
        let cause = cause.to_string();
        if said.contains(&cause) { said } else { format!("{said}: {cause}") }
    })
}

/// Logs to standard error: what `RUST_LOG` says, else by the number of `-v`.
fn start_logging(verbose: u8, is_server: bool) {
    let level = match verbose + u8::from(is_server) {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_accepts_the_command_line() {
        Cli::command().debug_assert();
    }

    /// The commands of `everbyte` in a document: what shells and units would run.
    fn commands(text: &str) -> Vec<Vec<&str>> {
        let starts = ["everbyte ", "sudo everbyte ", "ExecStart=/usr/local/bin/everbyte "];
        let lines = text.lines().map(str::trim);
        let found = lines.filter_map(|line| {
            let rest = starts.iter().find_map(|start| line.strip_prefix(start))?;
            let command = rest.split(['#', '|', '&', '>']).next()?;
            Some(command.split_whitespace().collect())
        });
        found.collect()
    }

    #[test]
    fn commands_in_documents_are_accepted() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (path, at_least) in [
            ("README.md", 4),
            ("docs/operations.md", 6),
            ("docs/examples/everbyte.service", 1),
            ("docs/sweeps.md", 1),
        ] {
            let text = std::fs::read_to_string(root.join(path)).unwrap();
            let commands = commands(&text);
            assert!(commands.len() >= at_least, "{path}: {commands:?}");
            for command in commands {
                let parsed = Cli::try_parse_from(["everbyte"].into_iter().chain(command.clone()));
                let shown = ["--version", "--help"].iter().any(|only| command == [*only]);
                assert!(parsed.is_ok() || shown, "{path}: {command:?}");
            }
        }
    }
}
