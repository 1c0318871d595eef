//! The source of a trace: opened, decompressed, and handed out by lines or records.
//!
//! Invariants: no line is longer than [`LINE_BYTES_MAX`] in memory; the number of the current line
//! or record is known whenever something fails. zstd is recognised by its first bytes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use super::error::{Place, Problem, TraceError};

/// Most bytes of a line.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Bytes of the beginning from which the format is detected.
const HEAD_BYTES: u64 = 64 << 10;
/// First bytes of a zstd frame (RFC 8878, section 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

type Source = Box<dyn BufRead + Send>;

/// The source of a trace, decompressed.
pub(crate) struct Input {
    source: Source,
    place: Place,
    line: Vec<u8>,
}

impl Input {
    /// Opens the trace at `path`; `-` is standard input.
    pub(crate) fn open(path: &Path) -> Result<Self, TraceError> {
        if path.as_os_str() == "-" {
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
        let decompressed = || {
            let (head, source) = peek(Box::new(BufReader::new(source)), ZSTD_MAGIC.len() as u64)?;
            if head != ZSTD_MAGIC {
                return Ok(source);
            }
            let decoder = zstd::stream::read::Decoder::with_buffer(source)?;
            Ok(Box::new(BufReader::new(decoder)) as Source)
        };
        match decompressed() {
            Ok(source) => Ok(Self { source, place: beginning(name), line: Vec::new() }),
            Err(source) => Err(TraceError::Read { place: beginning(name), source }),
        }
    }

    /// Returns the place of the line or record that was handed out last.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the beginning, which stays to be read.
    pub(crate) fn head(&mut self) -> Result<Vec<u8>, TraceError> {
        let source = std::mem::replace(&mut self.source, Box::new(io::empty()));
        let (head, source) = peek(source, HEAD_BYTES).map_err(|source| self.failed(source))?;
        self.source = source;
        Ok(head)
    }

    /// Returns the next line without its end; `None` after the last.
    pub(crate) fn line(&mut self) -> Result<Option<&str>, TraceError> {
        self.line.clear();
        self.place.number += 1;
        let mut limited = (&mut self.source).take(LINE_BYTES_MAX as u64 + 1);
        if let Err(source) = limited.read_until(b'\n', &mut self.line) {
            return Err(self.failed(source));
        }
        if self.line.is_empty() {
            return Ok(None);
        }
        if self.line.len() > LINE_BYTES_MAX {
            return Err(self.wrong(Problem::LineTooLong { max: LINE_BYTES_MAX }));
        }
        match std::str::from_utf8(&self.line) {
            Ok(line) => Ok(Some(line.trim_end())),
            Err(_) => Err(self.wrong(Problem::NotText)),
        }
    }

    /// Fills `record`; returns false if nothing is left.
    pub(crate) fn record(&mut self, record: &mut [u8]) -> Result<bool, TraceError> {
        self.place.is_binary = true;
        self.place.number += 1;
        let mut have = 0;
        while have < record.len() {
            match self.source.read(&mut record[have..]) {
                Ok(0) if have == 0 => return Ok(false),
                Ok(0) => return Err(self.wrong(Problem::CutOff { have, want: record.len() })),
                Ok(more) => have += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.failed(source)),
            }
        }
        Ok(true)
    }

    /// Returns the error that the current line or record is wrong.
    pub(crate) fn wrong(&self, problem: Problem) -> TraceError {
        TraceError::Wrong { place: self.place.clone(), problem }
    }

    fn failed(&self, source: io::Error) -> TraceError {
        TraceError::Read { place: self.place.clone(), source }
    }
}

fn beginning(name: &str) -> Place {
    Place { trace: name.to_owned(), number: 0, is_binary: false }
}

/// Returns the first bytes, at most `len`, and a source that begins with them.
fn peek(mut source: Source, len: u64) -> io::Result<(Vec<u8>, Source)> {
    let mut head = Vec::new();
    (&mut source).take(len).read_to_end(&mut head)?;
    let whole = Cursor::new(head.clone()).chain(source);
    Ok((head, Box::new(whole)))
}
