//! The mistakes that tests plant in swap volumes with `everbyte_plant`, to see them caught.

/// A mistake in how runs are kept and lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A table is changed where it lies.
    TableInPlace,
    /// A run is lent whether or not an earlier program still has it.
    LentWithoutAsking,
    /// A run is lent as an earlier program left it, though the volume wipes.
    LentUnwiped,
    /// A run counts as free once its first block is, though a program still has the rest.
    FreedInPart,
    /// The locks of a lease are taken after its description was passed on.
    LockedLate,
    /// A run that nobody has any more is forgotten.
    RunForgotten,
    /// A volume that is to be deleted does not ask for the locks of its runs.
    ClosedWithoutAsking,
}
