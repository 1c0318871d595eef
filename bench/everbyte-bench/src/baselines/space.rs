//! The schemes' common structures on the medium: the superblock, the table of blocks, the log's
//! place, and the blocks for data.
//!
//! Blocks of the medium, in this order: the superblock; the head with the words of a scheme; the
//! table; the log; data. The table has one word for each block of the device: the number of the
//! block with its contents, or 0 for a hole. All is little-endian.
//!
//! Invariants: free space is derived from the table at opening, so no scheme pays for its
//! consistency. Blocks are preallocated: a request has all its blocks before its first store. A
//! deferred block becomes free only after its scheme reports that no durable word names it.
//!
//! Knows nothing of the order of a scheme's writes.

use std::ops::Range;
use std::sync::Arc;

use everbyte_extent::{Delta, DeltaState};
use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, LineMask, MediaError, Medium, PoolOffset};
use everbyte_pool::BlockRun;
use everbyte_pool::alloc::Allocator;

/// In the table: the block was never written, or was discarded.
pub(crate) const HOLE: u64 = 0;
/// Words in a block.
pub(crate) const WORDS: usize = BLOCK / 8;

/// Offset of the head with the words of a scheme.
pub(crate) const HEAD: PoolOffset = PoolOffset(BLOCK_U64);
const TABLE_START: u64 = 2;
const MAGIC: u64 = u64::from_le_bytes(*b"evbschem");
/// Words of the superblock: magic, code of the scheme, blocks of the device, of the log, CRC-32C.
const SUPERBLOCK_BYTES: usize = 40;
/// Bytes cleared by one store.
const ZEROES: [u8; BLOCK] = [0; BLOCK];
/// The smallest log, in blocks.
const LOG_BLOCKS_MIN: u64 = 16;
/// Smallest number of blocks in addition to the size of a device.
const EXTRA_BLOCKS_MIN: u64 = 64;
/// Blocks of one allocation.
const PREALLOCATED_BLOCKS: usize = 8;

/// Errors of making and opening a scheme.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SpaceError {
    /// The medium has no room for it.
    #[error("the medium has {found_bytes} bytes, {needed_bytes} are needed")]
    TooSmall {
        /// Bytes of the medium.
        found_bytes: u64,
        /// Bytes needed.
        needed_bytes: u64,
    },
    /// A size that no scheme has.
    #[error("{what} of {bytes} bytes: {wanted}")]
    Size {
        /// Name of the size.
        what: &'static str,
        /// The size asked for.
        bytes: u64,
        /// Description of the existing sizes.
        wanted: &'static str,
    },
    /// Something on the medium cannot be right.
    #[error("{structure} at {at}: {what}")]
    Corrupt {
        /// Name of the structure.
        structure: &'static str,
        /// Its offset on the medium.
        at: PoolOffset,
        /// Description of the damage.
        what: &'static str,
    },
    /// The medium failed before, amid a request.
    #[error("the medium failed amid a request; the device must be opened again")]
    Stopped,
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
}

impl SpaceError {
    pub(crate) fn corrupt(structure: &'static str, at: PoolOffset, what: &'static str) -> Self {
        Self::Corrupt { structure, at, what }
    }
}

/// A number as an index. An invalid number becomes an index beyond every table.
#[inline]
pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The CRC-32C of `bytes` as a word.
fn check_word(bytes: &[u8]) -> u64 {
    u64::from(crc32c::crc32c(bytes))
}

/// The layout of the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    code: u64,
    device_blocks: u64,
    log_blocks: u64,
}

