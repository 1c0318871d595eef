//! The bound on mappings: how many more of them moving chunks may make.
//!
//! Adjacent runs in adjacent chunks share one mapping; a move can split it into three. Linux limits
//! the mappings of a process (`vm.max_map_count`) and fails every later `mmap` of any caller. Moves
//! stop at a bound below this limit. Invariant: mappings at the last count plus mappings taken
//! since do not exceed the bound, except for mappings made by other code since.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// Maximum number of mappings added by a move.
pub(super) const MOVE_MAPPINGS: u64 = 2;
/// Linux's default limit, used if `/proc` does not report it.
const MOST_USUAL: u64 = 65_530;

/// Room for mappings.
pub(crate) struct Budget {
    bound: u64,
    room: AtomicU64,
    count: fn() -> Option<u64>,
}

impl Budget {
    /// Allows up to `bound` mappings of the process. `count` counts the present mappings.
    pub(crate) fn new(bound: u64, count: fn() -> Option<u64>) -> Self {
        Self { bound, room: AtomicU64::new(0), count }
    }

    /// Takes `mappings` from the budget. False if the bound is reached, even after a new count.
    pub(super) fn take(&self, mappings: u64) -> bool {
        let taken = self.room.fetch_update(SeqCst, SeqCst, |room| room.checked_sub(mappings));
        taken.is_ok() || self.renew(mappings)
    }

    /// Returns `mappings` removed mappings to the budget.
    pub(super) fn give_back(&self, mappings: u64) {
        self.room.fetch_add(mappings, SeqCst);
    }

    fn renew(&self, wanted: u64) -> bool {
        // Without a count from the system the budget still bounds the mappings made by moves.
        let found = (self.count)().unwrap_or(0);
        let left = self.bound.saturating_sub(found).checked_sub(wanted);
        self.room.store(left.unwrap_or(0), SeqCst);
        left.is_some()
    }
}

/// Half of the system's limit on mappings of a process.
pub(crate) fn half_of_most() -> u64 {
    // The other half is for the program's own mappings.
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    most.and_then(|most| most.trim().parse().ok()).unwrap_or(MOST_USUAL) / 2
}

/// Counts the mappings of this process. Does not allocate.
pub(crate) fn count_mappings() -> Option<u64> {
    let mut maps = File::open("/proc/self/maps").ok()?;
    let mut some = [0; 4096];
    let mut lines = 0;
    loop {
        match maps.read(&mut some).ok()? {
            0 => return Some(lines),
            len => lines += some[..len].iter().filter(|byte| **byte == b'\n').count() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_bound_minus_last_count() {
        let budget = Budget::new(100, || Some(90));
        assert!(budget.take(6) && budget.take(4), "10 are left");
        assert!(budget.take(7), "they are counted anew, and 90 are there still");
        assert!(!budget.take(11));
        assert!(!Budget::new(100, || Some(100)).take(1));
        assert!(Budget::new(100, || None).take(100));
        budget.give_back(4);
        assert!(budget.take(4));
    }

    #[test]
    fn process_mappings_are_below_limit() {
        assert!(count_mappings().unwrap() > 3);
        assert!(half_of_most() > 100);
    }
}
