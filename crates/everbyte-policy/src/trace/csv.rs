//! Our own format: lines of `time_ns,op,file,offset,len`.
//!
//! `op` is one letter: R read, W write, F flush, T trim, Z zero. `file` is any text without commas
//! and control characters; offset and length are bytes, and say nothing in a flush. Lines
//! with the names of the fields may be there, at the beginning and where files were joined. The writer escapes commas, `%`, white space and control
//! characters of names as URIs do, with `%`.

use std::io::{self, Write};

use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{Commas, end, next, number};
use super::files::FileNames;
use super::skipped::SkippedKind;
use super::{Request, RequestOp};

/// The first line of a trace.
pub(crate) const HEADER: &str = "time_ns,op,file,offset,len";

/// The reader of the format.
pub(crate) struct Csv;

impl LineFormat for Csv {
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        if line == HEADER {
            return Ok(Item::Skipped(SkippedKind::Heading));
        }
        let mut fields = Commas::of(line);
        let time_ns = number(next(&mut fields, "time")?, "time")?;
        let op = operation(next(&mut fields, "operation")?)?;
        let file = files.number(next(&mut fields, "file")?)?;
        let offset = number(next(&mut fields, "offset")?, "offset")?;
        let len = number(next(&mut fields, "length")?, "length")?;
        end(&mut fields, "five fields in all")?;
        Ok(Item::Request(Request { time_ns, op, file, offset, len }))
    }
}

fn operation(text: &str) -> Result<RequestOp, Problem> {
    Ok(match text {
        "R" => RequestOp::Read,
        "W" => RequestOp::Write,
        "F" => RequestOp::Flush,
        "T" => RequestOp::Trim,
        "Z" => RequestOp::Zero,
        other => return Err(Problem::field("operation", other, "R, W, F, T or Z")),
    })
}

/// Returns true if a name must have the bytes of `letter` in escaped form. Readers remove white
/// space of any script.
fn is_escaped(letter: char) -> bool {
    matches!(letter, ',' | '%') || letter.is_whitespace() || letter.is_control()
}

/// Writes requests in the project's own format.
#[derive(Debug)]
pub struct CsvWriter<W: Write> {
    out: W,
    line: Vec<u8>,
}

impl<W: Write> CsvWriter<W> {
    /// Writes the names of the fields.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W) -> io::Result<Self> {
        writeln!(out, "{HEADER}")?;
        Ok(Self { out, line: Vec::new() })
    }

    /// Writes a request to the file `name`; [`Request::file`] is ignored.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write(&mut self, request: &Request, name: &str) -> io::Result<()> {
        let letter = match request.op {
            RequestOp::Read => 'R',
            RequestOp::Write => 'W',
            RequestOp::Flush => 'F',
            RequestOp::Trim => 'T',
            RequestOp::Zero => 'Z',
        };
        self.line.clear();
        write!(self.line, "{},{letter},", request.time_ns)?;
        for letter in name.chars() {
            let mut bytes = [0; 4];
            for byte in letter.encode_utf8(&mut bytes).bytes() {
                match is_escaped(letter) {
                    true => write!(self.line, "%{byte:02X}")?,
                    false => self.line.push(byte),
                }
            }
        }
        writeln!(self.line, ",{},{}", request.offset, request.len)?;
        self.out.write_all(&self.line)
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// Those of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Flushes the output and returns it.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}
