//! Stores: bytes behind slots.
//!
//! Owns the [`SlotStore`] contract, the store in a file, and the [`SwapSpace`] shared by several
//! regions. Has no regions.

#![allow(unsafe_code, reason = "the contract of a store is about its memory")]

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use everbyte_media::{
    BLOCK, BLOCK_U64, Mapped, MediaError, MediaOptions, Medium, OpenError, PoolOffset, create_file,
};

use crate::slots::{FreeSlots, SlotMap, SlotNo, SlotSearches};
use crate::slots::{SLOTS_MAX, index};

/// Bytes of a unit, and of a slot.
pub const UNIT: usize = BLOCK;
/// Slots of a run: 2 MiB.
pub(crate) const RUN_SLOTS: u64 = 512;

/// A store of pages without any promise after the process has ended.
///
/// # Contract
/// - A slot is [`UNIT`] bytes. Slots of an aligned group of 512 follow each other in memory.
/// - `address` and its memory stay valid while the store lives. The kernel reads there while the
///   slot's owner waits; `write` is the only other access, unless the store is mappable.
/// - After `write` returns, every thread ordered after it reads the written bytes at `address`,
///   until the next write of the slot, or until `check` or `is_readable` reports a loss.
/// - Every method but `slots` runs in signal handlers too: none allocates, sleeps on a lock,
///   panics, calls a cancellation point (`pthreads(7)`) or touches a region's memory.
///
/// # Safety
/// An implementor upholds the contract: pages are filled from `address` unseen.
pub unsafe trait SlotStore: Send + Sync + 'static {
    /// Slots in the store. It may grow, never shrink.
    fn slots(&self) -> u64;

    /// Maximum number of slots over the store's life.
    fn slots_max(&self) -> u64 {
        self.slots()
    }

    /// The first byte of a slot.
    fn address(&self, slot: SlotNo) -> *const u8;

    /// Stores a slot's bytes from a page. The program may store to the page during the call: the
    /// slot's bytes are then arbitrary, and no code reads them.
    ///
    /// # Safety
    /// `page` points to [`UNIT`] readable bytes outside the store.
    unsafe fn write(&self, slot: SlotNo, page: *const u8);

    /// Checks that the store has everything written by this thread.
    ///
    /// # Errors
    /// The reason for the loss. The store receives no writes afterwards.
    fn check(&self) -> Result<(), MediaError>;

    /// Returns true unless one of `slots` slots from `slot` on is known to be unreadable. The
    /// region calls it before each read, so a deliberately slow store can delay here.
    fn is_readable(&self, slot: SlotNo, slots: u64) -> bool;

    /// Returns true if an `mremap` that keeps the first mapping can map the memory of an aligned
    /// group of 512 slots a second time, and its owner can load and store there as in ordinary
    /// memory. Direct mode needs this. False for a store that must observe accesses.
    fn is_mappable(&self) -> bool {
        false
    }
}

/// A store in a file on tmpfs, DAX or a disk, in leased ranges of a file, or in memory. Clones
/// share the store.
#[derive(Clone)]
pub struct FileStore {
    medium: Arc<Mapped>,
}

impl FileStore {
    /// Makes a new file of `bytes` bytes at `path`, fully allocated, and a store of it.
    ///
    /// # Errors
    /// As [`create_file`] and [`Mapped::from_file`].
    pub fn create(path: &Path, bytes: u64) -> Result<Self, OpenError> {
        let file = create_file(path, bytes)?;
        Ok(Self::of(Mapped::from_file(&file, &MediaOptions::new())?))
    }

