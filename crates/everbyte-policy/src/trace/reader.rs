//! [`TraceReader`]: requests from a trace of any format.

use std::io::Read;
use std::path::Path;

use super::column_lines::ColumnLines;
use super::decode::{Item, LineFormat, Numbered, RecordFormat};
use super::error::{Problem, TraceError, shortened};
use super::files::FileNames;
use super::format::Format;
use super::input::{BYTE_ORDER_MARK, Input};
use super::summary::Summary;
use super::{
    OFFSET_MAX, Request, RequestOp, blkparse, csv, detect, disksim, fio, mobibench, msr,
    oracle_general, spc, vscsi,
};

/// The largest request that is taken for one, in bytes, unless options say otherwise.
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Options for reading a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadOptions {
    /// The format; without one it is told from the content.
    pub format: Option<Format>,
    /// Takes requests of a format that does not name their kind as reads.
    pub assume_reads: bool,
    /// Reads, writes and zeroes of more bytes than this are an error.
    pub request_bytes_max: u64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { format: None, assume_reads: false, request_bytes_max: REQUEST_BYTES_MAX }
    }
}

enum Decoder {
    Lines(Box<dyn LineFormat + Send>),
    Records(Box<dyn RecordFormat + Send>, usize),
    /// All was read.
    Ended,
}

impl Decoder {
    fn new(format: Format, head: &[u8]) -> Self {
        let records = Self::Records;
        match format {
            Format::Csv => Self::Lines(Box::<csv::Csv>::default()),
            Format::VscsiV1 => records(Box::new(vscsi::Vscsi::V1), vscsi::V1_BYTES),
            Format::VscsiV2 => records(Box::new(vscsi::Vscsi::V2), vscsi::V2_BYTES),
            Format::Msr => Self::Lines(Box::<msr::Msr>::default()),
            Format::Blkparse => Self::Lines(Box::new(blkparse::Blkparse::new(head))),
            Format::Fio => Self::Lines(Box::<fio::Fio>::default()),
            Format::Spc => Self::Lines(Box::new(spc::Spc)),
            Format::Disksim => Self::Lines(Box::new(disksim::Disksim)),
            Format::OracleGeneral => records(
                Box::<oracle_general::OracleGeneral>::default(),
                oracle_general::RECORD_BYTES,
            ),
            Format::Mobibench => Self::Lines(Box::<mobibench::Mobibench>::default()),
            Format::Columns(columns) => Self::Lines(Box::new(ColumnLines::new(columns))),
        }
    }
}

/// A trace that is being read. An iterator over its requests, in the order of the trace, that ends
/// after the first error.
pub struct TraceReader {
    input: Input,
    decoder: Decoder,
    /// Requests that were read and not handed out yet.
    waiting: std::vec::IntoIter<Request>,
    /// Requests that waited for the last line.
    rest: std::vec::IntoIter<Numbered>,
    files: FileNames,
    format: Format,
    request_bytes_max: u64,
    skipped: u64,
    ended: bool,
}

impl TraceReader {
    /// Opens the trace at `path`; `-` is standard input.
    ///
    /// # Errors
    /// It cannot be read, its format is not known or is not enough.
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, TraceError> {
        Self::over(Input::open(path)?, options)
    }

    /// Reads what `source` yields; errors call it `name`.
    ///
    /// # Errors
    /// As [`TraceReader::open`].
    pub fn new(
        name: &str,
        source: impl Read + Send + 'static,
        options: &ReadOptions,
    ) -> Result<Self, TraceError> {
        Self::over(Input::new(name, source)?, options)
    }

