//! Errors of regions: what was asked, and what stood in the way.

use std::io;

/// A request to a region, or for one, that was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A setting of the system forbids userfaultfd.
    #[error("userfaultfd is forbidden: {setting}: {source}")]
    Forbidden {
        /// The settings that can forbid it.
        setting: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel has no userfaultfd, or one that cannot write-protect (before Linux 5.7) or
    /// cannot leave the kernel's accesses out (before Linux 5.11).
    #[error("this kernel's userfaultfd lacks what regions need: {source}")]
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
    /// The space has too few slots that no region has reserved.
    #[error("the region needs {needed} slots of the space beside its DRAM; {free} are unreserved")]
    SpaceTooSmall {
        /// Slots needed.
        needed: u64,
        /// Slots that nobody has reserved.
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
    /// Only whole units can be given up.
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
        /// Bytes that would be pinned.
        pinned: u64,
        /// Bytes that may be.
        most: u64,
    },
    /// The bytes at an offset are pinned.
    #[error("the bytes at offset {offset} are pinned")]
    Pinned {
        /// The first such offset.
        offset: u64,
    },
    /// The bytes at an offset are not pinned, or are pinned 4095 times already.
    #[error("the bytes at offset {offset} are not pinned, or pinned as often as they can be")]
    BadPin {
        /// The first such offset.
        offset: u64,
    },
    /// Bytes cannot be brought in: their slot cannot be read.
    #[error("the bytes at offset {offset} are lost: the store cannot be read there")]
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
    /// The store has lost what was written to it. Nothing is evicted any more; no bytes of the
    /// region are lost.
    #[error("the store lost bytes that were written to it, so nothing is evicted any more")]
    StoreFailed,
    /// The system takes no pages of the region away, as kernels before Linux 5.18 do where the program has locked
    /// them. Nothing is evicted any more; no bytes are lost.
    #[error(
        "the system keeps pages of the region in DRAM, as if they were locked, so nothing is evicted any more"
    )]
    Locked,
    /// There is no free slot, though units should be evicted. No bytes are lost; DRAM beyond
    /// the limit is used instead.
    #[error("the store has no free slot, so the region takes DRAM beyond its limit")]
    StoreFull,
    /// Somebody closed the region's userfaultfd, by number or with every other descriptor.
    #[error("the region's userfaultfd was closed, so nothing can be moved any more")]
    DescriptorLost,
    /// This process is a forked child, and the region is its parent's.
    #[error("the region is of the process that this one was forked from")]
    ForkedChild,
    /// A region in direct mode cannot do this.
    #[error("a region in direct mode cannot {what}")]
    NotDirect {
        /// The request, as a verb for "cannot ...".
        what: &'static str,
    },
    /// The store's memory cannot be mapped a second time, which direct mode needs.
    #[error(
        "direct mode needs a store in a file or a lease of shared memory, and a space of order 64"
    )]
    NotMappable,
    /// The system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// The action that failed, as a verb for "cannot ...".
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
