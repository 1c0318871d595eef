//! The source of a trace: opened, decompressed, and handed out by lines or records.
//!
//! Invariants: no line is longer than [`LINE_BYTES_MAX`] in memory; the number of the current line
//! or record is known whenever something fails; a line has no carriage return and no NUL inside.

use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use super::content::Content;
use super::decompress::{OpenedSource, Source, open};
use super::error::{Place, Problem, TraceError};

/// Most bytes of a line.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Bytes of the beginning from which the format is detected.
const HEAD_BYTES: usize = 64 << 10;
/// Bytes of one read: more than a line and the beginning.
const BUFFER_BYTES: usize = 256 << 10;
/// The mark with which some programs begin a UTF-8 text.
pub(crate) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The beginning of a trace.
pub(crate) struct Sample {
    /// The bytes, with the byte order mark of a text.
    pub(crate) head: Vec<u8>,
    /// No more bytes follow.
    pub(crate) is_whole: bool,
    /// Bytes of the whole trace, if they are known before it was read.
    pub(crate) bytes: Option<u64>,
}

/// The source of a trace, decompressed.
pub(crate) struct Input {
    source: Source,
    place: Place,
    /// Bytes of the whole trace, if they are known.
    bytes: Option<u64>,
    buffer: Vec<u8>,
    /// The bytes of the buffer that were read and not handed out.
    rest: Range<usize>,
    /// The source has no more.
    ended: bool,
    /// Bytes outside UTF-8 in lines are replaced.
    lossily: bool,
    /// The last line in which some were.
    mended: String,
}

impl Input {
    /// Opens the trace at `path`; `-` is standard input.
    pub(crate) fn open(path: &Path) -> Result<Self, TraceError> {
        if is_standard_input(path) {
            return Self::new("standard input", io::stdin());
        }
        let name = path.display().to_string();
        let failed = |source| TraceError::Read { place: beginning(&name), source };
        // Only a regular file has a length. It judges whether records end with the file.
        let (file, facts) = everbyte_path::open_input(path).map_err(failed)?;
        Self::sized(&name, Box::new(file), facts.is_file().then_some(facts.len()))
    }

    /// Reads `source`, decompressed if it is compressed.
    pub(crate) fn new(name: &str, source: impl Read + Send + 'static) -> Result<Self, TraceError> {
        Self::sized(name, Box::new(source), None)
    }

    fn sized(name: &str, source: Source, bytes: Option<u64>) -> Result<Self, TraceError> {
        let failed = |source| TraceError::Read { place: beginning(name), source };
        let (source, bytes, is_unpacked) = match open(source).map_err(failed)? {
            OpenedSource::Plain(source) => (source, bytes, false),
            OpenedSource::Unpacked(source) => (source, None, true),
            OpenedSource::Foreign(content) => return Err(foreign(name, content)),
        };
        // A buffer larger than the longest line: a line never needs a second buffer.
        let mut input = Self {
            source,
            place: beginning(name),
            bytes,
            buffer: vec![0; BUFFER_BYTES],
            rest: 0..0,
            ended: false,
            lossily: false,
            mended: String::new(),
        };
        match Content::surely(&input.sample()?.head, is_unpacked) {
            Some(content) => Err(foreign(name, content)),
            None => Ok(input),
        }
    }

    /// Returns the place of the line or record that was handed out last.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the beginning, which stays to be read.
    pub(crate) fn sample(&mut self) -> Result<Sample, TraceError> {
        // Pipes return short reads, and the sample must not depend on their pace.
        while self.rest.len() < HEAD_BYTES && self.fill()? {}
        let read = &self.buffer[self.rest.clone()];
        let head = read[..read.len().min(HEAD_BYTES)].to_vec();
        let is_whole = self.ended && head.len() == read.len();
        Ok(Sample { head, is_whole, bytes: self.bytes })
    }

    /// Prepares to read lines: skips a byte order mark. Bytes outside UTF-8 become U+FFFD if
    /// `lossily`, else their line is an error.
    pub(crate) fn begin_text(&mut self, lossily: bool) {
        if self.buffer[self.rest.clone()].starts_with(BYTE_ORDER_MARK) {
            self.rest.start += BYTE_ORDER_MARK.len();
        }
        self.lossily = lossily;
    }

