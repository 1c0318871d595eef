//! The contract between persistent memory and its users.

use std::io;
use std::os::fd::BorrowedFd;

use crate::units::{BlockNo, LineMask, PoolOffset};
use crate::window::Window;

/// The persistence domain of a medium: the strongest event that durable contents survive. [`Medium`] defines
/// durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PersistenceDomain {
    /// The loss of power.
    Power,
    /// The end of the process, also by a kill. Neither power loss nor reboot.
    Process,
    /// No event: the memory is private to this process.
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

/// The reason for a failed medium or an unreadable range.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MediaError {
    /// The kernel could not write pages back. Stores to them may be lost.
    #[error("writing back {len} bytes at {at} failed: {reason}")]
    WriteBack {
        /// Start of the range.
        at: PoolOffset,
        /// Bytes in the range.
        len: u64,
        /// The system's message.
        reason: String,
    },
    /// A load hit missing memory: a truncated file or a failed memory cell.
    #[error("memory error at {at}: the file was truncated or the memory failed")]
    Poisoned {
        /// The first poisoned address of the range.
        at: PoolOffset,
    },
    /// A store to missing memory is lost.
    #[error("a store at {at} was lost: the file was truncated or the memory failed")]
    StoreLost {
        /// The first lost address.
        at: PoolOffset,
    },
}

/// A poisoned range: known unreadable bytes of the medium.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PoisonedRange {
    /// Its start.
    pub at: PoolOffset,
    /// Its length in bytes: a line, or a page of page-mapped memory.
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

/// One piece of a message of [`Medium::send`].
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
    /// `len` zero bytes without a place.
    Zeroes {
        /// Zero bytes in the piece.
        len: usize,
    },
}

impl Piece<'_> {
    /// Number of bytes in the piece.
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

