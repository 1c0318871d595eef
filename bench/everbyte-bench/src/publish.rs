//! Output of results, and the signals that stop a run.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::rows::Results;
use crate::table;

/// Destinations of the results.
#[derive(clap::Args)]
pub(crate) struct Output {
    /// Write the results as JSON to standard output, and nothing else.
    #[arg(long)]
    json: bool,
    /// Write the results as JSON to a file.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Output {
    /// Writes the results to all destinations. Warns on standard error if they mean nothing.
    ///
    /// # Errors
    /// A file's, or standard output's.
    pub(crate) fn publish(&self, results: &Results) -> Result<()> {
        let json = serde_json::to_string_pretty(results)?;
        if let Some(path) = &self.output {
            fs::write(path, &json).with_context(|| format!("cannot write {}", path.display()))?;
        }
        if let Some(warning) = results.environment.warning() {
            // A closed standard error changes nothing.
            let _unwritten = writeln!(io::stderr(), "everbyte-bench: warning: {warning}");
        }
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{json}")?;
        } else {
            table::write(results, &mut out)?;
        }
        Ok(())
    }
}

/// A flag that the usual signals set; the second one ends the process.
///
/// # Errors
/// The system's.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// A bar for a run whose length is not known yet.
///
/// # Errors
/// None: the template is right.
pub(crate) fn progress_bar() -> Result<ProgressBar> {
    let progress = ProgressBar::new(0);
    progress.set_style(ProgressStyle::with_template("{elapsed} [{wide_bar}] {eta} {msg}")?);
    Ok(progress)
}
