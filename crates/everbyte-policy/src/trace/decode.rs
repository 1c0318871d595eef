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
        // A deletion needs no size.
        if object.bytes == 0 && object.op != RequestOp::Trim {
            return Self::Skipped(SkippedKind::EmptyObject);
        }
        Self::Object(Object { bytes: object.bytes.max(1), ..object })
    }
}

/// A request, and the number of its line.
pub(crate) type NumberedRequest = (u64, Request);

/// The requests that had to wait for the last line.
#[derive(Default)]
pub(crate) struct Rest {
    pub(crate) requests: Vec<NumberedRequest>,
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

    /// Reports the number of a line just before its [`Item::Kept`].
    fn kept_line(&mut self, number: u64) {
        let _ = number;
    }

    /// Returns the requests kept until the last line, each with its line number.
    ///
    /// # Errors
    /// The problem, and the number of its line.
    fn rest(&mut self, files: &mut FileNames) -> Result<Rest, (u64, Problem)> {
        let _ = files;
        Ok(Rest::default())
    }
}

/// A format made of records of one length.
pub(crate) trait RecordFormat {
    /// Decodes `record`, whose length is the format's.
    fn item(&mut self, record: &[u8], files: &mut FileNames) -> Result<Item, Problem>;
}
