//! Hits that are not reported to the policy yet, in lanes with a lock each.
//!
//! Invariants: a thread notes its hits in its own lane, in order. A deciding thread takes the hits
//! of all lanes first. So with one thread the policy gets all accesses in request order. A lane has
//! at most [`LANE_MAX`] hits. Further hits occur only during a long decision of another thread:
//! they are counted, and the policy never gets them. Knows no policy and no frames.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use everbyte_policy::Access;
use everbyte_policy::policy::Tier;
use parking_lot::Mutex;

/// Lanes: one for each bit of a word.
const LANES: usize = 64;

/// Hits in a lane that make a report due.
const BATCH: usize = 64;

/// Most hits in a lane.
pub(crate) const LANE_MAX: usize = 4 * BATCH;

/// An access that found its page in the tier `found`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PendingHit {
    pub(crate) access: Access,
    pub(crate) found: Tier,
}

/// Hits that no policy will get, by tier.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct DroppedHits {
    pub(crate) dram: u64,
    pub(crate) scm: u64,
}

#[derive(Default)]
struct Lane {
    noted: Vec<PendingHit>,
    dropped: DroppedHits,
    /// Hits since the last report.
    overdue: usize,
}

/// All lanes.
pub(crate) struct HitLog {
    lanes: Box<[CachePadded<Mutex<Lane>>]>,
    /// A bit for each lane with hits. Set and cleared under the lane's lock.
    filled: CachePadded<AtomicU64>,
}

/// A small number of this thread's own.
fn thread_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static INDEX: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    INDEX.with(|index| *index)
}

impl HitLog {
    pub(crate) fn new() -> Self {
        let lanes = (0..LANES).map(|_| CachePadded::default()).collect();
        Self { lanes, filled: CachePadded::default() }
    }

    /// Notes a hit. Returns true if a report of this thread's hits is due, unless another thread is
    /// deciding.
    pub(crate) fn note(&self, reference: PendingHit) -> bool {
        let index = thread_index() % LANES;
        let mut lane = self.lanes[index].lock();
        // A hit must not wait for a deciding thread, so a full lane only counts.
        if lane.noted.len() == LANE_MAX {
            match reference.found {
                Tier::Dram => lane.dropped.dram += 1,
                Tier::Scm => lane.dropped.scm += 1,
            }
        } else {
            // Under the lock of the lane, as in `take`, so no bit is lost between the two.
            if lane.noted.is_empty() {
                self.filled.fetch_or(1 << index, Ordering::Relaxed);
            }
            lane.noted.push(reference);
        }
        lane.overdue += 1;
        lane.overdue.is_multiple_of(BATCH)
    }

    /// Moves the hits of all lanes to `taken`, lane by lane. `taken` is empty.
    pub(crate) fn take(&self, taken: &mut Vec<PendingHit>) -> DroppedHits {
        let mut dropped = DroppedHits::default();
        let mut filled = self.filled.load(Ordering::Relaxed);
        while filled != 0 {
            let index = filled.trailing_zeros() as usize;
            filled &= filled - 1;
            let mut lane = self.lanes[index].lock();
            taken.append(&mut lane.noted);
            let here = std::mem::take(&mut lane.dropped);
            dropped = DroppedHits { dram: dropped.dram + here.dram, scm: dropped.scm + here.scm };
            lane.overdue = 0;
            self.filled.fetch_and(!(1 << index), Ordering::Relaxed);
        }
        dropped
    }
}
