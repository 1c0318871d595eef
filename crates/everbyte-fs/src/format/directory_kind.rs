//! The shapes that the directories of a file system can have.

/// The feature of a pool that has a file system whose directories are not hashed: a program that knows
/// file systems may not know these.
pub(crate) const RO_COMPAT_DIRECTORIES: u64 = 1 << 3;

/// Shapes of directories: all those of a file system have one, which is chosen when it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DirectoryKind {
    /// Extendible hashing: a trie over the bits of names' hashes, with buckets at its ends.
    #[default]
    Hashed,
    /// Buckets one after the other, in which a name is anywhere, as in PMFS.
    Linear,
    /// A B+ tree by the hashes of names, with buckets as its leaves.
    BPlus,
}

impl DirectoryKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Hashed, Self::Linear, Self::BPlus];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hashed => "hashed",
            Self::Linear => "linear",
            Self::BPlus => "b+",
        }
    }

    /// The kind of this name, if there is such a one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Features of a pool with a file system that has such directories, beside those of every file
    /// system.
    pub(crate) fn ro_compat(self) -> u64 {
        if self == Self::Hashed { 0 } else { RO_COMPAT_DIRECTORIES }
    }

    /// The number in a superblock and in buckets.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Hashed => 0,
            Self::Linear => 1,
            Self::BPlus => 2,
        }
    }

    /// The kind with this number, if there is such a one.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
}
