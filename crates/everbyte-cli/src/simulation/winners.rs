//! The best policies of each size.
//!
//! Invariants: `belady` never wins, because it knows the future. Policies with the same value share
//! the place. A policy without a value, such as the bytes of SCM of one tier, takes no part.

use everbyte_policy::sim::Kind;

use super::args::CacheSize;
use super::results::Row;

/// Values with a smaller relative difference are equal.
const SAME: f64 = 1e-9;

/// Named policies of a shared place.
const NAMED_MAX: usize = 3;

/// A measure of policies.
#[derive(Clone, Copy)]
pub(super) struct Contest {
    pub(super) value: fn(&Row, &[Row]) -> Option<f64>,
    /// True if the smallest value is the best.
    pub(super) is_least: bool,
}

/// The best policies of one size.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Winners {
    pub(super) policies: Vec<Kind>,
    pub(super) value: f64,
}

/// Highest hit ratio.
pub(super) const HITS: Contest =
    Contest { value: |row, _| Some(row.outcome.hit_ratio()), is_least: false };
/// Shortest time with a drain; policies of one tier are charged the memory time of others.
pub(super) const TIME: Contest = Contest {
    value: |row, rows| {
        let has_two_tiers = |row: &Row| row.setting.policy.has_two_tiers();
        match row.seconds_with_same_memory(rows) {
            None if rows.iter().any(has_two_tiers) => None,
            None => Some(row.seconds_with_drain()),
            seconds => seconds,
        }
    },
    is_least: true,
};
/// Fewest bytes written to SCM.
pub(super) const SCM_BYTES: Contest = Contest {
    value: |row, _| {
        let bytes = super::results::as_f64(row.outcome.scm.bytes);
        row.setting.policy.has_two_tiers().then_some(bytes)
    },
    is_least: true,
};

impl Contest {
    /// The winners among the rows of `size` in one group; `None` without a value.
    pub(super) fn winners(&self, rows: &[Row], size: CacheSize) -> Option<Winners> {
        let takes_part =
            |row: &&Row| row.setting.size == size && row.setting.policy != Kind::Belady;
        let values = rows.iter().filter(takes_part).filter_map(|row| {
            let value = (self.value)(row, rows)?;
            value.is_finite().then_some((row.setting.policy, value))
        });
        let values: Vec<(Kind, f64)> = values.collect();
        let best =
            values.iter().map(|(_, value)| *value).reduce(|best, value| match self.is_least {
                true => best.min(value),
                false => best.max(value),
            })?;
        // Relative: sums of floats in another order differ in their last bits.
        let is_best = |value: f64| (value - best).abs() <= SAME * best.abs();
        let mut policies: Vec<Kind> = Vec::new();
        for (policy, _) in values.iter().filter(|(_, value)| is_best(*value)) {
            // A policy can have several rows of a size, with equal values, for example from
            // repeated options.
            if !policies.contains(policy) {
                policies.push(*policy);
            }
        }
        Some(Winners { policies, value: best })
    }
}

impl Winners {
    /// Their names, with commas; a number stands for the last of many.
    pub(super) fn names(&self) -> String {
        let named = match self.policies.len() {
            all @ ..=NAMED_MAX => all,
            // One place is left for the words about the rest.
            _ => NAMED_MAX - 1,
        };
        let names: Vec<_> = self.policies[..named].iter().map(|policy| policy.name()).collect();
        match self.policies.len() - named {
            0 => names.join(", "),
            more => format!("{} and {more} more", names.join(", ")),
        }
    }
}

/// The sizes of `rows`, from the smallest cache on.
pub(super) fn sizes(rows: &[Row]) -> Vec<CacheSize> {
    let mut sizes: Vec<(u32, CacheSize)> =
        rows.iter().map(|row| (row.outcome.spec.pages, row.setting.size)).collect();
    // By pages first: shares and bytes mix, and only pages compare them.
    sizes.sort_unstable();
    sizes.dedup();
    sizes.into_iter().map(|(_, size)| size).collect()
}
