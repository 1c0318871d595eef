//! Errors of regions.

use std::io;

/// A refused or failed request to map or use a region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A setting of the system forbids userfaultfd.
    #[error("userfaultfd is forbidden: {setting}: {source}")]
    Forbidden {
        /// The settings able to forbid it.
        setting: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel has no userfaultfd, its userfaultfd cannot write-protect (before Linux 5.7), or
    /// it cannot exclude accesses of the kernel (before Linux 5.11).
    #[error("this kernel's userfaultfd lacks features needed by regions: {source}")]
    Unsupported {
        /// The system's error.
        source: io::Error,
    },
    /// The length is 0, not a multiple of 4096, or beyond address space.
    #[error("a region cannot have {bytes} bytes: it needs a positive multiple of 4096")]
    BadLength {
        /// The length asked for.
        bytes: u64,
    },
    /// The DRAM limit is less than is pinned needs, or less than any region needs.
    #[error("a DRAM limit of {limit} bytes is too low: at least {least} bytes are needed")]
    LimitTooLow {
        /// The limit asked for in bytes.
        limit: u64,
        /// The smallest possible limit in bytes.
        least: u64,
    },
    /// The space has too few unreserved slots.
    #[error(
        "the region needs {needed} slots in addition to its DRAM; the space has {free} unreserved slots"
    )]
    SpaceTooSmall {
        /// Slots needed.
        needed: u64,
        /// Unreserved slots.
        free: u64,
    },
    /// The bytes do not all lie in the region.
    #[error("bytes {start}..{end} leave the region of {len} bytes")]
    OutOfRange {
        /// The first byte named.
        start: u64,
        /// The end of the bytes named.
        end: u64,
        /// Bytes of the region.
        len: u64,
    },
    /// The request accepts whole units only.
    #[error("bytes {start}..{end} are not whole units of 4096 bytes")]
    Misaligned {
        /// The first byte named.
        start: u64,
        /// The end of the bytes named.
        end: u64,
    },
    /// More would be pinned than three quarters of the DRAM limit.
    #[error("{pinned} bytes would be pinned; the DRAM limit allows {most}")]
    TooMuchPinned {
        /// Pinned bytes if the request succeeded.
        pinned: u64,
        /// Maximum number of pinned bytes.
        most: u64,
    },
    /// The bytes at an offset are pinned.
    #[error("the bytes at offset {offset} are pinned")]
    Pinned {
        /// The first such offset.
        offset: u64,
    },
    /// The bytes at an offset are not pinned, or are pinned 4095 times already.
    #[error("the bytes at offset {offset} are not pinned, or have the maximum number of pins")]
    BadPin {
        /// The first such offset.
        offset: u64,
    },
    /// Bytes cannot be brought in: their slot cannot be read.
    #[error("the bytes at offset {offset} are lost: their slot of the store is unreadable")]
    Unreadable {
        /// The first such offset.
        offset: u64,
    },
    /// The system has no page to give.
    #[error("the system has no memory for the bytes at offset {offset}")]
    NoMemory {
        /// The offset.
        offset: u64,
    },
    /// The store lost written bytes. The region evicts no further units. Its own bytes are intact.
    #[error("the store lost written bytes: the region evicts no further units")]
    StoreFailed,
    /// The system does not remove pages of the region. Kernels before Linux 5.18 keep pages locked
    /// by the program. The region evicts no further units. Its bytes are intact.
    #[error(
        "the system keeps pages of the region in DRAM as if they were locked: the region evicts no further units"
    )]
    Locked,
    /// No slot is free for units due for eviction. No bytes are lost: the region uses DRAM beyond
    /// its limit.
    #[error("the store has no free slot, so the region takes DRAM beyond its limit")]
    StoreFull,
    /// The program closed the region's userfaultfd, by number or with every other descriptor.
    #[error("the region's userfaultfd was closed: the region cannot move units")]
    DescriptorLost,
    /// This process is a forked child, and the region is its parent's.
    #[error("the region belongs to the parent process: a forked child cannot use it")]
    ForkedChild,
    /// A region in direct mode cannot do this.
    #[error("a region in direct mode cannot {what}")]
    NotDirect {
        /// The request, as a verb for "cannot ...".
        what: &'static str,
    },
    /// Direct mode needs a second mapping of the store's memory, and the store cannot have one.
    #[error(
        "direct mode needs a store in a file or in a lease of shared memory, and the default slot tree"
    )]
    NotMappable,
    /// The system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// The failed action, as a verb for "cannot ...".
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The process has as many regions and media as it can have.
    #[error("this process has too many regions and media")]
    TooMany,
}

impl RegionError {
    pub(crate) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }
}
