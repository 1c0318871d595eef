//! Outputs of results: a table, versioned JSON, CSV, a report.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use everbyte_path::create;
use serde::Serialize;

use super::report::{self, Traces};
use super::results::Row;
use super::tables::{self, Figure};
use crate::output;
use crate::traces::check_replaceable;

/// Version of the JSON document.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    results: &'a [Row],
}

/// Options for outputs of results.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Outputs {
    /// Figures to show, with commas between several: a table of policies by size for each of them.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hits", value_name = "FIGURE")]
    show: Vec<Figure>,
    /// Show all figures, with one line for each policy and size.
    #[arg(long, conflicts_with = "show")]
    details: bool,
    /// Print JSON instead of a table. Its "version" changes when fields change their meaning.
    #[arg(long)]
    json: bool,
    /// Write the main figures to a file as CSV, too.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a page with all figures and reasons, too. It needs only a browser. Its footer has the
    /// date, the command, the costs and the checksum of each trace.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl Outputs {
    /// Checks the output files: an output file must not be one of `inputs` or a pool. Other
    /// existing files are replaced.
    ///
    /// # Errors
    /// An output file is an input or a pool.
    pub(crate) fn check(&self, inputs: &[PathBuf]) -> anyhow::Result<()> {
        self.files().try_for_each(|path| check_replaceable(path, inputs))
    }

    /// The output files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.csv.iter().chain(&self.report)
    }

    /// Writes `rows` to all outputs. The footer of a report has the fingerprints of `traces`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn put(&self, rows: &[Row], traces: &Traces) -> anyhow::Result<()> {
        if let Some(path) = &self.csv {
            write(path, &csv(rows))?;
        }
        if let Some(path) = &self.report {
            write(path, &report::page(rows, traces))?;
        }
        if self.json {
            return output::json(&Document { version: VERSION, results: rows });
        }
        match self.details {
            true => tables::show_details(rows),
            false => tables::show(rows, &self.show),
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = create(path, false).and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write to {}", path.display()))
}

fn csv(rows: &[Row]) -> String {
    let mut text = "trace,policy,size,pages,dram_scm,small_write_bytes,pseudo_code,backing,\
                    requests,footprint_pages,hits,accesses,hit_ratio,scm_writes,\
                    scm_writes_up_to_512,scm_bytes,scm_bytes_in_place,scm_bytes_moved,\
                    scm_bytes_filled,pages_read,read_jumps,pages_written,write_jumps,\
                    dirty_at_end,wear_max_bytes,wear_mean_bytes,elapsed_ns,\
                    drain_jumps,elapsed_with_drain_ns,backing_with_drain_ns\n"
        .to_owned();
    for row in rows {
        let (setting, outcome) = (&row.setting, &row.outcome);
        let (scm, backing, wear) = (&outcome.scm, &outcome.backing, &outcome.wear);
        let cells = [
            quoted(&row.trace),
            setting.policy.to_string(),
            setting.size.to_string(),
            outcome.spec.pages.to_string(),
            setting.ratio.to_string(),
            setting.small_write_bytes.to_string(),
            setting.pseudo_code.to_string(),
            setting.backing.name().to_owned(),
            outcome.requests.to_string(),
            outcome.footprint_pages.to_string(),
            outcome.hits().to_string(),
            outcome.accesses().to_string(),
            format!("{:.6}", outcome.hit_ratio()),
            scm.writes.to_string(),
            scm.writes_up_to_512_bytes.to_string(),
            scm.bytes.to_string(),
            scm.bytes_in_place.to_string(),
            scm.bytes_moved.to_string(),
            scm.bytes_filled.to_string(),
            backing.pages_read.to_string(),
            backing.read_jumps.to_string(),
            backing.pages_written.to_string(),
            backing.write_jumps.to_string(),
            backing.dirty_at_end.to_string(),
            wear.bytes_max.to_string(),
            format!("{:.1}", wear.bytes_mean),
            format!("{:.0}", outcome.elapsed_ns),
            outcome.drain.write_jumps.to_string(),
            format!("{:.0}", outcome.elapsed_with_drain_ns),
            format!("{:.0}", outcome.backing_with_drain_ns),
        ];
        text += &cells.join(",");
        text.push('\n');
    }
    text
}

/// A cell of a CSV file (RFC 4180).
fn quoted(text: &str) -> String {
    // RFC 4180: only a cell with a separator, a quote or a line break needs quotes.
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