impl Layout {
    /// The layout of a device of `device_bytes` with a log of `log_bytes`, for the scheme of a
    /// code.
    ///
    /// # Errors The size is too small or not a multiple of a block.
    pub(crate) fn new(code: u64, device_bytes: u64, log_bytes: u64) -> Result<Self, SpaceError> {
        let size = |what, bytes, wanted| Err(SpaceError::Size { what, bytes, wanted });
        if device_bytes == 0 || !device_bytes.is_multiple_of(BLOCK_U64) || device_bytes >> 44 != 0 {
            return size("device", device_bytes, "some blocks of 4096, less than 16 TiB");
        }
        let log_bytes_min = LOG_BLOCKS_MIN * BLOCK_U64;
        if log_bytes < log_bytes_min || !log_bytes.is_multiple_of(BLOCK_U64) || log_bytes >> 31 != 0
        {
            return size("log", log_bytes, "at least 16 blocks of 4096, less than 2 GiB");
        }
        let (device_blocks, log_blocks) = (device_bytes / BLOCK_U64, log_bytes / BLOCK_U64);
        Ok(Self { code, device_blocks, log_blocks })
    }

    /// Returns the minimum size of the medium in bytes: the device, and an eighth more, at least
    /// 64 blocks, for blocks not yet in their places.
    pub(crate) fn medium_bytes(&self) -> u64 {
        let extra = (self.device_blocks / 8).max(EXTRA_BLOCKS_MIN) + self.table_blocks();
        (self.data_start() + self.device_blocks + extra) * BLOCK_U64
    }

    /// Blocks of the device.
    pub(crate) fn device_blocks(&self) -> usize {
        index(self.device_blocks)
    }

    /// Returns the offset of the entry of a block.
    pub(crate) fn entry_at(&self, block: usize) -> PoolOffset {
        PoolOffset(TABLE_START * BLOCK_U64 + 8 * block as u64)
    }

    /// Blocks of the table.
    pub(crate) fn table_blocks(&self) -> u64 {
        self.device_blocks.div_ceil(WORDS as u64)
    }

    /// A block of the table.
    pub(crate) fn table_block(&self, number: usize) -> BlockNo {
        BlockNo(TABLE_START + number as u64)
    }

    /// Returns the offset of the log.
    pub(crate) fn log_at(&self) -> PoolOffset {
        BlockNo(self.log_start()).offset()
    }

    /// Bytes of the log.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.log_blocks * BLOCK_U64
    }

    fn log_start(&self) -> u64 {
        TABLE_START + self.table_blocks()
    }

    fn data_start(&self) -> u64 {
        self.log_start() + self.log_blocks
    }

    fn words(&self) -> [u64; 4] {
        [MAGIC, self.code, self.device_blocks, self.log_blocks]
    }
}

/// The medium, with the state of its blocks.
pub(crate) struct Space<M> {
    medium: Arc<M>,
    pub(crate) layout: Layout,
    delta: DeltaState,
    allocator: Allocator,
    preallocated: Vec<u64>,
    deferred: Vec<u64>,
}

impl<M: Medium> Space<M> {
    /// Makes an empty device on `medium`, which is large enough.
    ///
    /// # Errors
    /// The medium's.
    pub(crate) fn format(medium: &M, layout: Layout) -> Result<(), SpaceError> {
        // The log too: what an earlier one left there might pass for this one's.
        for block in 0..layout.data_start() {
            medium.stream(BlockNo(block).offset(), &ZEROES);
        }
        // The table and the log are zero and durable before the superblock makes the device valid.
        medium.fence()?;
        let mut superblock = [0; SUPERBLOCK_BYTES];
        for (bytes, word) in superblock.chunks_exact_mut(8).zip(layout.words()) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let (words, check) = superblock.split_at_mut(SUPERBLOCK_BYTES - 8);
        check.copy_from_slice(&check_word(words).to_le_bytes());
        medium.stream(PoolOffset(0), &superblock);
        Ok(medium.fence()?)
    }

