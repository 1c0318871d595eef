//! Errors of traces, with their places.

use std::fmt;
use std::io;

use super::content::Content;
use super::format::Format;
pub use super::problem::Problem;
pub(crate) use super::problem::shortened;
use super::refusal::Refusal;
use super::skipped::SkippedCounts;

/// A place in a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The trace's path, or a substitute name.
    pub trace: String,
    /// Number of the line or record, from 1 on; 0 before the first one.
    pub number: u64,
    /// True if the trace has records of bytes, not lines of text.
    pub is_binary: bool,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.is_binary { "record" } else { "line" };
        match self.number {
            0 => write!(f, "{}", self.trace),
            number => write!(f, "{}, {unit} {number}", self.trace),
        }
    }
}

/// A trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The source failed, is missing, or ends within compressed data.
    #[error("{place}: cannot be read: {source}")]
    Read {
        /// The place up to which it was read.
        place: Place,
        /// The source's error.
        source: io::Error,
    },
    /// The beginning matches none of the formats, or several.
    #[error("{0}")]
    UnknownFormat(Box<Refusal>),
    /// The bytes are of a known kind other than a trace.
    #[error("{trace}: the file is {content}")]
    Foreign {
        /// The trace.
        trace: String,
        /// Kind of its bytes.
        content: Content,
    },
    /// The trace has no read and no write.
    #[error("{trace}: the trace neither reads nor writes anything; skipped: {skipped}")]
    NoRequests {
        /// The trace.
        trace: String,
        /// Its lines or records without a request.
        skipped: Box<SkippedCounts>,
    },
    /// There is nothing in it.
    #[error("{trace}: the trace is empty")]
    Empty {
        /// The trace.
        trace: String,
    },
    /// The format does not distinguish reads from writes.
    #[error(
        "{trace}: the format {format} does not distinguish reads from writes; ask for all requests to be taken as reads, if this is intended"
    )]
    NoOperations {
        /// The trace.
        trace: String,
        /// Its format.
        format: Format,
    },
    /// A line or record is wrong.
    #[error("{place}: {problem}")]
    Wrong {
        /// Its place.
        place: Place,
        /// The mistake.
        problem: Problem,
    },
}
