//! CRC-32C of few bytes, such as seal persistent structures.
//!
//! The crate `crc32c` is made for long ranges, which it sums in three streams at once; for a line or two its
//! preparations cost more than the sum. The sums are the same.

use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};

/// Bytes from which on three streams are faster.
const LONG_BYTES: usize = 512;

/// The CRC-32C of `bytes`.
#[inline]
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// The CRC-32C of `bytes` behind those whose sum is `before`.
#[inline]
#[must_use]
pub fn crc32c_append(before: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < LONG_BYTES && is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions.
        return unsafe { append_short(before, bytes) };
    }
    ::crc32c::crc32c_append(before, bytes)
}

#[target_feature(enable = "sse4.2")]
fn append_short(before: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks();
    let (halves, rest) = rest.as_chunks();
    let long = words
        .iter()
        .fold(u64::from(!before), |sum, word| _mm_crc32_u64(sum, u64::from_le_bytes(*word)));
    let sum = u32::try_from(long).expect("the instruction clears the upper half");
    let sum = halves.iter().fold(sum, |sum, half| _mm_crc32_u32(sum, u32::from_le_bytes(*half)));
    !rest.iter().fold(sum, |sum, &byte| _mm_crc32_u8(sum, byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_crate_for_every_length_and_place() {
        let bytes: Vec<u8> = (0..1100_u32).map(|n| (n * 37 % 251).to_le_bytes()[0]).collect();
        for len in (0..140).chain([LONG_BYTES - 1, LONG_BYTES, 1024]) {
            for start in 0..9 {
                let part = &bytes[start..start + len];
                assert_eq!(crc32c(part), ::crc32c::crc32c(part), "{len} bytes from {start}");
                let (head, tail) = part.split_at(len / 3);
                assert_eq!(crc32c_append(crc32c(head), tail), ::crc32c::crc32c(part));
            }
        }
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
