//! Writes per frame of 4 KiB, counted on request while a technology is emulated.
//!
//! Invariant: a line counts for its frame each time it is flushed or streamed. Knows nothing of lines within
//! a frame, and nothing of writes before the medium was opened.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::counters::lines_touched;
use crate::units::{BLOCK_U64, BlockNo, PoolOffset};

/// Lines written to the frames of a medium since it was opened. Frames of later growth are not counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wear {
    /// Number of counted frames.
    pub frames: u64,
    /// Number of frames among them with a write.
    pub frames_written: u64,
    /// Lines written to all of them.
    pub lines: u64,
    /// Lines written to the most written frame.
    pub lines_most: u64,
    /// The most written frame.
    pub frame_most: BlockNo,
    /// Lines written to the frame that one of a hundred exceeds.
    pub lines_p99: u64,
}

/// The counts behind [`Wear`].
pub(crate) struct WearCounts(Box<[AtomicU64]>);

impl WearCounts {
    /// Counts of a medium of `len` bytes.
    pub(crate) fn new(len: u64) -> Self {
        Self((0..len / BLOCK_U64).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts the lines of `at .. at + len`.
    pub(crate) fn add(&self, at: PoolOffset, len: u64) {
        let end = at.0 + len;
        let mut from = at.0;
        while from < end {
            let to = (from / BLOCK_U64 + 1).saturating_mul(BLOCK_U64).min(end);
            let frame = usize::try_from(from / BLOCK_U64).ok();
            if let Some(count) = frame.and_then(|frame| self.0.get(frame)) {
                count.fetch_add(lines_touched(PoolOffset(from), to - from), Relaxed);
            }
            from = to;
        }
    }

    /// Sums them up; exact without concurrent writers.
    pub(crate) fn sum(&self) -> Wear {
        let mut lines: Vec<u64> = self.0.iter().map(|count| count.load(Relaxed)).collect();
        let frame_most = (0..lines.len()).max_by_key(|&frame| lines[frame]).unwrap_or(0);
        lines.sort_unstable();
        let at = |place: usize| lines.get(place).copied().unwrap_or(0);
        let unwritten = lines.partition_point(|&lines| lines == 0);
        Wear {
            frames: lines.len() as u64,
            frames_written: (lines.len() - unwritten) as u64,
            lines: lines.iter().sum(),
            lines_most: at(lines.len().saturating_sub(1)),
            frame_most: BlockNo(frame_most as u64),
            lines_p99: at(lines.len() * 99 / 100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mapped, MediaOptions, Medium, Technology};

    #[test]
    fn wear_counts_flushed_and_streamed_lines() {
        let options = MediaOptions::new().emulate(Some(Technology::Dram)).count_wear(true);
        let medium = Mapped::anonymous(4 << 12, &options).unwrap();
        medium.store(PoolOffset(4096), &[1; 200]);
        assert_eq!(medium.wear().unwrap().lines, 0, "a store alone reaches no medium");
        medium.flush(PoolOffset(4096), 200);
        medium.flush(PoolOffset(4096), 1);
        medium.stream(PoolOffset(8192 - 64), &[2; 128]);
        let wear = medium.wear().unwrap();
        // Four lines, one of them again; one on each side of the boundary.
        assert_eq!((wear.lines, wear.lines_most, wear.frame_most), (7, 6, BlockNo(1)));
        assert_eq!((wear.frames, wear.frames_written, wear.lines_p99), (4, 2, 6));
    }

    #[test]
    fn wear_is_off_by_default() {
        for options in [
            MediaOptions::new().emulate(Some(Technology::Pcm)),
            MediaOptions::new().count_wear(true),
        ] {
            let medium = Mapped::anonymous(1 << 12, &options).unwrap();
            medium.stream(PoolOffset(0), &[1; 64]);
            assert_eq!(medium.wear(), None);
        }
    }
}
