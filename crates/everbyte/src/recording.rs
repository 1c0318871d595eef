//! `serve --record`: requests to exports, written down in our trace format.
//!
//! Invariant: whatever happens to the file, serving goes on.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, bail};
use everbyte_device::record::{RecordedOp, RecordedRequest, Recorder, RequestLog};
use everbyte_policy::trace::{CsvWriter, Request, RequestOp};

use crate::traces::Output;

/// The longest request in a record: readers take longer ones for mistakes. Only zeroes come longer.
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Starts recording into a new file at `path`, compressed if it ends in `.zst`.
///
/// # Errors
/// The file cannot be made, or it is the `pool` that is served.
pub(crate) fn start(path: &Path, pool: &Path) -> anyhow::Result<Recorder> {
    if let (Ok(path), Ok(pool)) = (path.canonicalize(), pool.canonicalize())
        && path == pool
    {
        bail!("{} is the pool that is served: record into another file", path.display());
    }
    let output = Output::create(path)?;
    let csv = CsvWriter::new(BufWriter::new(output));
    let csv = csv.with_context(|| format!("cannot write to {}", path.display()))?;
    let shown = path.display().to_string();
    let recorder = Recorder::start(Box::new(CsvLog { csv: Some(csv) }), move |error| {
        tracing::warn!(%error, "{shown}: recording has ended; serving goes on");
    });
    recorder.context("cannot start the recording thread")
}

/// The file.
struct CsvLog {
    /// Until it is finished.
    csv: Option<CsvWriter<BufWriter<Output<File>>>>,
}

impl CsvLog {
    fn csv(&mut self) -> io::Result<&mut CsvWriter<BufWriter<Output<File>>>> {
        self.csv.as_mut().ok_or_else(|| io::Error::other("the record is finished"))
    }
}

impl RequestLog for CsvLog {
    fn write(&mut self, name: &str, recorded: &RecordedRequest) -> io::Result<()> {
        let op = match recorded.op {
            RecordedOp::Read => RequestOp::Read,
            RecordedOp::Write => RequestOp::Write,
            RecordedOp::Flush => RequestOp::Flush,
            RecordedOp::Discard => RequestOp::Trim,
            RecordedOp::WriteZeroes => RequestOp::Zero,
        };
        let RecordedRequest { time_ns, mut offset, len, .. } = *recorded;
        let mut left = len;
        loop {
            let len = left.min(REQUEST_BYTES_MAX);
            self.csv()?.write(&Request { time_ns, op, file: 0, offset, len }, name)?;
            left -= len;
            offset += len;
            if left == 0 {
                return Ok(());
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.csv()?.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        let Some(csv) = self.csv.take() else { return Ok(()) };
        let output = csv.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        output.finish()?.flush()
    }
}
