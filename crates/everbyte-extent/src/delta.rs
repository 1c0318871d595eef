//! Block-to-byte translation: the lines of a written block that differ from the stored ones.
//!
//! Owns the decision to compare or not. A comparison costs a read of the old lines; it saves the log, the
//! store and the wear of every equal line. `Auto` always compares a sample of the writes, keeps a running
//! share of lines saved, and compares every write while that share is worth more than the reads, by the
//! medium's own cost of a read and a write.
//!
//! A write on the direct path counts once for all its blocks. The sample is taken by the volume's count of writes. The count has a line of memory for each lane, so
//! threads without comparisons store to no shared line.

use std::sync::atomic::{AtomicU32, Ordering};

use everbyte_media::{BlockNo, LineMask, Medium};

/// Change detection: comparison of writes with the stored bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Delta {
    /// When it saves more than it costs.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl Delta {
    /// The number in a volume's descriptor.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Self::Auto => 0,
            Self::On => 1,
            Self::Off => 2,
        }
    }

    /// The setting with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Self::Auto, Self::On, Self::Off].into_iter().find(|delta| delta.code() == code)
    }
}

/// One write in this many is compared while comparisons do not pay. A prime, so that every extent gets
/// samples if a thread writes to several in turn.
const SAMPLE_EVERY: u32 = 257;
/// Weight of a new sample in the running share: 1/8.
const SHIFT: u32 = 3;
/// The running share is kept in 1/65536.
const ONE: u32 = 1 << 16;

/// Change detection of a device: the setting and the learned state of `Auto`.
///
/// Public because rival schemes in comparisons must detect changes as ours does.
pub struct DeltaState {
    setting: Delta,
    /// Writes counted by `compares`.
    writes: AtomicU32,
    saved_share: AtomicU32,
    /// Share of lines from which on a comparison pays, in 1/65536.
    break_even: u32,
}

impl DeltaState {
    /// For a medium with a cost of `read_ns` to read a line and `write_ns` to store and flush one.
    #[must_use]
    pub fn new(setting: Delta, read_ns: u32, write_ns: u32) -> Self {
        let break_even = u64::from(read_ns) * u64::from(ONE) / u64::from(write_ns.max(1));
        Self {
            setting,
            writes: AtomicU32::new(0),
            saved_share: AtomicU32::new(ONE / 2),
            break_even: u32::try_from(break_even).unwrap_or(u32::MAX),
        }
    }

    /// Returns true if a write after `writes` earlier ones is compared with the stored bytes.
    #[must_use]
    pub(crate) fn compares_after(&self, writes: u32) -> bool {
        match self.setting {
            Delta::On => true,
            Delta::Off => false,
            Delta::Auto => {
                writes.is_multiple_of(SAMPLE_EVERY)
                    || self.saved_share.load(Ordering::Relaxed) >= self.break_even
            }
        }
    }

    /// Returns true if the next write is compared, and counts that write here: for a single writer.
    pub fn compares(&self) -> bool {
        // Counts that are lost to a race only shift the samples.
        let writes = self.writes.load(Ordering::Relaxed);
        self.writes.store(writes.wrapping_add(1), Ordering::Relaxed);
        self.compares_after(writes)
    }

    /// The lines of `block` with differences between `data` at `start` and the stored bytes. Media errors are
    /// not checked.
    pub fn changed<M: Medium>(
        &self,
        medium: &M,
        block: BlockNo,
        start: usize,
        data: &[u8],
    ) -> LineMask {
        let changed = medium.changed_lines(block, start, data);
        if self.setting == Delta::Auto {
            self.learn(LineMask::covering(start, data.len()).count(), changed.count());
        }
        changed
    }

    /// Races between learners lose a sample. This does no harm.
    fn learn(&self, lines: u32, changed: u32) {
        let saved = (lines - changed) * ONE / lines.max(1);
        let share = self.saved_share.load(Ordering::Relaxed);
        let next = share - (share >> SHIFT) + (saved >> SHIFT);
        self.saved_share.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_delta_stops_and_resumes_by_savings() {
        let state = DeltaState::new(Delta::Auto, 10, 40);
        for _ in 0..64 {
            state.learn(64, 64);
        }
        assert!(state.saved_share.load(Ordering::Relaxed) < state.break_even);
        for _ in 0..64 {
            state.learn(64, 4);
        }
        assert!(state.saved_share.load(Ordering::Relaxed) > state.break_even);
    }

    #[test]
    fn auto_delta_samples_one_write_in_257() {
        let state = DeltaState::new(Delta::Auto, 40, 10);
        let compared: Vec<u32> = (0..1024).filter(|&writes| state.compares_after(writes)).collect();
        assert_eq!(compared, [0, 257, 514, 771]);
        assert!((0..1024).all(|writes| DeltaState::new(Delta::On, 40, 10).compares_after(writes)));
        assert!(!(0..1024).any(|writes| DeltaState::new(Delta::Off, 0, 10).compares_after(writes)));
    }

    #[test]
    fn saved_share_stays_in_range() {
        let state = DeltaState::new(Delta::Auto, 1, 1);
        for (changed, limit) in [(0, ONE - 8..ONE + 1), (64, 0..8)] {
            (0..200).for_each(|_| state.learn(64, changed));
            let share = state.saved_share.load(Ordering::Relaxed);
            assert!(limit.contains(&share), "{share} with {changed} changed");
        }
    }

    #[test]
    fn delta_code_round_trips() {
        for delta in [Delta::Auto, Delta::On, Delta::Off] {
            assert_eq!(Delta::from_code(delta.code()), Some(delta));
        }
        assert_eq!(Delta::from_code(3), None);
    }
}
