//! The `everbyte` command.
//!
//! Owns the command line, logging and exit status: 0 done, 1 failed, 2 bad usage. Everything else
//! is glue between the crates below: `commands` has a file for each subcommand.

#![forbid(unsafe_code)]

mod advice;
mod arguments;
mod commands;
mod config;
mod demo;
mod expected_events;
mod help;
mod interrupt;
mod log;
mod output;
mod session;
mod simulation;
mod size;
mod time;
mod traces;

use std::process::ExitCode;

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};

use advice::advice;
use arguments::UsageError;
use commands::{
    client, completions, fs, man, mount, pool, pool_status, run, serve, sim, system_mount, top,
    volume,
};

/// Exit status for a wrong command line, as clap's.
const BAD_USAGE_STATUS: u8 = 2;

const AFTER_HELP: &str = "\
Quick start:
  everbyte pool create /dev/shm/p --size 512M
  everbyte volume create /dev/shm/p disk --size 256M
  everbyte serve /dev/shm/p --nbd unix:/tmp/everbyte.sock
  nbdinfo 'nbd+unix:///disk?socket=/tmp/everbyte.sock'

A size is a number of bytes, or a number with K, M, G or T for powers of 1024. KiB and KB mean K. \
1.5G is a size because it is a whole number of bytes. A time has a unit: 500ms, 5s, 2m, 1h. An \
address is unix:PATH or tcp:HOST:PORT.

Exit status:
  0    the command succeeded
  1    the command failed; standard error names the object, the cause and often the remedy
  2    the command line is wrong
  130  a second Ctrl-C ended the command

'everbyte run' exits with the status of its program.

Environment:
  RUST_LOG  the log level on standard error, for example RUST_LOG=debug
  COLUMNS   the width of help texts without a terminal, at most 100
  EVERBYTE_CONTROL_DIR
            the directory of control sockets, for servers and commands alike,
            instead of the directory of each pool

Files:
  POOL       a pool: a file or a device
  POOL.sock  the control socket of the pool's server";

/// Storage-class memory for programs you cannot change.
///
/// A pool is a file or device of byte-addressable memory: persistent memory, CXL memory, or plain
/// DRAM. A pool contains volumes. Block volumes and caches are block devices for NBD clients. File
/// systems are mounted. These three kinds are crash-consistent. Swap volumes are volatile: they page
/// programs larger than DRAM.
#[derive(Parser)]
#[command(name = "everbyte", version, after_long_help = AFTER_HELP, arg_required_else_help = true)]
struct Cli {
    /// Log more to standard error. Repeat for debug messages.
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 900)]
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
    Top(top::Args),
    Sim(Box<sim::Args>),
    Completions(completions::Args),
    Man(man::Args),
}

fn main() -> ExitCode {
    if system_mount::is_invoked() {
        log::start(0, false);
        return system_mount::run();
    }
    let cli = command_line();
    let is_server = match &cli.command {
        Command::Serve(_) => true,
        Command::Mount(args) => args.is_in_foreground(),
        _ => false,
    };
    log::start(cli.verbose, is_server);
    let done = match &cli.command {
        Command::Demo(args) => demo::run(args),
        Command::Pool(command) => pool::run(command),
        Command::Volume(command) => volume::run(command),
        Command::Serve(args) => serve::run(args),
        Command::Mount(args) => mount::run(args),
        Command::Run(args) => run::run(args),
        Command::Fs(command) => fs::run(command),
        Command::Client(command) => client::run(command),
        Command::Top(args) => top::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Completions(args) => completions::run(args, Cli::command()),
        Command::Man(args) => man::run(args, Cli::command()),
    };
    log::finish();
    done.unwrap_or_else(|error| {
        if error.is::<UsageError>() {
            output::complain(format!("error: {error}\n\nFor more information, try '--help'."));
            return ExitCode::from(BAD_USAGE_STATUS);
        }
        output::complain(format!("everbyte: {}", describe(&error)));
        if let Some(advice) = advice(&error) {
            output::complain(format!("hint: {advice}"));
        }
        ExitCode::FAILURE
    })
}

/// Parses the command line. Exits with a help text or a usage error.
fn command_line() -> Cli {
    let mut command = help::fitted(Cli::command());
    let read = command.try_get_matches_from_mut(std::env::args_os());
    let read = read.and_then(|matches| Cli::from_arg_matches(&matches));
    read.unwrap_or_else(|error| {
        let error = error.format(&mut command);
        if error.use_stderr() && is_for_status(std::env::args_os()) {
            // Status 2 of `pool status` means a damaged pool.
            let _best_effort = error.print();
            std::process::exit(i32::from(pool_status::UNKNOWN_STATUS));
        }
        error.exit()
    })
}

/// Returns true if the first two words, options excluded, are `pool status`.
fn is_for_status(args: impl Iterator<Item = std::ffi::OsString>) -> bool {
    let mut words = args.skip(1).filter(|word| !word.as_encoded_bytes().starts_with(b"-"));
    words.next().is_some_and(|word| word == "pool")
        && words.next().is_some_and(|word| word == "status")
}

