//! The choice of a write: to log a block's old lines, or to replace the block.
//!
//! Owns the threshold and its learned state. The rule of the rollback paper: a block with `threshold` or more
//! changed lines, by one write or by all of an epoch, is replaced. To log `k` of 64 lines and change them in
//! place reads `k` lines and stores `2k`; to replace the block reads `64 - k` and stores 64. The two meet at
//! half of the lines.
//!
//! The paper's rule takes each write for the last one. A block with several writes up to the threshold pays
//! for its records and then for the replacement. If a share `p` of the blocks with a record come to that, a
//! first write of `k` lines costs `2k + 64p` lines when it is logged, and 64 when the block is replaced
//! immediately; so for blocks without a record the threshold is `threshold * (1 - p)`. If no block is written
//! to twice, that is the paper's rule again.
//!
//! Invariant: a block counts once an epoch as recorded, and at most once as come to the threshold.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use everbyte_media::LineMask;

/// One first write in this many is decided by the threshold alone while the share lowers it: an immediately
/// replaced block cannot show if it would have come to the threshold.
const SAMPLE_EVERY: u32 = 16;
/// Number of recorded blocks before a share is taken from them.
const ENOUGH: u32 = 16;
/// The share is kept in 1/65536.
const ONE: u32 = 1 << 16;

/// The threshold of a volume, with the learned state of its writes. A count lost to a race only shifts the
/// share.
pub(crate) struct Threshold {
    /// Lines from which on a block is replaced; more than a block's for never.
    lines: u32,
    /// Share of the blocks with a record that came to the threshold, in past epochs.
    share: AtomicU32,
    /// The epoch of the latest counts. The blocks below the threshold are known only at its end.
    epoch: AtomicU64,
    /// Recorded blocks since the share was taken.
    recorded: AtomicU32,
    /// The part of them at the threshold.
    reached: AtomicU32,
    /// First writes with a replacement allowed by the share.
    firsts: AtomicU32,
}

impl Threshold {
    pub(crate) fn new(lines: u32) -> Self {
        Self {
            lines,
            share: AtomicU32::new(0),
            epoch: AtomicU64::new(0),
            recorded: AtomicU32::new(0),
            reached: AtomicU32::new(0),
            firsts: AtomicU32::new(0),
        }
    }

    /// Returns true if a write of all of a block replaces it.
    pub(crate) fn replaces_whole(&self) -> bool {
        self.lines <= LineMask::FULL.count()
    }

    /// Returns true if a change of `lines` outside of epochs replaces the block.
    pub(crate) fn replaces(&self, lines: LineMask) -> bool {
        lines.count() >= self.lines
    }

    /// Returns true if a block with the lines `changed` to change, and `logged` with a record in `epoch`,
    /// should be replaced. Learns from the answer; the caller follows it if it can.
    pub(crate) fn replaces_in(&self, epoch: u64, changed: LineMask, logged: LineMask) -> bool {
        if self.replaces(changed) {
            return true;
        }
        // Two threads may both begin the epoch. This loses counts, and only shifts the share.
        if self.epoch.load(Ordering::Relaxed) != epoch {
            self.begin(epoch);
        }
        if logged.is_empty() {
            let at_once = self.replaces_first(changed);
            if !at_once {
                add_one(&self.recorded);
            }
            return at_once;
        }
        let reached = self.replaces(changed.or(logged));
        if reached {
            add_one(&self.reached);
        }
        reached
    }

    /// Takes the share from the epochs before `epoch`, if they saw enough blocks.
    fn begin(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
        let recorded = self.recorded.load(Ordering::Relaxed);
        if recorded < ENOUGH {
            // Few blocks prove nothing. Their counts stay, and the next epoch adds to them.
            return;
        }
        // Races lose counts, so more blocks may have reached the threshold than were recorded.
        let reached = self.reached.load(Ordering::Relaxed).min(recorded);
        let share = u64::from(reached) * u64::from(ONE) / u64::from(recorded);
        self.share.store(u32::try_from(share).unwrap_or(ONE), Ordering::Relaxed);
        self.recorded.store(0, Ordering::Relaxed);
        self.reached.store(0, Ordering::Relaxed);
    }