    /// Opens a store in an existing file or device and overwrites its bytes. If a sparse file runs
    /// out of space, the store fails; see [`everbyte_media::allocate_file`].
    ///
    /// # Errors
    /// As [`Mapped::open`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Ok(Self::of(Mapped::open(path, &MediaOptions::new())?))
    }

    /// A store of `bytes` bytes in this process's memory: for tests, because it saves no memory.
    ///
    /// # Errors
    /// As [`Mapped::anonymous`].
    pub fn anonymous(bytes: u64) -> Result<Self, OpenError> {
        Ok(Self::of(Mapped::anonymous(bytes, &MediaOptions::new())?))
    }

    /// A store of ranges of a file, each a multiple of 2 MiB. [`FileStore::append`] may add ranges
    /// until the store has at least `bytes_max` bytes. Only these ranges are mapped, and the
    /// mapping keeps locks of the file description.
    ///
    /// # Errors
    /// As [`Mapped::of_ranges`].
    pub fn of_ranges(
        file: &File,
        ranges: &[Range<u64>],
        bytes_max: u64,
    ) -> Result<Self, OpenError> {
        let options = MediaOptions::new();
        Ok(Self::of(Mapped::of_ranges(file, ranges, bytes_max, &options)?))
    }

    /// Adds ranges to a store of [`FileStore::of_ranges`]; [`SwapSpace::grow`] takes them up.
    ///
    /// # Errors
    /// As [`Mapped::append`].
    pub fn append(&self, file: &File, ranges: &[Range<u64>]) -> Result<(), OpenError> {
        self.medium.append(file, ranges)
    }

    fn of(medium: Mapped) -> Self {
        Self { medium: Arc::new(medium) }
    }

    fn place(slot: SlotNo) -> PoolOffset {
        PoolOffset(slot.0 * BLOCK_U64)
    }
}

// SAFETY: the slots are consecutive blocks of a mapping that lives as long as the medium. Ordinary
// stores are seen by every thread that is ordered after them, the kernel's copies included; one
// that met memory which is not there fails the medium (`check`) and poisons its page
// (`is_readable`). The medium's accesses neither allocate nor lock. It is mappable only where all
// mappings share their memory.
unsafe impl SlotStore for FileStore {
    fn slots(&self) -> u64 {
        self.medium.len() / BLOCK_U64
    }

    fn slots_max(&self) -> u64 {
        self.medium.len_max() / BLOCK_U64
    }

    fn address(&self, slot: SlotNo) -> *const u8 {
        self.medium.address(Self::place(slot), BLOCK_U64)
    }

    unsafe fn write(&self, slot: SlotNo, page: *const u8) {
        // SAFETY: as the caller says, and nothing but this store is part of the medium's mapping.
        unsafe { self.medium.store_from(Self::place(slot), page, BLOCK_U64) }
    }

    fn check(&self) -> Result<(), MediaError> {
        self.medium.check()
    }

    fn is_readable(&self, slot: SlotNo, slots: u64) -> bool {
        self.medium.check_range(Self::place(slot), slots * BLOCK_U64).is_ok()
    }

    fn is_mappable(&self) -> bool {
        self.medium.has_pieces(RUN_SLOTS * BLOCK_U64)
    }
}

/// A store and its free slots, shared by regions.
///
/// A region *reserves* a slot for each unit above its DRAM limit, so another region cannot use up
/// its slots.
pub struct SwapSpace {
    store: Box<dyn SlotStore>,
    pub(crate) slots: Arc<SlotMap>,
    /// Slots added to the map.
    known: AtomicU64,
    reserved: AtomicU64,
    /// Writes of each slot, where they are counted.
    writes: OnceLock<Box<[AtomicU32]>>,
}

/// Writes of a space's slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlotWear {
    /// Slots, free and used.
    pub slots: u64,
    /// Slots with at least one write.
    pub slots_written: u64,
    /// Writes of all slots.
    pub writes: u64,
    /// Maximum number of writes of one slot.
    pub writes_most: u64,
}

impl SwapSpace {
    /// A space with every slot of `store` free. Slots beyond 2^36 - 1 stay unused.
    #[must_use]
    pub fn new(store: impl SlotStore) -> Arc<Self> {
        let slots = Arc::new(SlotMap::new(store.slots_max().min(SLOTS_MAX - 1)));
        let space = Self {
            store: Box::new(store),
            slots,
            known: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            writes: OnceLock::new(),
        };
        space.grow();
        Arc::new(space)
    }

