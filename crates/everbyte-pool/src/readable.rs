//! Media errors in the pool's own structures: how it is told from what was stored.
//!
//! Invariant: whatever was loaded from a structure is believed only after `check_readable` was
//! asked about it, because a poisoned range reads as zeroes, which most structures take for
//! "nothing here". Bad memory of a volume's data is no business of this module.

use everbyte_media::{Medium, PoolOffset};

use crate::format::Corrupt;

/// Says whether what was loaded from `at .. at + len`, which is part of `structure`, is what was
/// stored.
///
/// # Errors
/// Some of it is in a poisoned range.
#[inline]
pub fn check_readable<M: Medium>(
    medium: &M,
    structure: &str,
    at: PoolOffset,
    len: u64,
) -> Result<(), Corrupt> {
    medium.check_range(at, len).map_err(|error| Corrupt::new(structure, at, error.to_string()))
}
