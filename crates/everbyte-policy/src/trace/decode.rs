//! What every format's reader is given, a line or a record, and what it makes of it.

use super::Request;
use super::error::Problem;
use super::files::FileNames;

/// What a line or record turned out to be.
pub(crate) enum Item {
    /// A request.
    Request(Request),
    /// Requests, none if they are told at the end.
    Requests(Vec<Request>),
    /// Something that asks for nothing, such as a header.
    Nothing,
    /// The end of what is to be read.
    End,
}

/// A format made of lines.
pub(crate) trait LineFormat {
    /// What `line` says. Lines are never empty.
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem>;

    /// After the last line: requests that had to wait for it.
    fn rest(&mut self, files: &mut FileNames) -> Result<Vec<Request>, Problem> {
        let _ = files;
        Ok(Vec::new())
    }
}

/// A format made of records of one length.
pub(crate) trait RecordFormat {
    /// What `record` says; it has the length that the format has.
    fn item(&mut self, record: &[u8], files: &mut FileNames) -> Result<Item, Problem>;
}
