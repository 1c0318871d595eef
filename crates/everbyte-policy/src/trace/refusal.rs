//! Facts about a beginning that is of no format, or of several, and about the choice of one.

use std::fmt;

use super::content::Content;
use super::format::Format;
use super::problem::Problem;

/// Reason of a trace's format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The caller named it.
    Named,
    /// A line names the fields or the version, and so many lines of the beginning are of the format.
    Heading {
        /// Lines that were tried.
        lines: u64,
    },
    /// So many lines of the beginning are of this format, and not all are of another one.
    Lines {
        /// Lines that were tried.
        lines: u64,
    },
    /// So many records of the beginning are of this format, and not all are of another one.
    Records {
        /// Records that were tried.
        records: u64,
    },
    /// The header has the format's number.
    Header,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named => f.write_str("named by the caller"),
            Self::Heading { lines } => {
                write!(f, "a heading names it, and it fits all {lines} sampled lines")
            }
            Self::Lines { lines } => {
                write!(f, "it alone of the known formats fits all {lines} sampled lines")
            }
            Self::Records { records } => {
                write!(f, "it alone of the known formats fits all {records} sampled records")
            }
            Self::Header => f.write_str("the header has its number"),
        }
    }
}

/// A format that fits the beginning of a trace up to a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NearFormat {
    /// The format.
    pub format: Format,
    /// Number of the line that is not of this format.
    pub line: u64,
    /// The mistake in it.
    pub problem: Problem,
}

/// A beginning of unknown format.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Refusal {
    /// The trace.
    pub trace: String,
    /// Its first line, shortened.
    pub begin: String,
    /// Formats that fit all of the beginning: several, or none.
    pub candidates: Vec<Format>,
    /// Possible formats of these lines that are not chosen, with the reason.
    pub doubtful: Vec<(Format, &'static str)>,
    /// Formats that fit a part of the beginning.
    pub near: Vec<NearFormat>,
    /// A control character in a line, with the line's number.
    pub mistake: Option<(u64, Problem)>,
    /// Content that the bytes may have.
    pub content: Option<Content>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, begin, candidates, doubtful, near, mistake, content } = self;
        if candidates.len() > 1 {
            let names: Vec<&str> = candidates.iter().map(|format| format.name()).collect();
            let names = names.join(", ");
            write!(
                f,
                "{trace}: the beginning fits several formats: {names}; it begins with {begin:?}; name the format"
            )?;
        } else if let Some((line, problem)) = mistake {
            write!(f, "{trace}, line {line}: {problem}; it begins with {begin:?}")?;
        } else if let ([one], []) = (near.as_slice(), doubtful.as_slice()) {
            let NearFormat { format, line, problem } = one;
            write!(
                f,
                "{trace}, line {line}: {problem}: not of the format {format}, and the beginning looks like \
                 none of the known formats, it begins with {begin:?}"
            )?;
        } else {
            write!(f, "{trace}: looks like none of the known formats, it begins with {begin:?}")?;
            for NearFormat { format, line, problem } in near {
                write!(f, "; {format} does not fit line {line}: {problem}")?;
            }
        }
        for (format, doubt) in doubtful {
            write!(f, "; {format} is possible, but {doubt}")?;
        }
        if let Some(content) = content {
            write!(f, "; it may be {content}")?;
        }
        if candidates.is_empty() {
            let names = Format::names();
            write!(f, "; name the format if it is one of: {names}; or name its columns")?;
        }
        Ok(())
    }
}
