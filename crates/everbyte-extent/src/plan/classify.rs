//! The decision about a block that is written: what becomes of it, from what it is now.
//!
//! Pure: knows no medium, no map and no batch.

use everbyte_media::LineMask;

/// A mapped block as a write finds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// True if it lies in a poisoned range.
    pub(super) is_poisoned: bool,
    /// True if a reader uses its bytes where they lie.
    pub(super) is_pinned: bool,
    /// True if this epoch allocated it, so that undo takes it away.
    pub(super) is_fresh: bool,
    /// Lines of it that the write changes.
    pub(super) changed: LineMask,
    /// Lines of it that have a record in this epoch.
    pub(super) logged: LineMask,
    /// True if the write covers all of it.
    pub(super) is_whole: bool,
    /// True if the threshold, or a shortage of log, asks for another block.
    pub(super) is_better_replaced: bool,
}

/// Change of a mapped block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Nothing: no byte of it changes.
    None,
    /// It is filled over its own old bytes, unlogged.
    Refill,
    /// These lines are stored in place, unlogged.
    Store(LineMask),
    /// Another block takes its place. `must` says that nothing else will do.
    Replace {
        /// True if the write fails without another block.
        must: bool,
    },
    /// The first lines are logged, the second stored in place.
    Log(LineMask, LineMask),
}

/// Returns the change that a write makes to a mapped block that holds data.
pub(super) fn classify(seen: &Seen) -> Change {
    if seen.is_poisoned {
        return Change::Replace { must: true };
    }
    if seen.changed.is_empty() {
        return Change::None;
    }
    if seen.is_pinned {
        return Change::Replace { must: true };
    }
    if seen.is_fresh {
        let fills = seen.is_whole && seen.changed == LineMask::FULL;
        return if fills { Change::Refill } else { Change::Store(seen.changed) };
    }
    if seen.is_better_replaced {
        return Change::Replace { must: false };
    }
    in_place(seen)
}

/// Returns the change that a write makes to it where there is no other block.
pub(super) fn in_place(seen: &Seen) -> Change {
    Change::Log(seen.changed.without(seen.logged), seen.changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: LineMask = LineMask(0b110);
    const OLD: Seen = Seen {
        is_poisoned: false,
        is_pinned: false,
        is_fresh: false,
        changed: FEW,
        logged: LineMask::EMPTY,
        is_whole: false,
        is_better_replaced: false,
    };

    #[test]
    fn an_old_block_is_logged_once_a_line() {
        assert_eq!(classify(&OLD), Change::Log(FEW, FEW));
        let again = Seen { logged: LineMask(0b10), ..OLD };
        assert_eq!(classify(&again), Change::Log(LineMask(0b100), FEW));
        let all = Seen { logged: FEW, ..OLD };
        assert_eq!(classify(&all), Change::Log(LineMask::EMPTY, FEW));
    }

    #[test]
    fn a_fresh_block_needs_no_record_and_no_other_block() {
        let fresh = Seen { is_fresh: true, is_better_replaced: true, ..OLD };
        assert_eq!(classify(&fresh), Change::Store(FEW));
        let whole = Seen { is_whole: true, changed: LineMask::FULL, ..fresh };
        assert_eq!(classify(&whole), Change::Refill);
        assert_eq!(classify(&Seen { is_whole: true, ..fresh }), Change::Store(FEW));
    }

    #[test]
    fn bytes_that_stay_the_same_cost_nothing_unless_they_cannot_be_read() {
        let same = Seen { changed: LineMask::EMPTY, is_better_replaced: true, ..OLD };
        assert_eq!(classify(&same), Change::None);
        assert_eq!(classify(&Seen { is_fresh: true, ..same }), Change::None);
        assert_eq!(classify(&Seen { is_poisoned: true, ..same }), Change::Replace { must: true });
    }

    #[test]
    fn a_pinned_block_is_replaced_if_any_byte_of_it_changes_be_it_fresh_or_logged() {
        let pinned = Seen { is_pinned: true, ..OLD };
        for seen in [pinned, Seen { is_fresh: true, ..pinned }, Seen { logged: FEW, ..pinned }] {
            assert_eq!(classify(&seen), Change::Replace { must: true });
        }
        assert_eq!(classify(&Seen { changed: LineMask::EMPTY, ..pinned }), Change::None);
    }

    #[test]
    fn a_block_is_replaced_where_that_is_better_and_logged_where_it_cannot_be() {
        let many = Seen { is_better_replaced: true, ..OLD };
        assert_eq!(classify(&many), Change::Replace { must: false });
        assert_eq!(in_place(&many), Change::Log(FEW, FEW));
    }
}
