//! What a pool's memory is: kinds of media, what they survive, emulated technologies.

pub use everbyte_media::{Description, LineCost, MediaKind, PersistenceDomain, Technology};
