//! Safe access to paths that other users can change: directories, files, links and mounts by
//! descriptors.
//!
//! Owns each step from a path to a descriptor. Commands and the server open, create, rename, remove
//! and unmount by this crate only. Knows nothing of pools, volumes and mounted file systems.
//!
//! Invariants:
//! - A name beneath a [`Dir`] never leads out of the directory and never through a symbolic link.
//! - The type of a file is checked on the open descriptor. Opening never waits for another process.
//! - Attributes are set on descriptors.
//! - A new file gets its name only if the temporary name still leads to the descriptor.

#![forbid(unsafe_code)]

mod attributes;
mod beneath;
mod dir;
mod entry;
mod input;
mod lock;
mod mounts;
mod new_file;
mod open;
mod output;
mod place;
mod rights;

pub use attributes::Attributes;
pub use dir::Dir;
pub use entry::{Entry, Identity, Kind};
pub use input::{open_input, read, read_to_string};
pub use lock::FileLock;
pub use mounts::{MountPoint, detach};
pub use new_file::NewFile;
pub use open::{
    Access, WrongKind, look, look_at_link, open, open_at, read_file, read_trusted_file,
};
pub use output::{create, make_dirs};
pub use place::{Place, is_trusted_link};
pub use rights::{Rights, UserRights, open_unmagical};

#[cfg(test)]
mod tests;
