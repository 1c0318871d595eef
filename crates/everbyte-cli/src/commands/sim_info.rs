//! `everbyte sim info`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use everbyte_policy::trace::{ReadOptions, TraceReader, summarise};
use serde::Serialize;

use crate::output;
use crate::simulation::args::Reading;
use crate::simulation::results::as_f64;
use crate::size::show_size;

const EXAMPLES: &str = "\
Examples:
  everbyte sim info trace.csv
  everbyte sim info *.vscsi --json";

/// Show figures of traces: reads, writes, footprint, sizes.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Traces; - is standard input.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    reading: Reading,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Figures of a trace.
#[derive(Serialize)]
struct Info {
    trace: String,
    format: &'static str,
    /// The reason of the format.
    format_reason: String,
    requests: u64,
    reads: u64,
    writes: u64,
    read_bytes: u64,
    written_bytes: u64,
    mean_read_bytes: f64,
    mean_write_bytes: f64,
    writes_up_to_512_bytes: u64,
    flushes: u64,
    trims: u64,
    /// Lines or records without a request.
    skipped_total: u64,
    /// The same by their kind; kinds without any are left out.
    skipped: BTreeMap<String, u64>,
    files: usize,
    footprint_pages: u64,
    footprint_bytes: u64,
    duration_ns: u64,
    times_going_back: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = args.reading.options();
    let infos = args.traces.iter().map(|path| look_at(path, &options));
    let infos = infos.collect::<anyhow::Result<Vec<_>>>()?;
    if args.json {
        output::json(&infos)?;
    } else {
        infos.iter().for_each(show);
    }
    Ok(ExitCode::SUCCESS)
}

fn look_at(path: &Path, options: &ReadOptions) -> anyhow::Result<Info> {
    let mut reader = TraceReader::open(path, options)?;
    // Before the figures of the reader: skips and files are complete at the end of the trace only.
    let summary = summarise(&mut reader)?;
    let mean = |bytes, requests: u64| as_f64(bytes) / as_f64(requests.max(1));
    Ok(Info {
        trace: path.display().to_string(),
        format: reader.format().name(),
        format_reason: reader.reason().to_string(),
        requests: summary.requests(),
        reads: summary.reads,
        writes: summary.writes,
        read_bytes: summary.read_bytes,
        written_bytes: summary.written_bytes,
        mean_read_bytes: mean(summary.read_bytes, summary.reads),
        mean_write_bytes: mean(summary.written_bytes, summary.writes),
        writes_up_to_512_bytes: summary.small_writes,
        flushes: summary.flushes,
        trims: summary.trims,
        skipped_total: reader.skipped().total(),
        skipped: reader
            .skipped()
            .iter()
            .map(|(kind, count)| (kind.replace(' ', "_"), count))
            .collect(),
        files: reader.files().len(),
        footprint_pages: summary.footprint_pages(),
        footprint_bytes: summary.footprint_pages() * 4096,
        duration_ns: summary.duration_ns(),
        times_going_back: summary.times_going_back,
    })
}

fn show(info: &Info) {
    let small = 100.0 * as_f64(info.writes_up_to_512_bytes) / as_f64(info.writes.max(1));
    output::line(format!("{}: {}, {} requests", info.trace, info.format, info.requests));
    output::line(format!("  format     {}: {}", info.format, info.format_reason));
    output::line(format!(
        "  reads      {}, {:.0} B on average, {} in all",
        info.reads,
        info.mean_read_bytes,
        show_size(info.read_bytes)
    ));
    output::line(format!(
        "  writes     {}, {:.0} B on average, {} in all; {small:.1}% of at most 512 B",
        info.writes,
        info.mean_write_bytes,
        show_size(info.written_bytes)
    ));
    output::line(format!(
        "  footprint  {} pages, {}, in {} files",
        info.footprint_pages,
        show_size(info.footprint_bytes),
        info.files
    ));
    output::line(format!("  besides    {} flushes, {} trims", info.flushes, info.trims));
    let skipped: Vec<String> = info
        .skipped
        .iter()
        .map(|(kind, count)| format!("{count} {}", kind.replace('_', " ")))
        .collect();
    if !skipped.is_empty() {
        output::line(format!("  skipped    {}", skipped.join(", ")));
    }
    output::line(format!("  duration   {:.3} s", as_f64(info.duration_ns) / 1e9));
    if info.times_going_back > 0 {
        let back = info.times_going_back;
        output::line(format!("  {back} requests are earlier than the one before them"));
    }
}