/// Joins the error and its causes, without repeated causes: many messages contain their cause.
///
/// The text can contain foreign text such as file names, so control characters are escaped.
pub(crate) fn describe(error: &anyhow::Error) -> String {
    let said = error.chain().skip(1).fold(error.to_string(), |said, cause| {
        let cause = cause.to_string();
        if said.contains(&cause) { said } else { format!("{said}: {cause}") }
    });
    // Only texts of this program have indented lines.
    said.split("\n ").map(everbyte_text::escaped).collect::<Vec<_>>().join("\n ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_accepts_the_command_line() {
        Cli::command().debug_assert();
    }

    /// Stand-ins for the parts of an example that a shell, another program or the reader fills in.
    const STAND_INS: [(&str, &str); 6] = [
        ("${OPTIONS}", "noatime"),
        ("$((JOB_COMPLETION_INDEX + 1))", "1"),
        ("$SLURM_ARRAY_TASK_ID", "0"),
        ("$workload", "web"),
        ("{}", "0"),
        ("--policy mine,", "--policy sieve,"), // the policy that docs/policies.md adds
    ];

    /// The commands of `everbyte` in a text, as passed by a shell. A command begins at the
    /// program's name. It ends at the line's end, at an operator of the shell or at a remark. `#`
    /// or three spaces begin a remark.
    fn commands(text: &str) -> Vec<Vec<String>> {
        let text = STAND_INS
            .iter()
            .fold(text.replace("\\\n", " "), |text, (from, to)| text.replace(from, to));
        let lines = text.lines().map(|line| line.trim().split("   ").next().unwrap_or_default());
        let lines = lines.filter_map(shlex::split);
        lines.flat_map(|words| commands_of_line(&words)).collect()
    }

    fn commands_of_line(words: &[String]) -> Vec<Vec<String>> {
        let is_operator = |word: &String| word.starts_with(['|', '&', '>', '<', ';']);
        // `root` stands before commands in a crontab.
        let runs_others = |word: &String| ["sudo", "parallel", "root"].contains(&word.as_str());
        let is_program = |at: usize| {
            let names = ["everbyte", "ExecStart=/usr/bin/everbyte"];
            let begins = at == 0 || is_operator(&words[at - 1]) || runs_others(&words[at - 1]);
            begins && names.contains(&words[at].as_str())
        };
        let starts = (0..words.len()).filter(|at| is_program(*at));
        let commands = starts.map(|at| {
            let rest = words[at + 1..].iter();
            rest.take_while(|word| !is_operator(word)).cloned().collect()
        });
        commands.collect()
    }

    /// Checks that the program accepts each of these commands, shown at `place`.
    fn check_accepted(place: &str, commands: &[Vec<String>]) {
        for command in commands {
            let program = ["everbyte".to_owned()];
            let parsed = Cli::try_parse_from(program.iter().chain(command));
            let error = parsed.err().filter(|error| error.use_stderr());
            assert!(error.is_none(), "{place}: {command:?}: {}", error.unwrap());
        }
    }

    /// Checks the examples in the help of `command` and of its subcommands, and returns the number
    /// of commands without subcommands.
    fn check_help(path: &str, command: &clap::Command) -> usize {
        let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        let examples: Vec<&str> = help.lines().filter(|line| line.starts_with("  ")).collect();
        let examples = commands(&examples.join("\n"));
        check_accepted(&format!("{path} --help"), &examples);
        if !command.has_subcommands() {
            assert!(!examples.is_empty(), "{path} --help has no example");
            return 1;
        }
        let below = command.get_subcommands();
        below.map(|below| check_help(&format!("{path} {}", below.get_name()), below)).sum()
    }

    #[test]
    fn examples_of_each_command_parse() {
        let leaves = check_help("everbyte", &Cli::command());
        assert!(leaves > 20, "{leaves}");
    }

    /// The blocks of code in a document; all of it where it is not Markdown.
    fn code(path: &std::path::Path) -> String {
        let text = std::fs::read_to_string(path).unwrap();
        if path.extension().is_none_or(|extension| extension != "md") {
            return text;
        }
        text.split("```").skip(1).step_by(2).collect()
    }

    #[test]
    fn commands_in_documents_are_accepted() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let docs = std::fs::read_dir(root.join("docs")).unwrap();
        let mut paths: Vec<_> = docs.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
        let units = ["docs/examples/everbyte@.service", "docs/examples/everbyte-mount@.service"];
        paths.extend(units.iter().chain(&["README.md"]).map(|path| root.join(path)));
        let mut shown = std::collections::BTreeMap::new();
        for path in paths {
            let commands = commands(&code(&path));
            check_accepted(&path.display().to_string(), &commands);
            shown.insert(path.file_name().unwrap().to_owned(), commands.len());
        }
        for (name, at_least) in [
            ("README.md", 8),
            ("everbyte@.service", 1),
            ("everbyte-mount@.service", 1),
            ("operations.md", 12),
            ("policies.md", 2),
            ("simulation.md", 4),
            ("sweeps.md", 3),
            ("traces.md", 2),
        ] {
            let found = shown[std::ffi::OsStr::new(name)];
            assert!(found >= at_least, "{name} shows {found} commands");
        }
    }
}
