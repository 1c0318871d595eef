//! Media of pools: their kinds, their persistence domains, emulated technologies.

pub use everbyte_media::{
    Description, LineCost, Mapped, MediaKind, MediaOptions, Medium, OpenError, PersistenceDomain,
    PoolOffset, Technology,
};
