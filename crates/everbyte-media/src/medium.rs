//! The contract between persistent memory and everything above it.

use std::io;
use std::os::fd::BorrowedFd;

use crate::units::{BlockNo, LineMask, PoolOffset};
use crate::window::Window;

/// The persistence domain of a medium: the strongest event that its contents outlive once they are
/// durable by the contract of [`Medium`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PersistenceDomain {
    /// The loss of power.
    Power,
    /// The end of the process (however it ends), but neither power loss nor reboot.
    Process,
    /// Nothing: the memory is this process's own.
    Nothing,
}

impl std::fmt::Display for PersistenceDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Power => "power",
            Self::Process => "process",
            Self::Nothing => "nothing",
        })
    }
}

/// The reason why a medium can no longer promise durability, or a range of it cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MediaError {
    /// The kernel could not write pages back; what was stored there may be lost.
    #[error("writing back {len} bytes at {at} failed: {reason}")]
    WriteBack {
        /// Start of the range.
        at: PoolOffset,
        /// Bytes in the range.
        len: u64,
        /// The system's words.
        reason: String,
    },
    /// A load met memory that is not there: a truncated file or a failed memory cell.
    #[error("memory error at {at}: the file was truncated or the memory failed")]
    Poisoned {
        /// The first poisoned address of the range that was asked for.
        at: PoolOffset,
    },
    /// A store went to such memory and is lost.
    #[error("a store at {at} was lost: the file was truncated or the memory failed")]
    StoreLost {
        /// The first such address.
        at: PoolOffset,
    },
}

/// A poisoned range: bytes of the medium that are known to be unreadable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PoisonedRange {
    /// Its start.
    pub at: PoolOffset,
    /// Its bytes: a line, or a page where memory is mapped by pages.
    pub len: u64,
}

impl PoisonedRange {
    /// Returns the first poisoned address in `at .. at + len`.
    #[must_use]
    pub fn first_in(&self, at: PoolOffset, len: u64) -> Option<PoolOffset> {
        let first = self.at.0.max(at.0);
        (first < (self.at.0 + self.len).min(at.0 + len)).then_some(PoolOffset(first))
    }
}

/// One piece of a message that [`Medium::send`] puts on a socket.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Bytes of the caller's.
    Bytes(&'a [u8]),
    /// `len` bytes of the medium from `at` on.
    Stored {
        /// Start of the range.
        at: PoolOffset,
        /// Bytes in the range.
        len: usize,
    },
    /// `len` zero bytes, from no particular place.
    Zeroes {
        /// Zero bytes in the piece.
        len: usize,
    },
}

impl Piece<'_> {
    /// Bytes the piece puts on the socket.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Stored { len, .. } | Self::Zeroes { len } => *len,
        }
    }

    /// Returns true if the piece is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Exact sums over everything a medium was asked to do since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Bytes stored, streamed ones included.
    pub bytes_stored: u64,
    /// Lines that stores touched; a line stored to twice counts twice.
    pub lines_stored: u64,
    /// Lines flushed explicitly; streamed lines do not count.
    pub lines_flushed: u64,
    /// Fences.
    pub fences: u64,
    /// Modelled cost of the emulated technology in nanoseconds; 0 without emulation.
    pub modelled_ns: u64,
}

impl Counters {
    /// Returns the events between `earlier` and `self`, sum by sum.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            bytes_stored: self.bytes_stored - earlier.bytes_stored,
            lines_stored: self.lines_stored - earlier.lines_stored,
            lines_flushed: self.lines_flushed - earlier.lines_flushed,
            fences: self.fences - earlier.fences,
            modelled_ns: self.modelled_ns - earlier.modelled_ns,
        }
    }
}

