//! The last line of a run of blocks with nodes of an index over inode tables.

use everbyte_media::LINE;
use zerocopy::{Immutable, IntoBytes, KnownLayout};

/// The trailer of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct IndexRunTrailer {
    /// Its number, a checked word.
    pub(crate) number: u64,
    /// The word that names the previous run; 0 for the first run.
    pub(crate) previous: u64,
    pub(crate) reserved: [u64; 6],
}

/// Offset of the word that names the previous run.
pub(crate) const PREVIOUS_RUN_AT: u64 = 8;

const _: () = assert!(size_of::<IndexRunTrailer>() == LINE);
const _: () = assert!(std::mem::offset_of!(IndexRunTrailer, previous) as u64 == PREVIOUS_RUN_AT);
