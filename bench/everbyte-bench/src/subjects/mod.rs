//! The subjects: one file for each kind.

pub(crate) mod ext4;
pub(crate) mod file;
pub(crate) mod floor;
pub(crate) mod mount_ns;
pub(crate) mod mounted;
pub(crate) mod nbd;
pub(crate) mod places;
pub(crate) mod plain;
pub(crate) mod pmemblk;
pub(crate) mod pmemblk_library;
pub(crate) mod raw_memory;
pub(crate) mod served;
pub(crate) mod vhost;
pub(crate) mod volume;
