//! The shapes that the block maps of a file system's files can have.

use everbyte_extent::MapKind;
use everbyte_media::PoolOffset;
use everbyte_pool::Corrupt;

/// The feature of a pool that has a file system whose block maps are not radix trees: a program that knows
/// file systems may not know these.
pub(crate) const RO_COMPAT_BLOCK_MAPS: u64 = 1 << 4;

/// Shapes of block maps, beyond the blocks whose entries stand in the inode: all those of a file system have one,
/// which is chosen when it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BlockMapKind {
    /// A radix tree with a word for each block.
    #[default]
    Radix,
    /// A B+ tree of runs of blocks that lie together.
    Runs,
}

impl BlockMapKind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Radix, Self::Runs];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Radix => "radix",
            Self::Runs => "runs",
        }
    }

    /// The kind of this name, if there is such a one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Features of a pool with a file system that has such maps, beside those of every file system.
    pub(crate) fn ro_compat(self) -> u64 {
        if self == Self::Radix { 0 } else { RO_COMPAT_BLOCK_MAPS }
    }

    /// The shape of an extent's map, whose number is in the volume's descriptor.
    pub(crate) fn map(self) -> MapKind {
        match self {
            Self::Radix => MapKind::Radix,
            Self::Runs => MapKind::Runs,
        }
    }

    /// The kind with this number in the descriptor of a volume whose root word is at `root_at`.
    ///
    /// # Errors
    /// There is no such a one.
    pub(crate) fn from_code(code: u32, root_at: PoolOffset) -> Result<Self, Corrupt> {
        let unknown = || {
            let what = format!("block maps of kind {code} are unknown to this program");
            Corrupt::new("volume descriptor", root_at, what)
        };
        Self::ALL.into_iter().find(|kind| kind.map().code() == code).ok_or_else(unknown)
    }
}
