//! Lines and records without a request, counted by kind.

use std::fmt;

/// Kind of a line or record without a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SkippedKind {
    /// A line of white space.
    EmptyLine,
    /// A line that begins with `#`.
    Comment,
    /// A line that begins with `*`. It separates the parts of LIRS traces.
    Mark,
    /// The names of the fields, or the version of the format.
    Heading,
    /// An event other than a request, or another event of a request counted elsewhere.
    OtherEvent,
    /// A message of the recorder or of the kernel.
    Message,
    /// An event or request of zero bytes.
    NoData,
    /// A command that manages a zone.
    ZoneCommand,
    /// A command that is passed through to the device, or has no range in the trace.
    OtherCommand,
    /// A line of a summary.
    Summary,
    /// The name of an input file of the recorder.
    InputFile,
    /// The opening or closing of a file.
    FileAction,
    /// A pause.
    Wait,
    /// A call that failed.
    FailedCall,
    /// A call that neither reads, writes nor syncs.
    OtherCall,
    /// A call on a descriptor that no call uses at an explicit position.
    NoPosition,
    /// A request whose operation is blank, because the device did not answer.
    NoAnswer,
    /// An object of zero bytes.
    EmptyObject,
    /// An object larger than the limit of a request.
    LargeObject,
}

/// All kinds and their names, in the order of [`SkippedKind`].
const KINDS: [(SkippedKind, &str); 19] = [
    (SkippedKind::EmptyLine, "empty lines"),
    (SkippedKind::Comment, "comments"),
    (SkippedKind::Mark, "marks"),
    (SkippedKind::Heading, "headings"),
    (SkippedKind::OtherEvent, "other events"),
    (SkippedKind::Message, "messages"),
    (SkippedKind::NoData, "events without data"),
    (SkippedKind::ZoneCommand, "zone commands"),
    (SkippedKind::OtherCommand, "other commands"),
    (SkippedKind::Summary, "summary lines"),
    (SkippedKind::InputFile, "input files"),
    (SkippedKind::FileAction, "file actions"),
    (SkippedKind::Wait, "waits"),
    (SkippedKind::FailedCall, "failed calls"),
    (SkippedKind::OtherCall, "other calls"),
    (SkippedKind::NoPosition, "calls without a position"),
    (SkippedKind::NoAnswer, "requests without an answer"),
    (SkippedKind::EmptyObject, "empty objects"),
    (SkippedKind::LargeObject, "objects over the limit"),
];

/// Numbers of lines and records without a request. Displays those that are not 0.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SkippedCounts([u64; KINDS.len()]);

impl SkippedCounts {
    pub(crate) fn add(&mut self, kind: SkippedKind, count: u64) {
        self.0[kind as usize] += count;
    }

    /// Returns the number of one kind.
    #[must_use]
    pub fn of(&self, kind: SkippedKind) -> u64 {
        self.0[kind as usize]
    }

    /// Returns the number of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the kinds with a number above 0: their names and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        KINDS.iter().map(|&(kind, name)| (name, self.of(kind))).filter(|&(_, count)| count > 0)
    }
}

impl fmt::Display for SkippedCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.total() == 0 {
            return f.write_str("nothing");
        }
        for (place, (name, count)) in self.iter().enumerate() {
            write!(f, "{}{count} {name}", if place == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Returns the kind of a line that no text format has a meaning for: empty, a comment or a mark.
#[inline]
pub(crate) fn of_line(line: &str) -> Option<SkippedKind> {
    match line.as_bytes().first() {
        None => Some(SkippedKind::EmptyLine),
        Some(b'0'..=b'9') => None,
        Some(b'#') => Some(SkippedKind::Comment),
        Some(b'*') => Some(SkippedKind::Mark),
        Some(b' ' | b'\t') => match line.trim_start().as_bytes().first() {
            Some(b'#') => Some(SkippedKind::Comment),
            _ => None,
        },
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_stand_in_their_order() {
        for (place, (kind, _)) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
        }
    }

    #[test]
    fn counts_display_only_what_there_is() {
        let mut counts = SkippedCounts::default();
        assert_eq!(counts.to_string(), "nothing");
        counts.add(SkippedKind::Comment, 2);
        counts.add(SkippedKind::Heading, 1);
        assert_eq!(counts.to_string(), "2 comments, 1 headings");
        assert_eq!((counts.total(), counts.of(SkippedKind::Mark)), (3, 0));
    }
}
