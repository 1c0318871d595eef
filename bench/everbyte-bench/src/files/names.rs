//! The names of subjects.

pub(super) const FLOOR: &str = "floor";
pub(super) const LIBRARY: &str = "everbyte";
pub(super) const TMPFS: &str = "tmpfs";
pub(super) const EXT4: &str = "ext4";
pub(super) const VOLUME: &str = "volume";
