//! Media errors in the pool's own structures.
//!
//! Invariant: bytes that were loaded from a structure are believed only after `check_readable`,
//! because a poisoned range reads as zeroes, which most structures take for "nothing here". Media
//! errors in a volume's data are no business of this module.

use everbyte_media::{Medium, PoolOffset};

use crate::format::Corrupt;

/// Checks that `at .. at + len`, a part of `structure`, was readable when it was loaded.
///
/// # Errors
/// `Corrupt`, if some of it is in a poisoned range.
#[inline]
pub fn check_readable<M: Medium>(
    medium: &M,
    structure: &str,
    at: PoolOffset,
    len: u64,
) -> Result<(), Corrupt> {
    medium.check_range(at, len).map_err(|error| Corrupt::new(structure, at, error.to_string()))
}
