//! The input of every format's reader, a line or a record, and its result.

use super::Request;
use super::error::Problem;
use super::files::FileNames;

/// Meaning of a line or record.
pub(crate) enum Item {
    /// A request.
    Request(Request),
    /// Requests; none if they follow at the end.
    Requests(Vec<Request>),
    /// An item without a request, such as a header.
    Nothing,
    /// The end of the trace.
    End,
}

/// A format made of lines.
pub(crate) trait LineFormat {
    /// Decodes `line`, which is never empty.
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem>;

    /// Returns true if its lines have text that may be cut off within a character.
    fn may_lack_bytes(&self) -> bool {
        false
    }

    /// Returns the requests that had to wait for the last line.
    fn rest(&mut self, files: &mut FileNames) -> Result<Vec<Request>, Problem> {
        let _ = files;
        Ok(Vec::new())
    }
}

/// A format made of records of one length.
pub(crate) trait RecordFormat {
    /// Decodes `record`, which has the length that the format has.
    fn item(&mut self, record: &[u8], files: &mut FileNames) -> Result<Item, Problem>;
}
