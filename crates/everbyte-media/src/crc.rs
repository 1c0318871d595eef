//! CRC-32C of a few hundred bytes: the checksum of a log record.
//!
//! Owns nothing. The crate `crc32c` works on three runs of a long buffer concurrently. To find that a buffer
//! is not long, it takes more instructions than the sum of a line.

use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};

use crate::units::LINE;

/// Length in bytes from which on several concurrent runs are faster than one.
const RUNS_BYTES: usize = 768;

/// The CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    if bytes.len() < RUNS_BYTES && is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the extension.
        unsafe { sum_one_run(bytes) }
    } else {
        crc32c::crc32c(bytes)
    }
}

/// The same, word after word. Aligned bytes were stored by the same words: a load that spans two stores waits
/// until both have left the processor, behind all streams.
#[target_feature(enable = "sse4.2")]
fn sum_one_run(bytes: &[u8]) -> u32 {
    let add_word = |crc, word: &[u8; 8]| _mm_crc32_u64(crc, u64::from_le_bytes(*word));
    let mut crc = u64::from(u32::MAX);
    let mut rest = bytes;
    if bytes.as_ptr().addr() % 8 == 4
        && let Some((half, after)) = bytes.split_first_chunk()
    {
        crc = _mm_crc32_u32(u32::MAX, u32::from_le_bytes(*half)).into();
        rest = after;
    }
    let (lines, rest) = rest.as_chunks::<LINE>();
    for line in lines {
        crc = line.as_chunks().0.iter().fold(crc, add_word);
    }
    let (words, rest) = rest.as_chunks();
    crc = words.iter().fold(crc, add_word);
    #[expect(clippy::cast_possible_truncation, reason = "the instruction clears the upper half")]
    let crc = crc as u32;
    !rest.iter().fold(crc, |crc, &byte| _mm_crc32_u8(crc, byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_matches_reference_crate() {
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(RUNS_BYTES + 9).collect();
        for start in [0, 1, 4] {
            for len in (0..200).chain(RUNS_BYTES - 9..=RUNS_BYTES + 5) {
                let bytes = &bytes[start..start + len];
                assert_eq!(crc32c(bytes), crc32c::crc32c(bytes), "{start}+{len}");
            }
        }
        assert_eq!(crc32c(b"123456789"), 0xe306_9283, "the check value of CRC-32C");
    }
}
