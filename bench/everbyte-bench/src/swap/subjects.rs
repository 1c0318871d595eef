//! The compared kinds of memory, by name.

use serde::{Deserialize, Serialize};

use super::allocators::Way;
use super::kernel::KERNEL_SWAPS;

/// A subject of the suite.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) enum Subject {
    /// DRAM alone: the floor.
    Dram,
    /// A mapped file on tmpfs: the medium itself, if it is byte-addressable.
    MappedFile,
    /// A region. The faulting thread resolves the fault.
    Region,
    /// A region with the paper's slot tree.
    Order8,
    /// A region without tracked stores. It copies every evicted page.
    Untracked,
    /// A region without read-ahead, as in the paper.
    NoReadAhead,
    /// A region with a thread for faults.
    Transparent,
    /// A region in direct mode: pages outside DRAM are the store's own memory.
    Direct,
    /// A region on a store as slow as a flash drive.
    Flash,
    /// A region in a nearly full space, by allocator.
    Crowded(Way),
    /// The heap of a program under `everbyte run`.
    Run,
    /// Kernel swap, an index in [`KERNEL_SWAPS`].
    Kernel(usize),
}

impl Subject {
    /// Subjects of the access patterns.
    pub(super) const PAGING: [Self; 7] = [
        Self::Dram,
        Self::MappedFile,
        Self::Region,
        Self::Untracked,
        Self::NoReadAhead,
        Self::Transparent,
        Self::Direct,
    ];
    /// Subjects of FT with a DRAM limit.
    pub(super) const LIMITED: [Self; 5] =
        [Self::Order8, Self::Region, Self::Transparent, Self::Direct, Self::Flash];
    /// Subjects in a nearly full space.
    pub(super) const CROWDED: [Self; 3] =
        [Self::Crowded(Way::Linear), Self::Crowded(Way::Order8), Self::Crowded(Way::Order64)];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Dram => "dram",
            Self::MappedFile => "mmap-tmpfs",
            Self::Region => "region",
            Self::Order8 => "region-order8",
            Self::Untracked => "region-untracked",
            Self::NoReadAhead => "region-no-read-ahead",
            Self::Transparent => "region-transparent",
            Self::Direct => "region-direct",
            Self::Flash => "region-on-flash",
            Self::Crowded(way) => way.name(),
            Self::Run => "everbyte-run",
            Self::Kernel(nth) => KERNEL_SWAPS[nth].name,
        }
    }

    /// Returns true if pages in and out are counted.
    pub(super) fn counts_pages(self) -> bool {
        !matches!(self, Self::Dram | Self::MappedFile)
    }

    pub(super) fn is_region(self) -> bool {
        self.counts_pages() && !matches!(self, Self::Run | Self::Kernel(_))
    }
}