    /// A space with a custom allocator and its free slots. It needs as many slots as the regions
    /// need, otherwise they exceed their DRAM limit. It does not grow.
    #[must_use]
    pub fn with_free_slots(store: impl SlotStore, slots: Box<dyn FreeSlots>) -> Arc<Self> {
        let slots = Arc::new(SlotMap::custom(slots));
        let known = store.slots().min(slots.capacity());
        Arc::new(Self {
            store: Box::new(store),
            slots,
            known: AtomicU64::new(known),
            reserved: AtomicU64::new(0),
            writes: OnceLock::new(),
        })
    }

    /// Adds the slots gained by the store.
    pub fn grow(&self) {
        let slots = self.store.slots().min(self.slots.capacity());
        // The maximum is atomic, so concurrent calls free each new slot once.
        let known = self.known.fetch_max(slots, SeqCst);
        if slots > known {
            self.slots.free_run(SlotNo(known), slots - known);
        }
    }

    /// Slots, free and used.
    #[must_use]
    pub fn slots(&self) -> u64 {
        self.known.load(SeqCst)
    }

    /// Free slots.
    #[must_use]
    pub fn slots_free(&self) -> u64 {
        self.slots.free_count()
    }

    /// Unreserved slots.
    #[must_use]
    pub fn slots_unreserved(&self) -> u64 {
        self.slots().saturating_sub(self.reserved.load(SeqCst))
    }

    /// Searches for free slots since the creation of the space, and visited nodes.
    #[must_use]
    pub fn slot_searches(&self) -> SlotSearches {
        self.slots.searches()
    }

    /// Counts the writes of each slot from now on, with 4 bytes for each possible slot of the
    /// store. Stores to direct chunks are not counted, because the program makes them without a
    /// call.
    pub fn count_writes(&self) {
        let slots = usize::try_from(self.slots.capacity()).unwrap_or(0);
        self.writes.get_or_init(|| (0..slots).map(|_| AtomicU32::new(0)).collect());
    }

    /// Writes of slots, if they are counted.
    #[must_use]
    pub fn wear(&self) -> Option<SlotWear> {
        let slots = self.slots();
        let known = usize::try_from(slots).unwrap_or(usize::MAX);
        let start = SlotWear { slots, ..SlotWear::default() };
        let writes = self.writes.get()?.iter().take(known).map(|count| count.load(Relaxed));
        Some(writes.fold(start, |sum, writes| SlotWear {
            slots_written: sum.slots_written + u64::from(writes > 0),
            writes: sum.writes + u64::from(writes),
            writes_most: sum.writes_most.max(u64::from(writes)),
            ..sum
        }))
    }

    /// Stores a slot's bytes.
    ///
    /// # Safety
    /// As [`SlotStore::write`].
    pub(crate) unsafe fn write(&self, slot: SlotNo, page: *const u8) {
        if let Some(writes) = self.writes.get()
            && let Some(count) = writes.get(index(slot.0))
        {
            count.fetch_add(1, Relaxed);
        }
        // SAFETY: as the caller says.
        unsafe { self.store.write(slot, page) }
    }

    pub(crate) fn store(&self) -> &dyn SlotStore {
        &*self.store
    }

    /// Reserves slots, or returns the number of unreserved ones as an error. Returns the number of
    /// earlier reservations: also a good start for a new region's search, away from other regions.
    pub(crate) fn reserve(&self, slots: u64) -> Result<u64, u64> {
        let most = self.slots();
        let reserved = self.reserved.fetch_update(SeqCst, SeqCst, |reserved| {
            reserved.checked_add(slots).filter(|sum| *sum <= most)
        });
        reserved.map_err(|reserved| most.saturating_sub(reserved))
    }

    pub(crate) fn release(&self, slots: u64) {
        self.reserved.fetch_sub(slots, SeqCst);
    }
}

impl std::fmt::Debug for SwapSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SwapSpace")
            .field("slots", &self.slots())
            .field("free", &self.slots_free())
            .field("unreserved", &self.slots_unreserved())
            .finish_non_exhaustive()
    }
}
