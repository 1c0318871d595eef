//! Developer tasks, run as `cargo xtask TASK`.
//!
//! Owns the command line only; each task is a module. Knows nothing of the engine: it reads the
//! tree as text, and runs programs by their command lines.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that talks to people")]

mod publish;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask tidy       check the house rules
       cargo xtask publish    run suites and fill the pages of figures; see publish --help";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first().map(|(task, rest)| (task.as_str(), rest)) {
        Some(("tidy", [])) => tidy_here(),
        Some(("publish", rest)) => publish_here(rest),
        Some(("help" | "--help" | "-h", [])) => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

fn publish_here(arguments: &[String]) -> ExitCode {
    match publish::publish(root(), arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("publish: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn tidy_here() -> ExitCode {
    let tree = match tidy::Tree::read(root()) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let findings = tidy::check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("tidy: {} files, every rule kept", tree.files().len());
        ExitCode::SUCCESS
    } else {
        eprintln!("tidy: {} findings in {} files", findings.len(), tree.files().len());
        ExitCode::FAILURE
    }
}