    /// Opens the device of a scheme, by the code of the scheme. `delta` selects the detection of
    /// changes. No block is free yet.
    ///
    /// # Errors The device is missing, or the medium fails.
    pub(crate) fn open(medium: Arc<M>, code: u64, delta: Delta) -> Result<Self, SpaceError> {
        let wrong = |what| SpaceError::corrupt("superblock", PoolOffset(0), what);
        let mut superblock = [0; SUPERBLOCK_BYTES];
        medium.read(PoolOffset(0), &mut superblock);
        medium.check_range(PoolOffset(0), SUPERBLOCK_BYTES as u64)?;
        let word = |at| medium.load_word(PoolOffset(at));
        if word(0) != MAGIC {
            return Err(wrong("this is not the device of a scheme"));
        }
        if word(32) != check_word(&superblock[..SUPERBLOCK_BYTES - 8]) {
            return Err(wrong("its checksum is wrong"));
        }
        if word(8) != code {
            return Err(wrong("this is another scheme's device"));
        }
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_U64);
        let layout = Layout::new(code, bytes(word(16)), bytes(word(24)))?;
        check_free_space(&*medium, layout.medium_bytes())?;
        let allocator = Allocator::new(medium.len() / BLOCK_U64);
        let (read_ns, write_ns) = medium.line_cost_ns();
        let delta = DeltaState::new(delta, read_ns, write_ns);
        let (preallocated, deferred) = (Vec::new(), Vec::new());
        Ok(Self { medium, layout, delta, allocator, preallocated, deferred })
    }

    /// The medium.
    #[inline]
    pub(crate) fn medium(&self) -> &M {
        &self.medium
    }

    /// Returns true if the next write is compared with the stored bytes, and counts the write.
    pub(crate) fn compares(&self) -> bool {
        self.delta.compares()
    }

    /// The lines with a difference between bytes `start ..` of the block at `place` and `new`. The
    /// block must not be a hole.
    ///
    /// # Errors
    /// A media error.
    pub(crate) fn changed(
        &self,
        place: u64,
        start: usize,
        new: &[u8],
    ) -> Result<LineMask, MediaError> {
        let changed = self.delta.changed(self.medium(), BlockNo(place), start, new);
        let at = BlockNo(place).offset().plus(start as u64);
        self.medium.check_range(at, new.len() as u64)?;
        Ok(changed)
    }

    /// The same for a compared write; all touched lines for any other write.
    ///
    /// # Errors
    /// A media error.
    pub(crate) fn to_store(
        &self,
        place: u64,
        start: usize,
        new: &[u8],
    ) -> Result<LineMask, MediaError> {
        match self.compares() {
            true => self.changed(place, start, new),
            false => Ok(LineMask::covering(start, new.len())),
        }
    }

    /// The table as it is on the medium.
    ///
    /// # Errors An invalid entry; a media error.
    pub(crate) fn load_table(&self) -> Result<Vec<u64>, SpaceError> {
        let at = self.layout.entry_at(0);
        let mut bytes = vec![0; 8 * self.layout.device_blocks()];
        self.medium.read(at, &mut bytes);
        self.medium.check_range(at, bytes.len() as u64)?;
        let words = bytes
            .chunks_exact(8)
            .map(|word| word.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)));
        let table: Vec<u64> = words.collect();
        for (block, &place) in table.iter().enumerate() {
            self.check_place(place, "table", self.layout.entry_at(block))?;
        }
        Ok(table)
    }

    /// Checks that `place`, found in a `structure` at `at`, can hold data.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn check_place(
        &self,
        place: u64,
        structure: &'static str,
        at: PoolOffset,
    ) -> Result<(), SpaceError> {
        match place == HOLE || self.data().contains(&place) {
            true => Ok(()),
            false => Err(SpaceError::corrupt(structure, at, "it names no block for data")),
        }
    }

    /// Returns true if a block of the medium is one of the table.
    pub(crate) fn is_table(&self, block: u64) -> bool {
        (TABLE_START..self.layout.log_start()).contains(&block)
    }

    /// Makes every block free but those of `used`, holes among them.
    ///
    /// # Errors
    /// A block that is used twice.
    pub(crate) fn claim(&self, used: impl IntoIterator<Item = u64>) -> Result<(), SpaceError> {
        let twice =
            |_| SpaceError::corrupt("table", self.layout.entry_at(0), "two entries name one block");
        let Range { start, end } = self.data();
        let all = BlockRun { start: BlockNo(start), len: end - start };
        self.allocator.add(all).map_err(twice)?;
        for place in used.into_iter().filter(|&place| place != HOLE) {
            self.allocator.take(BlockRun { start: BlockNo(place), len: 1 }).map_err(twice)?;
        }
        Ok(())
    }

    fn data(&self) -> Range<u64> {
        self.layout.data_start()..self.medium.len() / BLOCK_U64
    }

    /// Gets `count` blocks ready to be taken; false if there are not so many.
    pub(crate) fn reserve(&mut self, count: usize) -> bool {
        if self.preallocated.len() < count {
            let want = count.max(PREALLOCATED_BLOCKS) - self.preallocated.len();
            let before = self.preallocated.len();
            self.allocator.alloc_batch(0, want, &mut self.preallocated);
            // They are taken from the end: in ascending order.
            self.preallocated[before..].reverse();
        }
        self.preallocated.len() >= count
    }

    /// Takes a reserved block.
    pub(crate) fn take(&mut self) -> BlockNo {
        BlockNo(self.preallocated.pop().expect("a request reserves what it takes"))
    }

    /// Frees a block without a durable name.
    pub(crate) fn free_unused(&mut self, place: u64) {
        // No durable pointer names the block, so its reuse needs no fence.
        self.preallocated.push(place);
    }

    /// Defers freeing the unused block `place` to the next `release`.
    pub(crate) fn free_later(&mut self, place: u64) {
        if place != HOLE {
            self.deferred.push(place);
        }
    }

    /// Frees the deferred blocks: no durable pointer names them.
    pub(crate) fn release(&mut self) {
        for place in self.deferred.drain(..) {
            let freed = self.allocator.free(BlockNo(place));
            debug_assert!(freed.is_ok(), "block {place} was freed twice");
        }
    }

    /// Fills `out` from byte `start` of the block at `place`, which may be a hole.
    ///
    /// # Errors
    /// A media error.
    #[inline]
    pub(crate) fn load(&self, place: u64, start: usize, out: &mut [u8]) -> Result<(), MediaError> {
        if place == HOLE {
            out.fill(0);
            return Ok(());
        }
        let at = BlockNo(place).offset().plus(start as u64);
        self.medium.read(at, out);
        self.medium.check_range(at, out.len() as u64)
    }

    /// The whole contents of `place` with `data` from `start` on, put together in `scratch` if need
    /// be.
    ///
    /// # Errors
    /// A media error.
    pub(crate) fn merged<'a>(
        &self,
        place: u64,
        start: usize,
        data: &'a [u8],
        scratch: &'a mut [u8; BLOCK],
    ) -> Result<&'a [u8], MediaError> {
        if data.len() == BLOCK {
            return Ok(data);
        }
        let end = start + data.len();
        self.load(place, 0, &mut scratch[..start])?;
        self.load(place, end, &mut scratch[end..])?;
        scratch[start..end].copy_from_slice(data);
        Ok(scratch)
    }

    /// Stores a word of the head. Makes the word and all earlier flushes durable.
    ///
    /// # Errors
    /// The medium's.
    pub(crate) fn persist_head(&self, value: u64) -> Result<(), MediaError> {
        self.medium.store_word(HEAD, value);
        self.medium.flush(HEAD, 8);
        self.medium.fence()
    }
}

/// Checks that a medium is large enough.
///
/// # Errors
/// It is not.
pub(crate) fn check_free_space<M: Medium>(medium: &M, needed_bytes: u64) -> Result<(), SpaceError> {
    let found_bytes = medium.len();
    match found_bytes >= needed_bytes {
        true => Ok(()),
        false => Err(SpaceError::TooSmall { found_bytes, needed_bytes }),
    }
}
