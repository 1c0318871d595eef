//! Mistakes for tests to plant in swap volumes with `everbyte_plant`. The tests must catch them.

/// A mistake in how runs are kept and lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A table is changed where it lies.
    TableInPlace,
    /// A run is lent even if an earlier program still has it.
    LentWithoutAsking,
}
