//! Names of files: lookup, creation, links, removal, rename, paths and directory iteration.

pub(crate) mod entries;
pub(crate) mod path;
pub(crate) mod readdir;
pub(crate) mod rename;
pub(crate) mod tmpfile;
