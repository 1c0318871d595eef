//! Contents of regular files: read, write, holes, copies, pinned views and open files.

pub(crate) mod copy;
pub(crate) mod data;
pub(crate) mod open_file;
pub(crate) mod pinned_view;
pub(crate) mod space;
