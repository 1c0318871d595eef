//! The file system: files and directories on a volume of a pool, made for byte-addressable memory.
//!
//! Owns what files are: inodes and where they lie, directories, names, sizes, times. A file's bytes are
//! an extent. An operation is one batch, so that after a crash it is there as a whole or not at all, and
//! the volume is as it was at a checkpoint: nothing needs repair. Knows the pool's batches and extents;
//! knows no mount and no client.

#![forbid(unsafe_code)]

mod access;
mod acl;
mod acls;
mod attr;
mod attribute_block;
mod attributes;
mod block_map_kind;
mod blocks;
mod check;
mod copy;
mod data;
mod dentries;
mod dir;
mod directory_kind;
mod edits;
mod error;
mod file_flags;
mod files;
mod flags;
mod format;
mod found;
mod fs;
mod index;
mod kind;
mod list;
mod locks;
mod lookups;
mod name;
mod names;
mod number;
mod open_file;
mod orphan;
mod path;
pub mod plant;
mod protection;
mod reader;
mod rename;
mod resize;
mod salvage;
mod scrub;
mod space;
mod status;
mod tables;
#[cfg(feature = "testkit")]
pub mod testkit;
mod unnamed;
mod view;

pub use access::AccessTimes;
pub use acl::{ACL_ACCESS, ACL_DEFAULT};
pub use attr::{Attr, SetAttr, SetTime};
pub use attribute_block::ATTRIBUTES_BYTES_MAX;
pub use attributes::{SetAttribute, SetGroupId};
pub use block_map_kind::BlockMapKind;
pub use copy::FilePlace;
pub use directory_kind::DirectoryKind;
pub use error::FsError;
pub use everbyte_extent::{View, ViewError};
pub use everbyte_pool::{PinError, PinLimits};
pub use file_flags::FileFlags;
pub use format::{FS, TIME_RANGE_NS};
pub use fs::{FileSystem, FsOptions};
pub use index::IndexKind;
pub use kind::{FS_NAME, kinds};
pub use list::{DirEntry, ReadableEntries};
#[cfg(feature = "count-lookups")]
pub use lookups::lookups_of_this_thread;
pub use name::{NAME_BYTES_MAX, Name};
pub use names::NewInode;
pub use number::{FileType, InodeNo, MODE_PERMISSIONS, MODE_TYPE};
pub use open_file::OpenFile;
pub use path::Located;
pub use rename::RenameMode;
pub use salvage::Leak;
pub use space::{Allocation, Seek};
pub use status::FsStatus;
