//! Leases: runs in use by a borrower.

use std::fs::File;
use std::ops::Range;

/// Lent runs. After the drop of the lease, each run belongs to the program with a mapping of it. Without a
/// mapping the run is free.
#[derive(Debug)]
pub struct Lease {
    /// The pool's file, as an open file description with the locks of `ranges`.
    pub file: File,
    /// Usable bytes of the file, in ascending order. No two ranges touch.
    pub ranges: Vec<Range<u64>>,
}
