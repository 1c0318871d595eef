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

use anyhow::{Context, Error, Result, bail};

const USAGE: &str = "\
usage: cargo xtask tidy                      check the house rules
       cargo xtask tidy --measure [FOLDER]   show lines of code and rates of prose by package and page
       cargo xtask tidy --tighten            lower the limits of xtask/limits.toml to the measures
       cargo xtask publish                   run suites and fill the pages of figures; see publish --help";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first().map(|(task, rest)| (task.as_str(), rest)) {
        Some(("tidy", rest)) => end("tidy", tidy_here(rest)),
        Some(("publish", rest)) => end("publish", publish::publish(root(), rest)),
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

fn end(task: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{task}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn tidy_here(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => check(&tidy::Tree::read(root())?),
        ["--measure"] => measure(root()),
        ["--measure", folder] => measure(Path::new(folder)),
        ["--tighten"] => {
            let text = tidy::tightened(&tidy::Tree::read(root())?).map_err(Error::msg)?;
            std::fs::write(root().join(tidy::LIMITS), text).context(tidy::LIMITS)
        }
        _ => bail!("unknown arguments\n{USAGE}"),
    }
}

fn measure(folder: &Path) -> Result<()> {
    print!("{}", tidy::Measures::of(&tidy::Tree::read(folder)?).table());
    Ok(())
}

fn check(tree: &tidy::Tree) -> Result<()> {
    let findings = tidy::check(tree);
    for finding in &findings {
        println!("{finding}");
    }
    let files = tree.files().len();
    if !findings.is_empty() {
        bail!("{} findings in {files} files", findings.len());
    }
    println!("tidy: {files} files, every rule kept; {}", tidy::Measures::of(tree).summary());
    Ok(())
}