/// Byte-addressable memory with explicit persistence.
///
/// # Contract
/// - **Range checks** are the caller's duty for bytes that come from outside. An address beyond
///   `len()` here is a broken invariant of ours and panics.
/// - **Order.** An ordinary store (`store`, `store_word`) becomes durable at any moment from when
///   it is made, and for certain once its line was flushed *and then* a fence was made, both by
///   one thread, after the store. Ordinary stores to one line become durable in program order.
///   A streamed copy (`stream`) needs no flush: it is durable after the next fence *of the thread
///   that streamed it*, and before that any subset of its aligned 8-byte words may be.
/// - **Atomicity.** An aligned 8-byte word (`store_word`) is never torn. Nothing larger is atomic.
/// - **Visibility.** Loads see the newest store at once, flushed or not, whichever thread made it,
///   provided that the two threads are ordered (a lock, or `store_word` and `load_word`, which
///   release and acquire). Streamed bytes are an exception: another thread is sure to see them
///   only if it is ordered after a fence of the thread that streamed them.
/// - **Sharing.** No method hands out a reference into the medium: other threads and other
///   processes may write it. Racing accesses to the same bytes give unspecified bytes, never
///   undefined behaviour; callers that need whole blocks hold a lock, or load by `peek` and
///   `peek_word` and find out afterwards whether anybody stored there meanwhile.
/// - **Failure.** Loads and stores do not fail. A fence may (a file's `msync`); after that, and
///   after a store that was lost, the medium has *failed* for good: every later fence fails and
///   `check` says why. An acknowledgement to anyone must come after a successful `check` that
///   follows the last access it rests on.
/// - **Media errors.** A load of memory that is not there, or has failed, gives zeroes, and the
///   range around it is *poisoned* from then on, for good. Whoever loads must ask `check_range`
///   after the load and before anything rests on it, so that nobody takes the zeroes for what was
///   stored. A poisoned range fails the medium only when someone stores there: a store to it, and
///   a flush of it, are stores lost. Memory that was never touched may be poisoned without anyone
///   knowing; `probe` finds out.
/// - No method panics for anything a medium, a file or a peer contains.
pub trait Medium: Send + Sync + 'static {
    /// Size in bytes, a multiple of 4096. It may grow while the medium is open, never shrink.
    fn len(&self) -> u64;

    /// Returns true if the medium has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the strongest event that durable contents outlive.
    fn persistence_domain(&self) -> PersistenceDomain;

    /// The aligned 8-byte word at `at`, little-endian, with acquire order.
    fn load_word(&self, at: PoolOffset) -> u64;

    /// Copies `out.len()` bytes from `at` on into `out`.
    fn read(&self, at: PoolOffset, out: &mut [u8]);

    /// As `load_word`, of a word that others may store or stream to at the same time. What it gives then is
    /// unspecified: the caller finds out, and uses nothing of it.
    #[inline]
    fn peek_word(&self, at: PoolOffset) -> u64 {
        self.load_word(at)
    }

    /// As `read`, of bytes that others may store or stream to at the same time, as for `peek_word`.
    #[inline]
    fn peek(&self, at: PoolOffset, out: &mut [u8]) {
        self.read(at, out);
    }

    /// The lines of `block` in which bytes `start .. start + new.len()` differ from `new`.
    /// The range must lie in the block.
    fn changed_lines(&self, block: BlockNo, start: usize, new: &[u8]) -> LineMask;

    /// Stores the aligned 8-byte word `value` at `at`, little-endian, in one piece, with release
    /// order. Needs flush and fence to be durable.
    fn store_word(&self, at: PoolOffset, value: u64);

    /// Stores `bytes` at `at` with ordinary stores. Needs flush and fence to be durable.
    fn store(&self, at: PoolOffset, bytes: &[u8]);

    /// Stores `bytes` at `at` with non-temporal stores where that is faster. Needs a fence of this
    /// thread to be durable, and to be sure to be seen by others, but no flush, whatever the
    /// alignment. Until then no other thread may store there: its bytes could be overwritten later.
    fn stream(&self, at: PoolOffset, bytes: &[u8]);

    /// Prefetches the lines of `at .. at + len`, which will be read or stored to soon. The range
    /// need not lie in the medium.
    fn prefetch(&self, _at: PoolOffset, _len: usize) {}

    /// Makes an empty window with room for so many regions of 2 MiB, through which runs of this
    /// medium are read at consecutive addresses.
    fn window(&self, regions_max: u64) -> Window {
        Window::new(regions_max)
    }

    /// Adds a region to `window`, one of this medium's, behind the others. It shows the 2 MiB at
    /// `run`, a multiple of 2 MiB, until the window is dropped, and is there for every thread once
    /// this has returned.
    ///
    /// # Panics
    /// If the window is full, or `run` is no such address.
    fn extend_window(&self, window: &Window, run: PoolOffset) {
        window.push(run, None);
    }

    /// As `load_word`, of the word at `at` of `window`, one of this medium's. Media errors are
    /// asked for at its address in the medium, which [`Window::offset`] tells.
    ///
    /// # Panics
    /// If the window does not have that word.
    #[inline]
    fn load_word_in(&self, window: &Window, at: u64) -> u64 {
        self.load_word(window.offset_of(at, 8))
    }

    /// As `read`, of bytes at `at` of `window`, which lie in one region.
    ///
    /// # Panics
    /// As `load_word_in`.
    #[inline]
    fn read_in(&self, window: &Window, at: u64, out: &mut [u8]) {
        self.read(window.offset_of(at, out.len() as u64), out);
    }

    /// Starts writing back every line that `at .. at + len` touches. Durable after this thread's
    /// next fence.
    fn flush(&self, at: PoolOffset, len: u64);

    /// Completes this thread's flushes and streams.
    ///
    /// # Errors
    /// If the medium has failed, or fails by this very fence. What was flushed before may then be
    /// durable or not.
    fn fence(&self) -> Result<(), MediaError>;

    /// Checks that the medium has not failed.
    ///
    /// # Errors
    /// The reason, if it has.
    fn check(&self) -> Result<(), MediaError>;

    /// Returns true if any range is known to be poisoned. Costs one load.
    fn has_poison(&self) -> bool;

    /// Returns the first address in `at .. at + len` that is known to be poisoned.
    fn poisoned_in(&self, at: PoolOffset, len: u64) -> Option<PoolOffset>;

    /// Returns all ranges that are known to be poisoned, in ascending order, without overlaps.
    fn poisoned_ranges(&self) -> Vec<PoisonedRange>;

    /// Loads something of every page of `at .. at + len`, so that pages which are not there are
    /// known to be poisoned.
    fn probe(&self, at: PoolOffset, len: u64);

    /// The address of `at .. at + len`, for who loads the bytes without this trait; the 4 KiB behind can be
    /// loaded as well. `None` where such loads would not be what loads of the medium are: its costs are
    /// emulated, or it is not memory of this process, or it ends there. Valid while the medium is. What it points to may change at
    /// any time, or fail, so nobody makes a reference of it.
    fn lend(&self, at: PoolOffset, len: u64) -> Option<*const u8> {
        let _ = (at, len);
        None
    }

    /// Checks that earlier loads of `at .. at + len` gave what was stored.
    ///
    /// # Errors
    /// `Poisoned` if some of the range is known to be poisoned.
    #[inline]
    fn check_range(&self, at: PoolOffset, len: u64) -> Result<(), MediaError> {
        if !self.has_poison() {
            return Ok(());
        }
        self.poisoned_in(at, len).map_or(Ok(()), |at| Err(MediaError::Poisoned { at }))
    }

    /// Puts `pieces` on `socket` in order, without copying the medium's bytes through user
    /// space, and without blocking: returns how many bytes the socket took, 0 if it had no room.
    /// The caller has probed and checked what is stored, and checks it again afterwards. Memory that fails during
    /// the call ends it with an error or a short count; where another thread has met it before, zeroes may have
    /// been sent in its place, and it is known to be poisoned then.
    ///
    /// # Errors
    /// The socket's; `WouldBlock` is not an error but a return of 0.
    fn send(&self, socket: BorrowedFd<'_>, pieces: &[Piece<'_>]) -> io::Result<usize>;

    /// Sums since the medium was opened.
    fn counters(&self) -> Counters;

    /// Approximate costs of a line in nanoseconds: of a load, and of a store with its flush. They
    /// weigh one against the other, and are never a measurement.
    fn line_cost_ns(&self) -> (u32, u32);
}
