//! Traces: readers of the usual formats, our own format, and generators.
//!
//! A trace is a stream of [`Request`]s. [`TraceReader`] reads one from a file, standard input or
//! any other source, plain or compressed with gzip, xz or zstd, in one of the [`Format`]s.
//! [`PageTraceBuilder`] cuts requests into pages, [`Summary`] counts them, [`CsvWriter`] writes our
//! own format, and [`generate`] generates traces.
//!
//! Invariants: readers stream, so their memory is bounded for any trace. The calls of a Mobibench
//! trace are the exception: they must be sorted, and their number is limited. Every request of a
//! reader ends at or before [`OFFSET_MAX`]. Every problem of a trace is a [`TraceError`] with the
//! trace, the line or record, and the finding.
//!
//! Knows nothing of policies and costs.

mod alibaba;
mod beside;
mod blkparse;
mod column_lines;
mod columns;
mod content;
mod csv;
mod decode;
mod decoder;
mod decompress;
mod detect;
mod disksim;
mod error;
mod fields;
mod files;
mod fio;
mod fiu;
mod format;
pub mod generate;
mod input;
mod kvcache;
mod lcs;
mod lirs;
mod loaded;
mod mobibench;
mod msr;
mod objects;
mod operations;
mod oracle_general;
mod page_numbers;
mod pages;
mod problem;
mod reader;
mod refusal;
mod skipped;
mod spc;
mod summary;
mod systor;
mod tencent;
mod twitter;
mod vscsi;

#[cfg(test)]
mod tests;

pub use columns::Columns;
pub use content::Content;
pub use csv::CsvWriter;
pub use error::{Place, Problem, TraceError};
pub use files::FileNames;
pub use format::Format;
pub use loaded::{Accesses, LoadedTrace, read_pages};
pub use pages::{PageLimits, PageTraceBuilder};
pub use reader::{ReadOptions, TraceReader, summarise};
pub use refusal::{NearFormat, Reason, Refusal};
pub use skipped::{SkippedCounts, SkippedKind};
pub use summary::Summary;

/// No request ends beyond this byte: offsets are signed in every system that traces come from.
pub const OFFSET_MAX: u64 = i64::MAX.unsigned_abs();

/// Bytes of a sector, the unit of places in most block traces.
const SECTOR_BYTES: u64 = 512;

/// Kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RequestOp {
    /// Read bytes.
    Read,
    /// Write bytes.
    Write,
    /// Make earlier writes durable; offset and length mean nothing.
    Flush,
    /// Discard the bytes.
    Trim,
    /// Make the bytes zero.
    Zero,
}

/// One request of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Time in ns; the trace chooses its zero.
    pub time_ns: u64,
    /// Kind of the request.
    pub op: RequestOp,
    /// Number of the file or device, from 0 on; [`TraceReader::files`] has the names.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}
