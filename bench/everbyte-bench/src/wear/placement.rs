//! Placements: which free frame a block goes to next.
//!
//! Invariant: a frame that was taken is not given again until it was freed. Wear is counted in lines, by
//! whoever writes them, and told when a frame is freed.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use everbyte_slots::RunTree;

/// Frames that a lane takes from the slot tree at once, as the pool's lanes do.
const LANE_BATCH: usize = 32;

/// Rule by which a frame is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// The pool's: a lane takes batches from the slot tree near the last one.
    Near,
    /// The next free frame after the last one, round and round.
    NextFit,
    /// The frame that was written least.
    LeastWorn,
    /// The least written frame for a block that will be written soon again, the most written one for
    /// another.
    HotCold,
}

impl Rule {
    pub(super) const ALL: [Self; 4] = [Self::Near, Self::NextFit, Self::LeastWorn, Self::HotCold];

    /// Its name in the results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::NextFit => "next-fit",
            Self::LeastWorn => "least-worn",
            Self::HotCold => "hot-cold",
        }
    }
}

/// The free frames.
pub(super) enum FreeFrames {
    Near {
        tree: Box<RunTree>,
        hint: u64,
        /// Taken by the lane and not used yet, the next one last.
        lane: Vec<u64>,
    },
    NextFit {
        free: BTreeSet<u32>,
        next: u32,
    },
    ByWear {
        free: BTreeSet<(u64, u32)>,
        tells_hot: bool,
    },
}

impl FreeFrames {
    /// `frames` free frames that were never written.
    ///
    /// # Errors
    /// None: no frame is free twice.
    pub(super) fn new(rule: Rule, frames: u32) -> Result<Self> {
        let by_wear =
            |tells_hot| Self::ByWear { free: (0..frames).map(|f| (0, f)).collect(), tells_hot };
        Ok(match rule {
            Rule::Near => {
                let tree = Box::new(RunTree::new(u64::from(frames)));
                tree.free_run(0, u64::from(frames))?;
                Self::Near { tree, hint: 0, lane: Vec::new() }
            }
            Rule::NextFit => Self::NextFit { free: (0..frames).collect(), next: 0 },
            Rule::LeastWorn => by_wear(false),
            Rule::HotCold => by_wear(true),
        })
    }

    /// Takes a frame for a block that is expected to be written soon again, or not.
    ///
    /// # Errors
    /// None is free.
    pub(super) fn take(&mut self, is_hot: bool) -> Result<u32> {
        let frame = match self {
            Self::Near { tree, hint, lane } => {
                if lane.is_empty() {
                    tree.alloc_batch(*hint, LANE_BATCH, lane);
                    *hint = lane.last().copied().unwrap_or(*hint);
                    lane.reverse();
                }
                lane.pop().and_then(|frame| u32::try_from(frame).ok())
            }
            Self::NextFit { free, next } => {
                let frame = free.range(*next..).next().or_else(|| free.first()).copied();
                frame.inspect(|frame| {
                    free.remove(frame);
                    *next = frame.wrapping_add(1);
                })
            }
            Self::ByWear { free, tells_hot } => {
                let frame = if *tells_hot && !is_hot { free.pop_last() } else { free.pop_first() };
                frame.map(|(_, frame)| frame)
            }
        };
        frame.context("no frame is free")
    }

    /// Gives a frame back that was written `wear` lines so far.
    ///
    /// # Errors
    /// It is free.
    pub(super) fn give(&mut self, frame: u32, wear: u64) -> Result<()> {
        match self {
            Self::Near { tree, .. } => tree.free(u64::from(frame))?,
            Self::NextFit { free, .. } => anyhow::ensure!(free.insert(frame), "{frame} is free"),
            Self::ByWear { free, .. } => {
                anyhow::ensure!(free.insert((wear, frame)), "{frame} is free");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames that are taken for cold blocks, the last one for a hot one, from four of which number 2 was
    /// written most and number 1 least.
    fn order(rule: Rule) -> Vec<u32> {
        let mut free = FreeFrames::new(rule, 4).unwrap();
        let taken: Vec<u32> = (0..4).map(|_| free.take(true).unwrap()).collect();
        assert!(free.take(true).is_err());
        for frame in taken {
            free.give(frame, [20, 10, 40, 30][frame as usize]).unwrap();
        }
        let mut order: Vec<u32> = (0..3).map(|_| free.take(false).unwrap()).collect();
        free.give(order[0], 50).unwrap();
        order.push(free.take(true).unwrap());
        order
    }

    #[test]
    fn frames_are_chosen_by_the_rule() {
        assert_eq!(order(Rule::NextFit), [0, 1, 2, 3]);
        assert_eq!(order(Rule::LeastWorn), [1, 0, 3, 2]);
        assert_eq!(order(Rule::HotCold), [2, 3, 0, 1]);
        let mut near = order(Rule::Near);
        near.sort_unstable();
        near.dedup();
        assert!(near.len() >= 3, "{near:?}");
    }

    #[test]
    fn a_frame_that_is_free_is_not_taken_back() {
        for rule in Rule::ALL {
            let mut free = FreeFrames::new(rule, 8).unwrap();
            let frame = free.take(true).unwrap();
            free.give(frame, 0).unwrap();
            assert!(free.give(frame, 0).is_err(), "{}", rule.name());
        }
    }
}
