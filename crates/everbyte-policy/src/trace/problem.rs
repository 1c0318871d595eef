//! Mistakes in lines and records. Knows nothing of their places.

/// Most bytes of a wrong value that an error shows.
const SHOWN_BYTES: usize = 40;

/// A mistake in a line or record.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A field is missing.
    #[error("the {field} is missing")]
    Missing {
        /// Its name.
        field: &'static str,
    },
    /// A field has a wrong value.
    #[error("the {field} is {value:?}, not {wanted}")]
    Field {
        /// Its name.
        field: &'static str,
        /// Its text, shortened.
        value: String,
        /// Description of a right value.
        wanted: &'static str,
    },
    /// A number is below 0.
    #[error("the {field} is negative: {value}")]
    Negative {
        /// The field's name.
        field: &'static str,
        /// The number.
        value: String,
    },
    /// A number does not fit.
    #[error("the {field} is too large: {value}")]
    TooLarge {
        /// The field's name.
        field: &'static str,
        /// The number.
        value: String,
    },
    /// The request ends beyond the range of offsets.
    #[error("{len} bytes at {offset} end beyond the largest offset, 2^63 - 1")]
    BeyondEnd {
        /// First byte of the request.
        offset: u64,
        /// Bytes of it.
        len: u64,
    },
    /// The request is larger than the limit.
    #[error("a request of {len} bytes is larger than the limit of {max} bytes")]
    RequestTooLarge {
        /// Bytes of the request.
        len: u64,
        /// Most bytes of a request.
        max: u64,
    },
    /// The trace ends within a record.
    #[error("the trace ends after {have} of {want} bytes: it was cut off")]
    CutOff {
        /// Bytes present.
        have: usize,
        /// Bytes of a record.
        want: usize,
    },
    /// A line is too long.
    #[error("the line is longer than {max} bytes: is this text?")]
    LineTooLong {
        /// Most bytes of a line.
        max: usize,
    },
    /// A line has a control character.
    #[error("{} at byte {column} within the line: lines end with LF or CR LF", control_name(*byte))]
    ControlCharacter {
        /// The character.
        byte: u8,
        /// Its place in the line, from 1 on.
        column: usize,
    },
    /// A record does not distinguish reads from writes.
    #[error("operation {value} is neither a read nor a write")]
    NoOperation {
        /// Its number.
        value: u64,
    },
    /// A line is not UTF-8.
    #[error("the line is no UTF-8 text")]
    NotText,
    /// The record is not of the expected format.
    #[error("{found} where {wanted} should be: not this format")]
    WrongFormat {
        /// The text found, shortened.
        found: String,
        /// Description of the expected text.
        wanted: &'static str,
    },
    /// A trace differs between two reads.
    #[error("the trace changed while it was in use")]
    Changed,
    /// There are too many items.
    #[error("there are more than {max} {what}")]
    TooMany {
        /// Kind of the items.
        what: &'static str,
        /// The limit.
        max: u64,
    },
}

impl Problem {
    pub(crate) fn field(field: &'static str, value: &str, wanted: &'static str) -> Self {
        Self::Field { field, value: shortened(value), wanted }
    }
}

fn control_name(byte: u8) -> &'static str {
    if byte == 0 { "a NUL" } else { "a carriage return" }
}

/// Returns `text`, cut to the length that an error may show.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_BYTES) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
