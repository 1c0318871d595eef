//! Developer tasks, run as `cargo xtask TASK`.
//!
//! Owns the command line only; each task is a module. Knows nothing of the engine: it reads the
//! tree as text, and runs programs by their command lines.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a program for people")]

mod package;
mod publish;
mod tidy;

use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail};
use clap::Parser;

/// Developer tasks
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Check the house rules
    Tidy(TidyArgs),
    /// Run suites, and make plots, tables and figures of the documentation
    ///
    /// Without options, all suites run. Their results go to docs/results. Changed files are refused, and a busy machine for
    /// suites of times.
    Publish(publish::PublishArgs),
    /// Build packages of Debian in target/debian
    Deb(package::PackageArgs),
    /// Build an archive with a static program in target/dist
    Dist(package::PackageArgs),
}

#[derive(clap::Args)]
struct TidyArgs {
    /// Show lines of code and rates of prose by package and page, of this checkout by default
    #[arg(long, value_name = "FOLDER", conflicts_with = "tighten")]
    measure: Option<Option<PathBuf>>,
    /// Lower the limits of xtask/limits.toml to the measures
    #[arg(long)]
    tighten: bool,
}

fn main() -> Result<()> {
    match Task::parse() {
        Task::Tidy(args) => tidy_here(&args).context("tidy"),
        Task::Publish(args) => publish::publish(root(), &args).context("publish"),
        Task::Deb(args) => package::debs(root(), &args).context("deb"),
        Task::Dist(args) => package::dist(root(), &args).context("dist"),
    }
}

fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

fn tidy_here(args: &TidyArgs) -> Result<()> {
    let folder = args.measure.clone().flatten();
    let tree = tidy::Tree::read(folder.as_deref().unwrap_or(root()))?;
    if args.measure.is_some() {
        print!("{}", tidy::Measures::of(&tree).table());
        return Ok(());
    }
    if args.tighten {
        let text = tidy::tightened(&tree).map_err(Error::msg)?;
        return std::fs::write(root().join(tidy::LIMITS), text).context(tidy::LIMITS);
    }
    let findings = tidy::check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    let files = tree.files().len();
    if !findings.is_empty() {
        bail!("{} findings in {files} files", findings.len());
    }
    println!("tidy: {files} files, every rule kept; {}", tidy::Measures::of(&tree).summary());
    Ok(())
}
