//! The budget beyond the paper's policy: SCM bytes, misses, and jumps of the backing device.
//!
//! Invariant: losses that past decisions may still cause are counted as if they had happened.

use super::PAGE;
use super::misses::Misses;
use super::paper::Paper;
use crate::policy::storage::Storage;

/// Budget of SCM bytes: one in so many of the bytes that the paper's policy writes,
const BUDGET_SHARE: u64 = 125;
/// and bytes besides, so that the first pages decide nothing.
const BUDGET_MIN: u64 = 4 * PAGE;
/// Budget of misses: one in so many accesses,
const MISSES_OF_ACCESSES: u64 = 210;
/// and one in so many of the paper's misses.
const MISSES_OF_MISSES: u64 = 32;
/// Budget of jumps between reads of the backing device: one in so many of the paper's,
const JUMPS_SHARE: u64 = 64;
/// and besides.
const JUMPS_MIN: u64 = 8;

/// Spending beyond the paper's policy.
#[derive(Default)]
pub(super) struct Budget {
    pub(super) accesses: u64,
    pub(super) misses: Misses,
    /// Bytes written to SCM.
    pub(super) scm_bytes: u64,
    /// Misplaced pages: in DRAM here, in SCM in the paper's policy.
    pub(super) misplaced_pages: u64,
    /// Pages that the paper's policy has and this one dropped.
    pub(super) dropped_pages: u64,
}

impl Budget {
    /// Returns true if SCM must not be written more than by the paper's policy until the budget
    /// allows it (lemmas 3 and 6 of `docs/simulation.md`).
    pub(super) fn is_over_budget<S: Storage>(&self, paper: &Paper<S>) -> bool {
        let theirs = paper.scm_bytes();
        let may = theirs + theirs / BUDGET_SHARE + BUDGET_MIN;
        self.scm_bytes + (self.misplaced_pages + self.dropped_pages) * PAGE > may
    }

    /// Returns true if one more page that the paper's policy has may be missed (lemma 2 of
    /// `docs/simulation.md`).
    pub(super) fn may_miss<S: Storage>(&self, paper: &Paper<S>) -> bool {
        let theirs = paper.misses();
        let more = (self.accesses / MISSES_OF_ACCESSES).min(theirs.count / MISSES_OF_MISSES);
        self.misses.count + self.dropped_pages < theirs.count + more && !self.jumps_too_often(paper)
    }

    /// Returns true if caching other pages than the paper's policy breaks up runs of reads.
    pub(super) fn jumps_too_often<S: Storage>(&self, paper: &Paper<S>) -> bool {
        let theirs = paper.misses().jumps;
        self.misses.jumps > theirs + theirs / JUMPS_SHARE + JUMPS_MIN
    }
}
