//! Times of inodes: the range of ext4 in a word.
//!
//! A word counts nanoseconds since 1970 modulo 2^64. The range has less than 2^64 nanoseconds, so no two times share a
//! word. Words outside of the range are damage.

use std::ops::RangeInclusive;

const SECOND_NS: i128 = 1_000_000_000;

/// Times that an inode can have, in nanoseconds since 1970: the range of ext4, from December 1901 to May 2446.
pub const TIME_RANGE_NS: RangeInclusive<i128> =
    -(1 << 31) * SECOND_NS..=((1 << 34) - (1 << 31)) * SECOND_NS - 1;

const WORDS: i128 = 1 << 64;
const _: () = assert!(*TIME_RANGE_NS.end() - *TIME_RANGE_NS.start() < WORDS);

/// The word of a time in nanoseconds since 1970; `None` outside of the range.
pub(crate) fn encode_time(ns: i128) -> Option<u64> {
    TIME_RANGE_NS.contains(&ns).then(|| u64::try_from(ns.rem_euclid(WORDS)).ok()).flatten()
}

/// The time of a word; `None` if no time has this word.
pub(crate) fn decode_time(word: u64) -> Option<i128> {
    let ns = i128::from(word);
    [ns, ns - WORDS].into_iter().find(|ns| TIME_RANGE_NS.contains(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_encoding_round_trips() {
        let (first, last) = (*TIME_RANGE_NS.start(), *TIME_RANGE_NS.end());
        for ns in [first, first + 1, -SECOND_NS, -1, 0, 1, i128::from(i64::MAX), last - 1, last] {
            assert_eq!(decode_time(encode_time(ns).unwrap()), Some(ns));
        }
        assert_eq!(encode_time(5), Some(5), "times after 1970 are stored as they are");
        assert_eq!([first - 1, last + 1].map(encode_time), [None; 2]);
    }

    #[test]
    fn time_word_out_of_range_is_rejected() {
        let last = encode_time(*TIME_RANGE_NS.end()).unwrap();
        let first = encode_time(*TIME_RANGE_NS.start()).unwrap();
        assert!(last < first);
        assert_eq!([last + 1, first - 1].map(decode_time), [None; 2]);
    }
}
