//! The file system: files and directories on a volume of a pool, for byte-addressable memory.
//!
//! The crate owns inodes, directories, names, sizes and times. An extent holds a file's bytes. An operation
//! is one batch, so it is atomic, and after a crash the volume is at a checkpoint without repair. The crate
//! knows the pool's batches and extents, and does not know mounts and clients.

#![forbid(unsafe_code)]

mod attributes;
mod dentry;
mod dir;
mod error;
mod file;
mod format;
mod fs;
mod index;
mod inode;
mod maintenance;
mod namespace;
pub mod plant;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use attributes::access::AccessTimes;
pub use attributes::acl::format::{ACL_ACCESS, ACL_DEFAULT};
pub use attributes::privileges::CAPABILITY;
pub use attributes::stat::{Attr, SetAttr, SetTime};
pub use attributes::xattr::{SetAttribute, SetGroupId};
pub use attributes::xattr_block::ATTRIBUTES_BYTES_MAX;
pub use dentry::file_name::{NAME_BYTES_MAX, Name};
pub use error::FsError;
pub use everbyte_extent::{View, ViewError};
pub use everbyte_pool::{PinError, PinLimits};
pub use file::copy::FilePlace;
pub use file::open_file::OpenFile;
pub use file::space::{Allocation, Seek};
pub use format::file_flags::FileFlags;
pub use format::number::{FileType, InodeNo, MODE_PERMISSIONS, MODE_TYPE, SET_ID_BITS};
pub use format::{FS, TIME_RANGE_NS};
pub use fs::{FileSystem, FsOptions};
pub use index::IndexKind;
pub use maintenance::kind::{FS_NAME, kinds};
pub use maintenance::salvage::Leak;
pub use maintenance::status::FsStatus;
pub use namespace::entries::NewInode;
pub use namespace::path::PathTarget;
pub use namespace::readdir::{DirEntry, ReadableEntries};
pub use namespace::rename::RenameMode;
