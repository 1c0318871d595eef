//! File names and the cache of directory entries.

pub(crate) mod cache;
pub(crate) mod file_name;
