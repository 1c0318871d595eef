//! Counts of actions by kind and reason, under the names that tables and files have for them.
//!
//! Hits are not counted here: callers count them by operation and tier.

use serde::{Deserialize, Serialize};

use super::action::{Action, Reason, Tier};

/// The kinds of actions, in the order in which they are counted.
const NAMES: [&str; 10] = [
    "fill_dram",
    "fill_scm",
    "to_scm",
    "to_dram",
    "copy_to_dram",
    "drop_dram",
    "drop_scm",
    "evict_dram",
    "evict_scm",
    "update_scm",
];

/// Number of actions of one kind for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ActionCount {
    /// `fill_dram`, `fill_scm`, `to_scm`, `to_dram`, `copy_to_dram`, `drop_dram`, `drop_scm`,
    /// `evict_dram`, `evict_scm` or `update_scm`.
    pub action: String,
    /// The name of a [`Reason`].
    pub reason: String,
    /// Number of times.
    pub count: u64,
}

/// Number of actions of each kind for each reason.
#[derive(Clone, Default, Debug)]
pub struct ActionCounts([[u64; Reason::ALL.len()]; NAMES.len()]);

impl ActionCounts {
    /// Counts `action`, unless it is a hit.
    ///
    /// Inlined always: a policy names the kind of each action, which leaves one arm.
    #[inline(always)]
    pub fn count(&mut self, action: &Action) {
        let of = |tier, dram, scm| if tier == Tier::Dram { dram } else { scm };
        let (kind, why) = match *action {
            Action::Hit { .. } => return,
            Action::Fill { tier, why, .. } => (of(tier, 0, 1), why),
            Action::Move { to, why, .. } => (of(to, 3, 2), why),
            Action::Copy { why, .. } => (4, why),
            Action::Drop { from, why, .. } => (of(from, 5, 6), why),
            Action::Evict { from, why, .. } => (of(from, 7, 8), why),
            Action::Update { why, .. } => (9, why),
        };
        self.0[kind][why as usize] += 1;
    }

    /// Returns the counts by name, without those that are 0.
    #[must_use]
    pub fn named(&self) -> Vec<ActionCount> {
        let rows = NAMES.iter().zip(&self.0);
        rows.flat_map(|(action, counts)| {
            Reason::ALL.iter().zip(counts).map(|(reason, &count)| ActionCount {
                action: (*action).to_owned(),
                reason: reason.name().to_owned(),
                count,
            })
        })
        .filter(|row| row.count > 0)
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::PageNo;

    #[test]
    fn action_kinds_have_names_and_hits_have_none() {
        let (page, why, dirty) = (PageNo(7), Reason::Victim, true);
        let mut counts = ActionCounts::default();
        let (dram, scm) = (Tier::Dram, Tier::Scm);
        for action in [
            Action::Hit { found: dram, served: scm },
            Action::Fill { page, tier: dram, why },
            Action::Fill { page, tier: scm, why },
            Action::Move { page, to: scm, dirty, why },
            Action::Move { page, to: dram, dirty, why },
            Action::Copy { page, why },
            Action::Drop { page, from: dram, why },
            Action::Drop { page, from: scm, why },
            Action::Evict { page, from: dram, why },
            Action::Evict { page, from: scm, why },
            Action::Update { page, dirty, why },
            Action::Copy { page, why },
        ] {
            counts.count(&action);
        }
        let named = counts.named();
        assert!(named.iter().all(|row| row.reason == "victim"));
        let found: Vec<_> = named.iter().map(|row| (&*row.action, row.count)).collect();
        let expected = NAMES.map(|name| (name, if name == "copy_to_dram" { 2 } else { 1 }));
        assert_eq!(found, expected);
    }
}