    /// Returns the next line without its end; `None` after the last.
    pub(crate) fn line(&mut self) -> Result<Option<&str>, TraceError> {
        self.place.number += 1;
        // Bytes already searched are not searched again after the next read.
        let mut searched = 0;
        let len = loop {
            let rest = &self.buffer[self.rest.clone()];
            if let Some(end) = memchr::memchr(b'\n', &rest[searched..]) {
                break searched + end + 1;
            }
            searched = rest.len();
            if searched > LINE_BYTES_MAX || !self.fill()? {
                break searched;
            }
        };
        if len == 0 {
            return Ok(None);
        }
        if len > LINE_BYTES_MAX {
            return Err(self.wrong(Problem::LineTooLong { max: LINE_BYTES_MAX }));
        }
        let start = self.rest.start;
        // Before the checks: after an error the place names this line.
        self.rest.start += len;
        let line = &self.buffer[start..start + len];
        if let Some(problem) = control_character(line) {
            return Err(self.wrong(problem));
        }
        match std::str::from_utf8(line) {
            Ok(line) => Ok(Some(without_end(line))),
            // The kernel cuts names of processes within a character, which is no damage.
            Err(_) if self.lossily => {
                self.mended = String::from_utf8_lossy(line).into_owned();
                Ok(Some(without_end(&self.mended)))
            }
            Err(_) => Err(self.wrong(Problem::NotText)),
        }
    }

    /// Passes over `len` bytes of the beginning, which was read.
    pub(crate) fn skip(&mut self, len: usize) {
        self.rest.start += len.min(self.rest.len());
    }

    /// Returns the next record, of `len` bytes; `None` if nothing is left.
    pub(crate) fn record(&mut self, len: usize) -> Result<Option<&[u8]>, TraceError> {
        self.place.is_binary = true;
        self.place.number += 1;
        while self.rest.len() < len {
            if self.fill()? {
                continue;
            }
            return match self.rest.len() {
                0 => Ok(None),
                // A trace that ends within a record was cut off. Its last request must not vanish
                // silently.
                have => Err(self.wrong(Problem::CutOff { have, want: len })),
            };
        }
        let start = self.rest.start;
        self.rest.start += len;
        Ok(Some(&self.buffer[start..start + len]))
    }

    /// Makes a line or record the current one again, once all were handed out.
    pub(crate) fn return_to(&mut self, number: u64) {
        self.place.number = number;
    }

    /// Reads more behind the rest, which is less than the buffer. Returns false at the end.
    fn fill(&mut self) -> Result<bool, TraceError> {
        if self.ended {
            return Ok(false);
        }
        // The rest moves to the front, so that lines and records lie in one piece.
        self.buffer.copy_within(self.rest.clone(), 0);
        self.rest = 0..self.rest.len();
        loop {
            match self.source.read(&mut self.buffer[self.rest.end..]) {
                Ok(more) => {
                    self.rest.end += more;
                    self.ended = more == 0;
                    return Ok(more > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(TraceError::Read { place: self.place.clone(), source });
                }
            }
        }
    }

    /// Returns the error that the current line or record is wrong.
    pub(crate) fn wrong(&self, problem: Problem) -> TraceError {
        TraceError::Wrong { place: self.place.clone(), problem }
    }

    /// Returns the error that line or record `number` is wrong.
    pub(crate) fn wrong_at(&self, number: u64, problem: Problem) -> TraceError {
        TraceError::Wrong { place: Place { number, ..self.place.clone() }, problem }
    }
}

/// Returns true if a trace of this path is standard input, even if a file has this name.
pub(crate) fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns the line without white space at its end, which mostly is one newline.
#[inline]
fn without_end(line: &str) -> &str {
    match line.as_bytes() {
        // The usual line ends in a letter and a line feed, and needs no search for white space.
        [.., b'!'..=b'~', b'\n'] => &line[..line.len() - 1],
        _ => line.trim_end(),
    }
}

/// Returns the problem of a line with a carriage return or a NUL before its end.
#[inline]
pub(crate) fn control_character(line: &[u8]) -> Option<Problem> {
    let inside = line.strip_suffix(b"\n").unwrap_or(line);
    // One carriage return belongs to a line end of Windows. Any other one hides text on a terminal.
    let inside = inside.strip_suffix(b"\r").unwrap_or(inside);
    let at = memchr::memchr2(b'\r', 0, inside)?;
    Some(Problem::ControlCharacter { byte: inside[at], column: at + 1 })
}

fn foreign(name: &str, content: Content) -> TraceError {
    TraceError::Foreign { trace: name.to_owned(), content }
}

fn beginning(name: &str) -> Place {
    Place { trace: name.to_owned(), number: 0, is_binary: false }
}
