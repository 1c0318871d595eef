//! Ranges and blocks: cuts requests of any range into requests that a server takes. A server may
//! demand whole blocks and a largest size.

/// A range of bytes from `start` to `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Span {
    pub(crate) fn new(offset: u64, len: u64) -> Self {
        Self { start: offset, end: offset + len }
    }

    pub(crate) fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Returns the smallest range of whole blocks of `block` bytes around this range.
    pub(crate) fn outward(self, block: u64) -> Self {
        Self { start: self.start / block * block, end: self.end.div_ceil(block) * block }
    }

    /// Returns the largest range of whole blocks within this one; empty at its start if there is
    /// none.
    pub(crate) fn inward(self, block: u64) -> Self {
        let start = self.start.div_ceil(block) * block;
        let end = self.end / block * block;
        // Within one block `start` was rounded up and `end` down, so `start` may exceed `end`.
        if start < end { Self { start, end } } else { Self { start: self.start, end: self.start } }
    }

    /// Cuts the range into pieces of at most `piece_max` bytes at multiples of `unit`, which
    /// divides `piece_max`. No unit is torn between two pieces. Each piece is an offset and a
    /// length.
    pub(crate) fn pieces(self, piece_max: u32, unit: u64) -> impl Iterator<Item = (u64, u32)> {
        let mut at = self.start;
        std::iter::from_fn(move || {
            if at >= self.end {
                return None;
            }
            // The first piece ends at a multiple of `unit`, so each later one begins at one.
            let piece = (self.end - at).min(u64::from(piece_max) - at % unit);
            let start = at;
            at += piece;
            Some((start, u32::try_from(piece).expect("at most `piece_max`")))
        })
    }
}

/// A number of bytes as a length in memory. The conversion never fails.
#[allow(clippy::cast_possible_truncation, reason = "both are 64 bits wide")]
pub(crate) const fn in_memory(bytes: u64) -> usize {
    const { assert!(usize::BITS == u64::BITS) }
    bytes as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_and_are_cut_at_blocks() {
        for (offset, len) in [(0, 0), (5, 1), (4095, 8192), (100, 100_000), (8192, 16384)] {
            let mut at = offset;
            for (start, piece) in Span::new(offset, len).pieces(8192, 4096) {
                assert_eq!(start, at);
                assert!(piece > 0 && piece <= 8192);
                assert!(start == offset || start % 4096 == 0, "{start}");
                at += u64::from(piece);
            }
            assert_eq!(at, offset + len);
        }
    }

    #[test]
    fn whole_blocks_around_and_within() {
        for (offset, len, outward, inward) in [
            (0, 1024, (0, 1024), (0, 1024)),
            (1, 1023, (0, 1024), (512, 1024)),
            (511, 514, (0, 1536), (512, 1024)),
            (10, 20, (0, 512), (10, 10)),
            (510, 10, (0, 1024), (510, 510)),
            (512, 0, (512, 512), (512, 512)),
        ] {
            let span = Span::new(offset, len);
            let pair = |span: Span| (span.start, span.end);
            assert_eq!(pair(span.outward(512)), outward);
            assert_eq!(pair(span.inward(512)), inward);
        }
    }
}
