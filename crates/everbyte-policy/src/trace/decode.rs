//! The input of every format's reader, a line or a record, and its result.

use super::Request;
use super::error::Problem;
use super::files::FileNames;

/// Meaning of a line or record.
pub(crate) enum Item {
    /// A request.
    Request(Request),
    /// Requests.
    Requests(Vec<Request>),
    /// An item whose request follows at the end.
    Kept,
    /// An item without a request, such as a header.
    Nothing,
    /// The end of the trace.
    End,
}

/// A request, and the number of its line.
pub(crate) type Numbered = (u64, Request);

/// A format made of lines.
pub(crate) trait LineFormat {
    /// Decodes `line`, which is never empty.
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem>;

    /// Returns true if its lines have text that may be cut off within a character.
    fn may_lack_bytes(&self) -> bool {
        false
    }

    /// Tells the number of the line that was [`Item::Kept`] just now.
    fn kept_line(&mut self, number: u64) {
        let _ = number;
    }

    /// Returns the requests that had to wait for the last line, each with the number of its own.
    ///
    /// # Errors
    /// What is wrong, and the number of the line where it is.
    fn rest(&mut self, files: &mut FileNames) -> Result<Vec<Numbered>, (u64, Problem)> {
        let _ = files;
        Ok(Vec::new())
    }
}

/// A format made of records of one length.
pub(crate) trait RecordFormat {
    /// Decodes `record`, which has the length that the format has.
    fn item(&mut self, record: &[u8], files: &mut FileNames) -> Result<Item, Problem>;
}
