//! Runs that somebody has.

use std::fs::File;
use std::ops::Range;

/// Runs that were lent. Once it is dropped here they are whose who has mapped them, or nobody's.
#[derive(Debug)]
pub struct Lease {
    /// The pool's file, in a description that has the locks of `ranges`.
    pub file: File,
    /// Bytes of the file that may be used, ascending; none touches another.
    pub ranges: Vec<Range<u64>>,
}
