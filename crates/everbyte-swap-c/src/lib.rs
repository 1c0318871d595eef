//! Regions of `everbyte-swap` for programs in C: a library and its header, `include/everbyte_region.h`.
//!
//! Invariants: whatever a caller passes that can be told to be wrong is an error, with words for this
//! thread in [`everbyte_error`]; null and misaligned pointers are; nothing is written to an output
//! but by a call that succeeds. The header is made of this crate by cbindgen, and a test says when it
//! is out of date. Knows nothing of how regions page.

#![allow(unsafe_code, reason = "functions for callers in C")]

mod error;
mod region;
mod space;

pub use error::{EverbyteStatus, everbyte_error};
pub use region::{
    EVERBYTE_DIRECT_EXCHANGING, EVERBYTE_DIRECT_STILL, EVERBYTE_DONT_NEED, EVERBYTE_WILL_NEED,
    EverbyteRegion, EverbyteRegionOptions, EverbyteStatistics, everbyte_region_address,
    everbyte_region_advise, everbyte_region_check, everbyte_region_map, everbyte_region_pin,
    everbyte_region_prefetch, everbyte_region_statistics, everbyte_region_unmap,
    everbyte_region_unpin,
};
pub use space::{
    EverbyteSpace, everbyte_space_borrow, everbyte_space_close, everbyte_space_create,
    everbyte_space_open,
};
