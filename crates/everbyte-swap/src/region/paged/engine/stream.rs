//! Streams of faults: detects equal steps through memory, for read-ahead.
//!
//! Invariants: the notes only steer; any value of any word is a valid state, so concurrent
//! overwrites are harmless. Callable in signal handlers. Has no states of units.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::region::units::UnitNo;

/// Maximum number of streams followed together.
const STREAMS: usize = 16;
/// Units between two faults of a stream, at most.
const STRIDE_MAX: u64 = 1024;
/// Equal steps in a row before anything is read ahead.
const STEPS_MIN: u64 = 2;

const UNIT_SHIFT: u32 = 24;
const STRIDE_SHIFT: u32 = 8;
const STRIDE: u64 = 0xffff;
const STEPS: u64 = 0xff;

/// A prediction: the next units of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadAhead {
    /// Units from one to the next.
    pub(crate) stride: u64,
    /// Units to read ahead.
    pub(crate) units: u64,
}

impl ReadAhead {
    pub(crate) const NONE: Self = Self { stride: 1, units: 0 };
}

/// The streams of a region. A word holds the next unit of the stream (before a stride is known, the
/// last one, plus 1), the stride or 0, and the number of equal steps.
pub(crate) struct Streams {
    words: [AtomicU64; STREAMS],
    next: AtomicU64,
    units_max: u64,
}

impl Streams {
    /// No streams yet; reads at most `units_max` units together, including the requested one.
    pub(crate) fn new(units_max: u64) -> Self {
        Self { words: [const { AtomicU64::new(0) }; STREAMS], next: AtomicU64::new(0), units_max }
    }

    /// Notes a fault and predicts the read-ahead.
    pub(crate) fn note(&self, at: UnitNo) -> ReadAhead {
        if self.units_max <= 1 {
            return ReadAhead::NONE;
        }
        for word in &self.words {
            let seen = word.load(Relaxed);
            let (unit, stride) = (seen >> UNIT_SHIFT, seen >> STRIDE_SHIFT & STRIDE);
            if unit == 0 {
                continue;
            }
            let unit = unit - 1;
            if stride != 0 && unit == at.0 {
                return self.follow(word, at, stride, seen & STEPS);
            }
            let gap = at.0.wrapping_sub(unit);
            if stride == 0 && (1..=STRIDE_MAX).contains(&gap) {
                // A first stride is a guess: read-ahead starts after further equal steps.
                word.store(packed(at.0 + gap, gap, 1), Relaxed);
                return ReadAhead::NONE;
            }
        }
        // Streams are replaced in rotation, so an abandoned one leaves its word soon.
        let place = self.next.fetch_add(1, Relaxed) % STREAMS as u64;
        self.words[crate::slots::index(place)].store(packed(at.0, 0, 0), Relaxed);
        ReadAhead::NONE
    }

    /// The stream came to where it was expected: reads ahead twice as far as the last time.
    fn follow(&self, word: &AtomicU64, at: UnitNo, stride: u64, steps: u64) -> ReadAhead {
        let steps = (steps + 1).min(STEPS);
        let units = if steps < STEPS_MIN {
            0
        } else {
            let doubled = 1u64 << (steps - STEPS_MIN + 1).min(16);
            doubled.min(self.units_max) - 1
        };
        word.store(packed(at.0 + stride * (units + 1), stride, steps), Relaxed);
        ReadAhead { stride, units }
    }
}

fn packed(unit: u64, stride: u64, steps: u64) -> u64 {
    (unit + 1) << UNIT_SHIFT | stride << STRIDE_SHIFT | steps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The read-ahead units of a stream that faults only on other units.
    fn follow(streams: &Streams, stride: u64, faults: usize) -> Vec<u64> {
        let mut at = 1000;
        let mut read = Vec::new();
        for _ in 0..faults {
            let ahead = streams.note(UnitNo(at));
            assert!(ahead.units == 0 || ahead.stride == stride);
            read.push(ahead.units);
            at += stride * (ahead.units + 1);
        }
        read
    }

    #[test]
    fn read_ahead_grows_with_equal_steps() {
        for stride in [1, 7, 1024] {
            assert_eq!(follow(&Streams::new(16), stride, 8), [0, 0, 1, 3, 7, 15, 15, 15]);
        }
        assert_eq!(follow(&Streams::new(16), 1025, 5), [0; 5], "too far apart");
        assert_eq!(follow(&Streams::new(1), 1, 5), [0; 5], "reading ahead is off");
    }

    #[test]
    fn random_faults_are_not_read_ahead() {
        let streams = Streams::new(16);
        let mut state = 1u64;
        let mut ahead = 0;
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ahead += streams.note(UnitNo(state >> 43)).units;
        }
        assert!(ahead < 10, "{ahead}");
    }

    #[test]
    fn alternating_streams_are_distinguished() {
        let streams = Streams::new(16);
        let mut ahead = (0, 0);
        for step in 0..4 {
            ahead.0 += streams.note(UnitNo(5000 + step)).units;
            ahead.1 += streams.note(UnitNo(90_000 + 3 * step)).units;
        }
        assert_eq!(ahead, (1, 1));
    }
}
