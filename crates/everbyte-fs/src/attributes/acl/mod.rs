//! Access control lists.

pub(crate) mod apply;
pub(crate) mod format;