    fn over(mut input: Input, options: &ReadOptions) -> Result<Self, TraceError> {
        let head = input.head()?;
        let trace = || input.place().trace.clone();
        let unknown = || match head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&head).trim_ascii() {
            [] => TraceError::Empty { trace: trace() },
            head => TraceError::UnknownFormat { trace: trace(), begin: beginning(head) },
        };
        let format = options.format.or_else(|| detect::format_of(&head)).ok_or_else(unknown)?;
        let has_operations = match &format {
            Format::OracleGeneral => false,
            Format::Columns(columns) => columns.have_operations(),
            _ => true,
        };
        if !has_operations && !options.assume_reads {
            return Err(TraceError::NoOperations { trace: trace(), format });
        }
        let decoder = Decoder::new(format, &head);
        if let Decoder::Lines(lines) = &decoder {
            input.begin_text(lines.may_lack_bytes());
        }
        Ok(Self {
            decoder,
            input,
            waiting: Vec::new().into_iter(),
            rest: Vec::new().into_iter(),
            files: FileNames::default(),
            format,
            request_bytes_max: options.request_bytes_max,
            skipped: 0,
            ended: false,
        })
    }

    /// Its format, given or found.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Names of the files and devices that were met so far.
    #[must_use]
    pub fn files(&self) -> &FileNames {
        &self.files
    }

    /// Lines or records so far that hold no request: headers, commands without data, calls that
    /// failed.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the next request; `None` after the last.
    pub(super) fn advance(&mut self) -> Result<Option<Request>, TraceError> {
        loop {
            if let Some(request) = self.waiting.next() {
                let checked = self.checked(request);
                return checked.map(Some).map_err(|problem| self.input.wrong(problem));
            }
            let item = match &mut self.decoder {
                Decoder::Ended => {
                    let Some((number, request)) = self.rest.next() else { return Ok(None) };
                    self.input.return_to(number);
                    Ok(Item::Request(request))
                }
                Decoder::Records(format, bytes) => match self.input.record(*bytes)? {
                    Some(record) => format.item(record, &mut self.files),
                    None => return Ok(None),
                },
                Decoder::Lines(format) => match self.input.line()? {
                    Some("") => Ok(Item::Nothing),
                    Some(line) => format.item(line, &mut self.files),
                    None => Ok(Item::End),
                },
            };
            match item.map_err(|problem| self.input.wrong(problem))? {
                Item::Request(request) => {
                    let checked = self.checked(request);
                    return checked.map(Some).map_err(|problem| self.input.wrong(problem));
                }
                Item::Requests(requests) => self.waiting = requests.into_iter(),
                Item::Kept => self.keep_line(),
                Item::Nothing => self.skipped += 1,
                Item::End => self.read_rest()?,
            }
        }
    }

    fn keep_line(&mut self) {
        let number = self.at();
        if let Decoder::Lines(format) = &mut self.decoder {
            format.kept_line(number);
        }
    }

    fn read_rest(&mut self) -> Result<(), TraceError> {
        if let Decoder::Lines(format) = &mut self.decoder {
            let rest = format.rest(&mut self.files);
            let wrong = |(number, problem)| self.input.wrong_at(number, problem);
            self.rest = rest.map_err(wrong)?.into_iter();
        }
        self.decoder = Decoder::Ended;
        Ok(())
    }

    /// Returns the number of the line or record of the last request.
    pub(super) fn at(&self) -> u64 {
        self.input.place().number
    }

    /// Returns the error that line or record `number` is wrong.
    pub(super) fn wrong_at(&self, number: u64, problem: Problem) -> TraceError {
        self.input.wrong_at(number, problem)
    }

    /// The request, if it is not too large and does not leave the range of offsets.
    fn checked(&self, request: Request) -> Result<Request, Problem> {
        let Request { op, offset, len, .. } = request;
        if op == RequestOp::Flush {
            return Ok(request);
        }
        if offset.checked_add(len).is_none_or(|end| end > OFFSET_MAX) {
            return Err(Problem::BeyondEnd { offset, len });
        }
        let max = self.request_bytes_max;
        if len > max && op != RequestOp::Trim {
            return Err(Problem::RequestTooLarge { len, max });
        }
        Ok(request)
    }
}

/// Returns the first line, shortened, with everything that is no text in another form.
fn beginning(head: &[u8]) -> String {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    shortened(&String::from_utf8_lossy(line))
}

impl Iterator for TraceReader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.advance();
        self.ended = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

/// Reads all of a trace and counts what is in it.
///
/// # Errors
/// The trace's, and [`Problem::TooMany`] pages.
pub fn summarise(reader: &mut TraceReader) -> Result<Summary, TraceError> {
    let mut summary = Summary::default();
    while let Some(request) = reader.advance()? {
        summary.add(&request).map_err(|problem| reader.input.wrong(problem))?;
    }
    Ok(summary)
}
