//! The compared kinds of memory, by name.

use std::path::Path;

use super::allocators::Way;
use super::full_store::Crowd;
use super::kernel::KernelSwap;
use super::place::{Backing, Motion, RegionBacking, RunBacking};

/// A subject of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Subject {
    /// All of it in DRAM: the floor.
    Dram,
    /// A file on tmpfs, mapped: the medium itself, where it is byte-addressable.
    MappedFile,
    /// A region whose faults are resolved in the thread that faulted.
    Sigbus,
    /// The same, with the paper's slot tree.
    Order8,
    /// The same, which copies every page out.
    Untracked,
    /// The same, without reading ahead, as in the paper.
    NoReadAhead,
    /// A region with a thread that resolves faults.
    Transparent,
    /// A region in direct mode: what is not in DRAM is the store's own memory.
    Direct,
    /// The same, whose parts move only when they are asked to.
    DirectStill,
    /// A region on a store as slow as a flash drive.
    Flash,
    /// A region in a space of which others hold nearly all, whose free slots are found in a given way.
    Crowded(Way),
    /// A program whose heap pages by `everbyte run`.
    Run,
    /// The kernel's own paging.
    Kernel(KernelSwap),
}

impl Subject {
    pub(super) const PAGING: [Self; 7] = [
        Self::Dram,
        Self::MappedFile,
        Self::Sigbus,
        Self::Untracked,
        Self::NoReadAhead,
        Self::Transparent,
        Self::Direct,
    ];
    /// Regions, which have a DRAM limit.
    pub(super) const LIMITED: [Self; 5] =
        [Self::Order8, Self::Sigbus, Self::Transparent, Self::Direct, Self::Flash];

    /// In a crowded space, by the linear search and by our tree.
    pub(super) const CROWDED: [Self; 2] = [Self::Crowded(Way::Linear), Self::Crowded(Way::Order64)];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Dram => "dram",
            Self::MappedFile => "mmap-tmpfs",
            Self::Sigbus => "region",
            Self::Order8 => "region-order8",
            Self::Untracked => "region-untracked",
            Self::NoReadAhead => "region-no-read-ahead",
            Self::Transparent => "region-transparent",
            Self::Direct => "region-direct",
            Self::DirectStill => "region-direct-still",
            Self::Flash => "region-on-flash",
            Self::Crowded(Way::Linear) => "region-crowded-linear",
            Self::Crowded(_) => "region-crowded",
            Self::Run => "everbyte-run",
            Self::Kernel(kernel) => kernel.name(),
        }
    }

    /// True if pages that go in and out are counted.
    pub(super) fn pages(self) -> bool {
        !matches!(self, Self::Dram | Self::MappedFile)
    }

    /// True if an access to what is not in DRAM brings a page in.
    pub(super) fn pages_on_access(self) -> bool {
        self.pages() && !matches!(self, Self::Direct | Self::DirectStill)
    }

    /// True for regions.
    pub(super) fn is_region(self) -> bool {
        self.pages() && !matches!(self, Self::Kernel(_))
    }

    /// True for regions whose searches for free slots count what they look at.
    pub(super) fn counts_visits(self) -> bool {
        match self {
            Self::Crowded(way) => way.counts_visits(),
            _ => self.is_region(),
        }
    }

    /// Returns the memory to map, whose files are new ones in `folder`. That of kernel swap is anonymous
    /// too, in a cgroup that only its guardian knows.
    pub(super) fn backing(
        self,
        folder: &Path,
        dram_bytes: u64,
        crowd: impl Fn(Way) -> Crowd,
    ) -> Backing {
        match self {
            Self::Dram | Self::Kernel(_) => Backing::Anonymous,
            Self::MappedFile => Backing::File(folder.join("mapped")),
            Self::Run => Backing::Run(RunBacking { folder: folder.to_owned(), dram_bytes }),
            _ => Backing::Region(RegionBacking {
                store: folder.join("store"),
                dram_bytes,
                handlers: usize::from(self == Self::Transparent),
                tracks_stores: self != Self::Untracked,
                read_ahead: if self == Self::NoReadAhead { 1 } else { 16 },
                uses_order8: self == Self::Order8,
                is_flash: self == Self::Flash,
                direct: match self {
                    Self::Direct => Some(Motion::Exchanging),
                    Self::DirectStill => Some(Motion::Still),
                    _ => None,
                },
                crowd: match self {
                    Self::Crowded(way) => Some(crowd(way)),
                    _ => None,
                },
            }),
        }
    }
}
