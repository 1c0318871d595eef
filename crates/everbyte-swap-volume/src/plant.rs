//! Mistakes for tests to plant in swap volumes with `everbyte_plant`. The tests must catch them.

/// A mistake in how runs are kept and lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A table is changed where it lies.
    TableInPlace,
    /// A run is lent even if an earlier program still has it.
    LentWithoutAsking,
    /// A run is lent as an earlier program left it, though the volume wipes.
    LentUnwiped,
    /// A run counts as free once its first block is, though a program still has the rest.
    FreedInPart,
    /// The locks of a lease are taken after its description was passed on.
    LockedLate,
    /// The lender forgets a run released by its borrower.
    RunForgotten,
    /// The deletion of a volume does not query the locks of its runs.
    ClosedWithoutAsking,
}
