//! The source of a trace: opened, decompressed, and handed out by lines or records.
//!
//! Invariants: no line is longer than [`LINE_BYTES_MAX`] in memory; the number of the current line
//! or record is known whenever something fails. zstd is recognised by its first bytes.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::ops::Range;
use std::path::Path;

use super::error::{Place, Problem, TraceError};

/// Most bytes of a line.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Bytes of the beginning from which the format is detected.
const HEAD_BYTES: usize = 64 << 10;
/// Bytes read at once: more than a line and the beginning.
const BUFFER_BYTES: usize = 256 << 10;
/// The mark with which some programs begin a UTF-8 text.
pub(crate) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
/// First bytes of a zstd frame (RFC 8878, section 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

type Source = Box<dyn Read + Send>;

/// The source of a trace, decompressed.
pub(crate) struct Input {
    source: Source,
    place: Place,
    buffer: Vec<u8>,
    /// The bytes of the buffer that were read and not handed out.
    rest: Range<usize>,
    /// The source has no more.
    ended: bool,
    /// Bytes of lines that are no UTF-8 are replaced.
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
        match File::open(path) {
            Ok(file) => Self::new(&name, file),
            Err(source) => Err(TraceError::Read { place: beginning(&name), source }),
        }
    }

    /// Reads `source`, decompressed if it is a zstd frame.
    pub(crate) fn new(name: &str, source: impl Read + Send + 'static) -> Result<Self, TraceError> {
        match decompressed(Box::new(source)) {
            Ok(source) => Ok(Self {
                source,
                place: beginning(name),
                buffer: vec![0; BUFFER_BYTES],
                rest: 0..0,
                ended: false,
                lossily: false,
                mended: String::new(),
            }),
            Err(source) => Err(TraceError::Read { place: beginning(name), source }),
        }
    }

    /// Returns the place of the line or record that was handed out last.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the beginning, which stays to be read, with the byte order mark of a text.
    pub(crate) fn head(&mut self) -> Result<Vec<u8>, TraceError> {
        while self.rest.len() < HEAD_BYTES && self.fill()? {}
        let head = &self.buffer[self.rest.clone()];
        Ok(head[..head.len().min(HEAD_BYTES)].to_vec())
    }

    /// Prepares to read lines: passes over a byte order mark. Bytes that are no UTF-8 become U+FFFD if `lossily`, else
    /// their line is an error.
    pub(crate) fn begin_text(&mut self, lossily: bool) {
        if self.buffer[self.rest.clone()].starts_with(BYTE_ORDER_MARK) {
            self.rest.start += BYTE_ORDER_MARK.len();
        }
        self.lossily = lossily;
    }

    /// Returns the next line without its end; `None` after the last.
    pub(crate) fn line(&mut self) -> Result<Option<&str>, TraceError> {
        self.place.number += 1;
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
        self.rest.start += len;
        let line = &self.buffer[start..start + len];
        match std::str::from_utf8(line) {
            Ok(line) => Ok(Some(without_end(line))),
            Err(_) if self.lossily => {
                self.mended = String::from_utf8_lossy(line).into_owned();
                Ok(Some(without_end(&self.mended)))
            }
            Err(_) => Err(self.wrong(Problem::NotText)),
        }
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

/// Returns true if a trace of this path is standard input, whatever files there are.
pub(crate) fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns the line without white space at its end, which mostly is one newline.
#[inline]
fn without_end(line: &str) -> &str {
    match line.as_bytes() {
        [.., b'!'..=b'~', b'\n'] => &line[..line.len() - 1],
        _ => line.trim_end(),
    }
}

/// Returns the source, decompressed if it is a zstd frame.
fn decompressed(mut source: Source) -> io::Result<Source> {
    let mut head = Vec::new();
    (&mut source).take(ZSTD_MAGIC.len() as u64).read_to_end(&mut head)?;
    let is_zstd = head == ZSTD_MAGIC;
    let whole = Cursor::new(head).chain(source);
    if !is_zstd {
        return Ok(Box::new(whole));
    }
    Ok(Box::new(zstd::stream::read::Decoder::new(whole)?))
}

fn beginning(name: &str) -> Place {
    Place { trace: name.to_owned(), number: 0, is_binary: false }
}
