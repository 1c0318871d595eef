//! Media errors in the pool's own structures.
//!
//! Invariant: bytes loaded from a structure are believed only after `check_readable`. A poisoned range reads
//! as zeroes, and most structures take zeroes for "nothing here". This module does not handle media errors in
//! a volume's data.

use everbyte_media::{MediaError, Medium, PoolOffset};

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
    match medium.check_range(at, len) {
        Ok(()) => Ok(()),
        Err(error) => Err(unreadable(structure, at, &error)),
    }
}

#[cold]
fn unreadable(structure: &str, at: PoolOffset, error: &MediaError) -> Corrupt {
    Corrupt::new(structure, at, error.to_string())
}
