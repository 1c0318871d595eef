//! `everbyte sim generate`.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use everbyte_policy::trace::CsvWriter;
use everbyte_policy::trace::generate::{GenerateOptions, Workload, generate};

use crate::traces::Output;

const EXAMPLES: &str = "\
Workloads:
  web        a browser on a tablet: SQLite, a cache of pages; 20,428 KB, writes of 1,599 B
  mixed      video, gallery, social network, maps on it; 57,320 KB, writes of 1,625 B
  webserver  Filebench's webserver; 39,540 KB, writes of 3,035 B
  zipf       pages by Zipf's law, 70% reads, writes of 64 B to whole pages
  scan       pages in order, each once
  loop       the same pages in order, over and over

The first three have the footprint of the hybrid cache's paper to the page and its mean write
within 1%. The documentation of everbyte-policy states the other assumptions.

Examples:
  everbyte sim generate web --out web.csv
  everbyte sim generate zipf --requests 10000000 --pages 1000000 --out zipf.csv.zst
  everbyte sim generate mixed --seed 7 | everbyte sim -";

/// Write a synthetic trace, in our CSV.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// web, mixed, webserver, zipf, scan or loop.
    workload: Workload,
    /// Seed of the random numbers: the same seed makes the same trace everywhere.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Requests at least, flushes included [default: 60000 web, 150000 mixed, 100000 webserver,
    /// 1000000 the others].
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Pages of zipf and loop.
    #[arg(long, default_value_t = 65_536, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pages: u32,
    /// The exponent of zipf, at least 0.
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    skew: f64,
    /// The file, compressed if its name ends in .zst; without one, standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = GenerateOptions {
        seed: args.seed,
        requests: args.requests,
        pages: args.pages,
        skew: args.skew,
    };
    // Before the file is replaced.
    options.check()?;
    match &args.out {
        Some(path) => {
            let output = Output::create(path)?;
            let output = write(args.workload, &options, output).and_then(Output::finish);
            output.with_context(|| format!("cannot write to {}", path.display()))?;
        }
        None => match write(args.workload, &options, io::stdout().lock()) {
            // The reader has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written.map(drop).context("cannot write to standard output")?,
        },
    }
    Ok(ExitCode::SUCCESS)
}

fn write<W: Write>(workload: Workload, options: &GenerateOptions, out: W) -> io::Result<W> {
    let mut csv = CsvWriter::new(BufWriter::with_capacity(1 << 16, out))?;
    generate(workload, options, &mut |request, name| csv.write(request, name))?;
    csv.finish()?.into_inner().map_err(io::IntoInnerError::into_error)
}
