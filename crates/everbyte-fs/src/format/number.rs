//! Numbers and types of files.

/// Number of an inode. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InodeNo(pub u64);

impl std::fmt::Display for InodeNo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "inode {}", self.0)
    }
}

/// Bits of a mode with the type of a file.
pub const MODE_TYPE: u32 = 0o170_000;
/// Bits of a mode with permissions, set-user-id, set-group-id and sticky.
pub const MODE_PERMISSIONS: u32 = 0o7777;
/// Set-group-id. New files in such a directory get its group.
pub(crate) const SET_GROUP_ID: u32 = 0o2000;
/// The set-user-id and the set-group-id bit of a mode.
pub const SET_ID_BITS: u32 = 0o6000;

/// The type of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileType {
    const ALL: [Self; 7] = [
        Self::Regular,
        Self::Directory,
        Self::Symlink,
        Self::Fifo,
        Self::Socket,
        Self::CharDevice,
        Self::BlockDevice,
    ];

    /// Its bits in a mode.
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
        }
    }

    /// The type in `mode`; `None` for an invalid one.
    #[must_use]
    pub fn from_mode(mode: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.mode_bits() == mode & MODE_TYPE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_encodes_the_file_type() {
        for kind in FileType::ALL {
            assert_eq!(FileType::from_mode(kind.mode_bits() | 0o644), Some(kind));
        }
        assert_eq!(FileType::from_mode(0o644), None);
    }
}
