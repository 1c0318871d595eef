//! Simulations as the command line asks for them: what to run, running it, and what came out.
//!
//! A [`Task`](task::Task) is one policy with one cache over one trace, and says all that its outcome
//! depends on, so it can be run anywhere and its outcome kept under the task's name. `everbyte sim`
//! runs tasks at once; `sim plan`, `sim run` and `sim merge` do the same in three steps. Counting is
//! `everbyte_policy`'s.

pub(crate) mod args;
mod figure;
pub(crate) mod outputs;
pub(crate) mod report;
pub(crate) mod results;
pub(crate) mod task;
pub(crate) mod task_result;

use std::path::Path;

use anyhow::bail;
use everbyte_policy::PageTrace;
use everbyte_policy::trace::{PageLimits, ReadOptions, TraceReader, read_pages};

/// Reads a trace whole.
///
/// # Errors
/// The trace's, or it has no requests.
pub(crate) fn load(path: &Path, options: &ReadOptions) -> anyhow::Result<PageTrace> {
    let mut reader = TraceReader::open(path, options)?;
    let trace = read_pages(&mut reader, PageLimits::default())?;
    if trace.accesses.is_empty() {
        bail!("{}: the trace neither reads nor writes anything", path.display());
    }
    Ok(trace)
}
