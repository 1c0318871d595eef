//! Arithmetic on runs of slots, shared by both trees: cutting a run into masks, one per leaf node,
//! and finding a run in successive leaf nodes.
//!
//! Invariants: a leaf node of order `1 << log` holds its slots in the low bits, lowest slot
//! first, bits above the order clear. Knows neither tree.

use crate::SlotError;

/// Fails unless slots `start .. start + len` exist in a tree of `capacity` slots.
pub(crate) fn check_range(start: u64, len: u64, capacity: u64) -> Result<(), SlotError> {
    match start.checked_add(len) {
        Some(end) if end <= capacity => Ok(()),
        _ => Err(SlotError::OutOfRange { start, len, capacity }),
    }
}

/// `n` as an index into nodes.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "callers pass numbers below a node count that fitted usize when the tree was made"
)]
pub(crate) fn index(n: u64) -> usize {
    n as usize
}

/// The leaf nodes of slots `start .. start + len`, ascending, each with the mask of the run's slots
/// in it. The run must have passed [`check_range`].
pub(crate) fn pieces(start: u64, len: u64, log: u32) -> impl Iterator<Item = (usize, u64)> {
    let (mut at, end) = (start, start + len);
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let node = at >> log;
        let (first, stop) = (at - (node << log), end.min((node + 1) << log));
        let mask = (u64::MAX >> (64 - (stop - at))) << first;
        at = stop;
        Some((index(node), mask))
    })
}

/// Returns the two search ranges for the start of a run, in order: at or after `hint`, then before
/// it. The second range extends past `hint` to cover a run starting just before it.
pub(crate) fn search_ranges(len: u64, hint: u64, capacity: u64) -> [(u64, u64); 2] {
    [(hint, capacity), (0, hint.saturating_add(len - 1).min(capacity))]
}

/// The slots in `from..to` of a leaf node with first slot `base`. `from` lies in the node or before
/// it, and `to` behind `base`.
pub(crate) fn window(base: u64, from: u64, to: u64) -> u64 {
    let above = if from <= base { u64::MAX } else { u64::MAX << (from - base) };
    let below = if to >= base + 64 { u64::MAX } else { !(u64::MAX << (to - base)) };
    above & below
}

/// Finds the first run of `want` free slots in leaf nodes fed in ascending order.
pub(crate) struct RunFinder {
    want: u64,
    start: u64,
    len: u64,
}

impl RunFinder {
    /// Looks for `want` slots, at least 1.
    pub(crate) fn new(want: u64) -> Self {
        Self { want, start: 0, len: 0 }
    }

    /// Takes the node of `width` slots starting at slot `base`, and returns the start of the run if
    /// this node completes it. A node may be skipped only if the one before it was fed as empty.
    pub(crate) fn feed(&mut self, base: u64, node: u64, width: u32) -> Option<u64> {
        let mut at = 0;
        loop {
            let ones = (node >> at).trailing_ones();
            if ones > 0 {
                if self.len == 0 {
                    self.start = base + u64::from(at);
                }
                self.len += u64::from(ones);
                if self.len >= self.want {
                    return Some(self.start);
                }
                at += ones;
                // The run reaches the end of the node and may continue in the next one.
                if at >= width {
                    return None;
                }
            }
            // A used slot ends the run.
            self.len = 0;
            let rest = node >> at;
            if rest == 0 {
                return None;
            }
            at += rest.trailing_zeros();
        }
    }
}
