//! fio's I/O logs, versions 2 and 3.
//!
//! A first line `fio version N iolog`, then lines of `file action [offset length]`, which have the
//! time in us before them in version 3. Files are added, opened and closed; requests are read,
//! write, trim, sync, datasync and sync_file_range. In version 2 time passes in `wait`, whose
//! offset is the time in us. Source: fio's documentation, "Trace file format v2" and "v3", and
//! `iolog.c` for the unit of time.

use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{end, next, number, scaled};
use super::files::FileNames;
use super::skipped::SkippedKind;
use super::{Request, RequestOp};

/// Value before the first line, which has the version.
const NO_VERSION: u8 = 0;
/// The beginning of the first line, and of others where logs were joined.
pub(crate) const VERSION: &str = "fio version";

/// Lines of fio's I/O logs, versions 2 and 3.
#[derive(Default)]
pub(crate) struct Fio {
    version: u8,
    /// In version 2, the sum of the waits, in us.
    waited_us: u64,
}

impl LineFormat for Fio {
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        // Joined logs repeat their heading, and can change the version.
        if self.version == NO_VERSION || line.starts_with(VERSION) {
            self.version = match line.trim() {
                "fio version 2 iolog" => 2,
                "fio version 3 iolog" => 3,
                other => {
                    let wanted = "\"fio version 2 iolog\" or \"fio version 3 iolog\"";
                    return Err(Problem::field("first line", other, wanted));
                }
            };
            return Ok(Item::Skipped(SkippedKind::Heading));
        }
        let mut fields = line.split_whitespace();
        let time_us = match self.version {
            2 => self.waited_us,
            _ => number(next(&mut fields, "time")?, "time")?,
        };
        let name = next(&mut fields, "file")?;
        let op = match next(&mut fields, "action")? {
            "read" => RequestOp::Read,
            "write" => RequestOp::Write,
            "trim" => RequestOp::Trim,
            "sync" | "datasync" | "sync_file_range" => RequestOp::Flush,
            "wait" => {
                self.wait(number(next(&mut fields, "time to wait")?, "time to wait")?)?;
                // fio writes a length here, which has no meaning for a wait.
                if let Some(unused) = fields.next() {
                    number(unused, "length")?;
                }
                end(&mut fields, "four fields in all")?;
                return Ok(Item::Skipped(SkippedKind::Wait));
            }
            "add" | "open" | "close" => {
                end(&mut fields, "no field behind the action")?;
                return Ok(Item::Skipped(SkippedKind::FileAction));
            }
            other => {
                let wanted = "add, open, close, wait, read, write, trim, sync or datasync";
                return Err(Problem::field("action", other, wanted));
            }
        };
        let mut bytes = |field| match (fields.next(), op) {
            (None, RequestOp::Flush) => Ok(0),
            (None, _) => Err(Problem::Missing { field }),
            (Some(text), _) => number(text, field),
        };
        let (offset, len) = (bytes("offset")?, bytes("length")?);
        end(&mut fields, "a length as the last field")?;
        let time_ns = scaled(time_us, 1000, "time")?;
        Ok(Item::Request(Request { time_ns, op, file: files.number(name)?, offset, len }))
    }
}

impl Fio {
    fn wait(&mut self, us: u64) -> Result<(), Problem> {
        let too_large = Problem::TooLarge { field: "time", value: us.to_string() };
        self.waited_us = self.waited_us.checked_add(us).ok_or(too_large)?;
        Ok(())
    }
}
