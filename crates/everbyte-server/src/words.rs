//! Words of the command line and the control protocol, and their values.

use everbyte::block::{Checksum, Delta};

pub(crate) const DELTA_WORDS: [(&str, Delta); 3] =
    [("auto", Delta::Auto), ("on", Delta::On), ("off", Delta::Off)];

pub(crate) const CHECKSUM_WORDS: [(&str, Checksum); 2] =
    [("none", Checksum::None), ("crc32c", Checksum::Crc32c)];

/// The value of `word` in one of the lists above.
pub(crate) fn meaning<T: Copy>(words: &[(&str, T)], word: &str) -> Option<T> {
    words.iter().find(|(known, _)| *known == word).map(|(_, value)| *value)
}

/// The word for `value` in one of the lists above.
pub(crate) fn word<T: Copy + PartialEq>(words: &[(&'static str, T)], value: Option<T>) -> String {
    let found = words.iter().find(|(_, known)| Some(*known) == value);
    found.map_or("unknown", |(word, _)| word).to_owned()
}
