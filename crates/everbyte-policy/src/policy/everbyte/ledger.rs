//! What we have spent beyond the paper's policy, and what we may: bytes of PRAM, misses, and jumps
//! of storage.
//!
//! Invariant: what may still be lost by what was decided is counted as if it were lost.

use super::PAGE;
use super::misses::Misses;
use super::paper::Paper;
use crate::policy::space::Space;

/// Debt that we may have, as a part of the bytes that the paper's policy writes: one in so many,
const DEBT_SHARE: u64 = 125;
/// and in bytes besides, so that the first pages decide nothing.
const DEBT_MIN: u64 = 4 * PAGE;
/// Misses that we may have more: one in so many accesses,
const MISSES_OF_ACCESSES: u64 = 210;
/// and one in so many of the paper's misses.
const MISSES_OF_MISSES: u64 = 32;
/// Jumps between reads of storage that we may have more: one in so many of the paper's,
const JUMPS_SHARE: u64 = 64;
/// and besides.
const JUMPS_MIN: u64 = 8;

/// What was spent beyond the paper's policy, and what may be.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) accesses: u64,
    pub(super) misses: Misses,
    /// Bytes that we wrote to PRAM.
    pub(super) pram_bytes: u64,
    /// Pages that the paper's policy has in PRAM and we in DRAM.
    pub(super) owed_pages: u64,
    /// Pages that the paper's policy has and we dropped.
    pub(super) dropped_pages: u64,
}

impl Ledger {
    /// Whether we had better not write more to PRAM than the paper's policy does.
    pub(super) fn is_in_debt<S: Space>(&self, paper: &Paper<S>) -> bool {
        let theirs = paper.pram_bytes();
        let may = theirs + theirs / DEBT_SHARE + DEBT_MIN;
        self.pram_bytes + (self.owed_pages + self.dropped_pages) * PAGE > may
    }

    /// Whether one more page may be missed that the paper's policy has.
    pub(super) fn may_miss<S: Space>(&self, paper: &Paper<S>) -> bool {
        let theirs = paper.misses();
        let more = (self.accesses / MISSES_OF_ACCESSES).min(theirs.count / MISSES_OF_MISSES);
        self.misses.count + self.dropped_pages < theirs.count + more && !self.jumps_too_often(paper)
    }

    /// Whether what we cache otherwise than the paper's policy breaks up what storage reads in runs.
    pub(super) fn jumps_too_often<S: Space>(&self, paper: &Paper<S>) -> bool {
        let theirs = paper.misses().jumps;
        self.misses.jumps > theirs + theirs / JUMPS_SHARE + JUMPS_MIN
    }
}
