//! Addresses of a medium, and their lines.

use everbyte_media::LINE_U64;

/// An address or a length as an index. The conversion never fails.
#[allow(clippy::cast_possible_truncation, reason = "both are 64 bits wide")]
pub(crate) const fn index(value: u64) -> usize {
    const { assert!(usize::BITS == u64::BITS) }
    value as usize
}

/// The part of `at .. at + len` in `line`: start in the line, and length.
pub(crate) fn overlap(line: u64, at: u64, len: usize) -> (usize, usize) {
    let start = at.max(line * LINE_U64);
    let end = (at + len as u64).min((line + 1) * LINE_U64);
    (index(start - line * LINE_U64), index(end - start))
}

/// Lines touched by `at .. at + len`; `len` is not 0.
pub(crate) fn lines_of(at: u64, len: u64) -> std::ops::RangeInclusive<u64> {
    at / LINE_U64..=(at + len - 1) / LINE_U64
}