/// Exact sums of the operations on a medium since its opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Bytes stored, streamed ones included.
    pub bytes_stored: u64,
    /// Lines touched by stores. A line counts once per store.
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
/// - **Ranges.** The caller checks addresses from outside. An address beyond `len()` is a broken invariant
///   and panics.
/// - **Order.** An ordinary store (`store`, `store_word`) may become durable at any moment. It is durable after
///   a flush of its line and a later fence, both by one thread and after the store. Ordinary stores to
///   one line become durable in program order. A streamed copy (`stream`) needs no flush: it is durable
///   after the next fence *of the streaming thread*. Before that, any subset of its aligned 8-byte words
///   may be durable.
/// - **Atomicity.** An aligned 8-byte word (`store_word`) is never torn. Nothing larger is atomic.
/// - **Visibility.** A load sees the newest store of any thread immediately, flushed or not, if the two
///   threads are ordered (by a lock, or by `store_word` and `load_word`, which release and acquire).
///   Exception: another thread sees streamed bytes only if it is ordered after a fence of the streaming
///   thread.
/// - **Sharing.** No method returns a reference into the medium, because other threads and processes may write
///   it. Racing accesses to the same bytes give unspecified bytes, never undefined behaviour. A caller that
///   needs whole blocks holds a lock, or loads by `peek` and `peek_word` and then detects concurrent
///   stores.
/// - **Failure.** Loads and stores do not fail. A fence may fail (the `msync` of a file). After a failed fence
///   or a lost store, the medium has *failed* permanently: every later fence fails, and `check` returns the
///   reason. Before an acknowledgement, the caller must `check` successfully after its last
///   access.
/// - **Media errors.** A load of missing or failed memory gives zeroes and *poisons* the range around it
///   permanently. The caller must call `check_range` after the load and before it uses the bytes, so that
///   it does not use the zeroes. A poisoned range fails the medium only at a store: a store to it or a flush
///   of it counts as a lost store. Untouched memory may be poisoned and unknown. `probe` detects it.
/// - **Panics.** No method panics because of the contents of a medium, a file or a peer's message.
pub trait Medium: Send + Sync + 'static {
    /// Size in bytes, a multiple of 4096. It can grow while the medium is open, and never shrinks.
    fn len(&self) -> u64;

    /// Returns true if the medium has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the strongest event that durable contents survive.
    fn persistence_domain(&self) -> PersistenceDomain;

    /// The aligned 8-byte word at `at`, little-endian, with acquire order.
    fn load_word(&self, at: PoolOffset) -> u64;

    /// Copies `out.len()` bytes from `at` on into `out`.
    fn read(&self, at: PoolOffset, out: &mut [u8]);

    /// As `load_word`, but other threads may store or stream to the word at the same time. The value is
    /// unspecified then: the caller detects this and discards it.
    #[inline]
    fn peek_word(&self, at: PoolOffset) -> u64 {
        self.load_word(at)
    }

    /// As `read`, but other threads may store or stream to the bytes at the same time, as for `peek_word`.
    #[inline]
    fn peek(&self, at: PoolOffset, out: &mut [u8]) {
        self.read(at, out);
    }

    /// The lines of `block` with bytes in `start .. start + new.len()` different from `new`. The range must
    /// lie in the block.
    fn changed_lines(&self, block: BlockNo, start: usize, new: &[u8]) -> LineMask;

    /// Stores the aligned 8-byte word `value` at `at`, little-endian, in one piece, with release
    /// order. Needs flush and fence to be durable.
    fn store_word(&self, at: PoolOffset, value: u64);

    /// Stores `bytes` at `at` with ordinary stores. Needs flush and fence to be durable.
    fn store(&self, at: PoolOffset, bytes: &[u8]);

    /// Stores `bytes` at `at` with non-temporal stores if these are faster. The bytes are durable, and
    /// visible to other threads, after a fence of this thread. They need no flush at any alignment. Until the
    /// fence no other thread may store there: the stream could overwrite its bytes later.
    fn stream(&self, at: PoolOffset, bytes: &[u8]);

    /// Prefetches the lines of `at .. at + len` for reads and stores. The range may lie outside the
    /// medium.
    fn prefetch(&self, _at: PoolOffset, _len: usize) {}

    /// Creates an empty window for at most `regions_max` regions of 2 MiB. A window shows runs of this medium at
    /// consecutive addresses.
    fn window(&self, regions_max: u64) -> Window {
        Window::new(regions_max)
    }

    /// Appends a region to `window`, a window of this medium. The region shows the 2 MiB at `run`, a multiple of
    /// 2 MiB, until the drop of the window. All threads see the region after the return.
    ///
    /// # Panics
    /// If the window is full, or `run` is not such an address.
    fn extend_window(&self, window: &Window, run: PoolOffset) {
        window.push(run, None);
    }

    /// As `load_word`, of the word at `at` of `window`, a window of this medium. Check media errors at the word's
    /// address in the medium, from [`Window::offset`].
    ///
    /// # Panics
    /// If the window does not have that word.
    #[inline]
    fn load_word_in(&self, window: &Window, at: u64) -> u64 {
        self.load_word(window.offset_of(at, 8))
    }

    /// As `read`, of bytes in one region of `window`, from `at` on.
    ///
    /// # Panics
    /// As `load_word_in`.
    #[inline]
    fn read_in(&self, window: &Window, at: u64, out: &mut [u8]) {
        self.read(window.offset_of(at, out.len() as u64), out);
    }

    /// Starts the write-back of every line touched by `at .. at + len`. The lines are durable after this
    /// thread's next fence.
    fn flush(&self, at: PoolOffset, len: u64);

    /// Completes this thread's flushes and streams.
    ///
    /// # Errors
    /// If the medium has failed, or fails at this fence. Then earlier flushes may be durable or
    /// not.
    fn fence(&self) -> Result<(), MediaError>;

    /// Checks that the medium has not failed.
    ///
    /// # Errors
    /// The reason of the failure.
    fn check(&self) -> Result<(), MediaError>;

    /// Returns true if a range is known to be poisoned. Costs one load.
    fn has_poison(&self) -> bool;

    /// Returns the first known poisoned address in `at .. at + len`.
    fn poisoned_in(&self, at: PoolOffset, len: u64) -> Option<PoolOffset>;

    /// Returns all known poisoned ranges, ascending and without overlaps.
    fn poisoned_ranges(&self) -> Vec<PoisonedRange>;

    /// Loads a byte of every page of `at .. at + len`: missing pages become known as poisoned.
    fn probe(&self, at: PoolOffset, len: u64);

    /// Returns the address of `at .. at + len`, for loads without this trait. The 4 KiB behind the range are
    /// loadable too. `None` if such loads would differ from loads of the medium: its costs are emulated, it is not
    /// memory of this process, or it ends there. The address is valid until the drop of the medium. The bytes may
    /// change or fail at any time, so the caller makes no reference to them.
    fn lend(&self, at: PoolOffset, len: u64) -> Option<*const u8> {
        let _ = (at, len);
        None
    }

    /// Checks that earlier loads of `at .. at + len` gave the stored bytes.
    ///
    /// # Errors
    /// `Poisoned` if a part of the range is known to be poisoned.
    #[inline]
    fn check_range(&self, at: PoolOffset, len: u64) -> Result<(), MediaError> {
        if !self.has_poison() {
            return Ok(());
        }
        self.poisoned_in(at, len).map_or(Ok(()), |at| Err(MediaError::Poisoned { at }))
    }

    /// Sends `pieces` to `socket` in order, without a copy of the medium's bytes through user space and
    /// without blocking. Returns the number of bytes taken by the socket, 0 if it had no room. The caller
    /// probes and checks the stored ranges before and checks them again afterwards. If memory fails during
    /// the call, the call ends with an error or a short count. If another thread hit the failure first, the
    /// socket may have got zeroes, and the range is known to be poisoned.
    ///
    /// # Errors
    /// The socket's. `WouldBlock` is a return of 0.
    fn send(&self, socket: BorrowedFd<'_>, pieces: &[Piece<'_>]) -> io::Result<usize>;

    /// Sums since the opening of the medium.
    fn counters(&self) -> Counters;

    /// Approximate costs of a line in nanoseconds: of a load, and of a store with its flush. For
    /// decisions between the two. They are not measurements.
    fn line_cost_ns(&self) -> (u32, u32);
}
