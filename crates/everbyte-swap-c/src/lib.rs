//! Regions of `everbyte-swap` for programs in C: a library and its header, `include/everbyte_region.h`.
//!
//! Invariants: every detectably invalid argument is an error, including null and misaligned
//! pointers, with a text for this thread in [`everbyte_error`]; only a successful call writes an
//! output. cbindgen generates the header from this crate, and a test detects an outdated header.
//! The paging of regions belongs to `everbyte-swap`.

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
