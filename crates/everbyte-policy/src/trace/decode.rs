//! The input of every format's reader, a line or a record, and its result.

use super::error::Problem;
use super::files::FileNames;
use super::objects::Object;
use super::skipped::SkippedKind;
use super::{Request, RequestOp};

/// Meaning of a line or record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    /// A request.
    Request(Request),
    /// An object that is read, written or deleted.
    Object(Object),
    /// An item whose request follows at the end.
    Kept,
    /// An item without a request, such as a header.
    Skipped(SkippedKind),
}

impl Item {
    /// Returns the meaning of a request for an object, which may have no bytes or be counted as none.
    pub(crate) fn of_object(object: Object) -> Self {
        if object.times == 0 {
            return Self::Skipped(SkippedKind::NoData);
        }
        // What is deleted needs no size.
        if object.bytes == 0 && object.op != RequestOp::Trim {
            return Self::Skipped(SkippedKind::EmptyObject);
        }
        Self::Object(Object { bytes: object.bytes.max(1), ..object })
    }
}

/// A request, and the number of its line.
pub(crate) type Numbered = (u64, Request);

/// The requests that had to wait for the last line.
#[derive(Default)]
pub(crate) struct Rest {
    pub(crate) requests: Vec<Numbered>,
    /// Lines that were kept and turned out to have no request: [`SkippedKind::NoPosition`].
    pub(crate) skipped: u64,
}

/// A format made of lines.
pub(crate) trait LineFormat {
    /// Decodes all of `line`, which is neither empty nor a comment.
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
    fn rest(&mut self, files: &mut FileNames) -> Result<Rest, (u64, Problem)> {
        let _ = files;
        Ok(Rest::default())
    }
}

/// A format made of records of one length.
pub(crate) trait RecordFormat {
    /// Decodes `record`, which has the length that the format has.
    fn item(&mut self, record: &[u8], files: &mut FileNames) -> Result<Item, Problem>;
}