    /// Returns true if a first change of `changed`, fewer lines than the threshold, replaces its
    /// block.
    fn replaces_first(&self, changed: LineMask) -> bool {
        let left = u64::from(ONE - self.share.load(Ordering::Relaxed));
        if u64::from(changed.count()) * u64::from(ONE) < u64::from(self.lines) * left {
            return false;
        }
        let count = self.firsts.load(Ordering::Relaxed);
        self.firsts.store(count.wrapping_add(1), Ordering::Relaxed);
        // The sample follows the plain rule: otherwise no record would ever show that the share has
        // fallen.
        !count.is_multiple_of(SAMPLE_EVERY)
    }
}

/// Adds one, and loses it where another thread does the same: a locked operation would cost more
/// than the count is worth.
fn add_one(count: &AtomicU32) {
    count.store(count.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u32 = 32;

    fn lines(count: u32) -> LineMask {
        LineMask((1 << count) - 1)
    }

    /// In an epoch, writes `count` lines to each of a thousand blocks, and then as many again to a share of
    /// them until they are replaced. Returns the number of immediate replacements.
    fn replaced_at_once(
        threshold: &Threshold,
        epoch: u64,
        count: u32,
        again: impl Fn(u32) -> bool,
    ) -> u32 {
        let first = |_: &u32| threshold.replaces_in(epoch, lines(count), LineMask::EMPTY);
        let (at_once, logged): (Vec<u32>, Vec<u32>) = (0..1000).partition(first);
        for _ in logged.into_iter().filter(|&block| again(block)) {
            let mut so_far = count;
            while !threshold.replaces_in(epoch, lines(count), lines(so_far)) {
                // These writes do not overlap, so their lines add up.
                so_far = (so_far + count).min(HALF);
            }
        }
        u32::try_from(at_once.len()).unwrap()
    }

    #[test]
    fn single_writes_keep_threshold() {
        let threshold = Threshold::new(HALF);
        for epoch in 1..4 {
            assert_eq!(replaced_at_once(&threshold, epoch, 31, |_| false), 0);
            assert!(threshold.replaces_in(epoch, lines(32), LineMask::EMPTY));
        }
    }

    #[test]
    fn rewritten_blocks_are_replaced_next_epoch() {
        let threshold = Threshold::new(HALF);
        assert_eq!(replaced_at_once(&threshold, 1, 16, |_| true), 0);
        let sampled = 1000u32.div_ceil(SAMPLE_EVERY);
        assert_eq!(replaced_at_once(&threshold, 2, 16, |_| true), 1000 - sampled);
        // The samples show when blocks are no longer rewritten.
        let at_once = replaced_at_once(&threshold, 3, 16, |_| false);
        assert!(at_once > 900, "{at_once}");
        assert_eq!(replaced_at_once(&threshold, 4, 16, |_| false), 0);
    }

    #[test]
    fn threshold_scales_with_reached_share() {
        // A share of three quarters leaves 8 of 32 lines.
        let most = |block: u32| !block.is_multiple_of(4);
        for (count, at_once) in [(4, 0), (7, 0), (8, 937), (16, 937)] {
            let threshold = Threshold::new(HALF);
            replaced_at_once(&threshold, 1, count, most);
            assert_eq!(replaced_at_once(&threshold, 2, count, most), at_once, "{count} lines");
        }
    }

    #[test]
    fn few_blocks_do_not_change_threshold() {
        let threshold = Threshold::new(HALF);
        for block in 1..ENOUGH {
            assert!(!threshold.replaces_in(1, lines(16), LineMask::EMPTY), "{block}");
            assert!(threshold.replaces_in(1, lines(16), lines(HALF)));
        }
        assert!(!threshold.replaces_in(2, lines(16), LineMask::EMPTY));
    }

    #[test]
    fn threshold_above_64_never_replaces() {
        let threshold = Threshold::new(65);
        assert!(!threshold.replaces_whole());
        assert!(!threshold.replaces_in(1, LineMask::FULL, LineMask::FULL));
        assert!(!threshold.replaces_in(1, LineMask::FULL, LineMask::EMPTY));
    }

    #[test]
    fn threshold_counts_distinct_lines() {
        let threshold = Threshold::new(HALF);
        // Every second line, and neighbours of some.
        let spread = LineMask(0x5555_5555_5555_5555);
        let most = LineMask(spread.0 & !1);
        assert_eq!((spread.count(), most.count()), (32, 31));
        assert!(threshold.replaces(spread) && !threshold.replaces(most));
        assert!(threshold.replaces(LineMask(spread.0 | 2)));
        assert!(!threshold.replaces_in(1, most, most), "the same lines again");
        assert!(threshold.replaces_in(1, LineMask(1), most));
    }
}
