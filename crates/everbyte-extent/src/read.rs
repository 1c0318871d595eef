//! Reading: mappings and their bytes. All bytes are checked before a caller gets them.
//!
//! Invariant: a block is seen whole, because it is read under its lock, or because no thread had that lock
//! for writing during the read (`unlocked`).

use everbyte_media::{BLOCK, Medium, Piece, PoolOffset};
use everbyte_pool::Corrupt;
use everbyte_pool::format::Entry;

use crate::address::{BlockRange, DeviceOffset, LogicalBlock};
use crate::error::ExtentError;
use crate::extent::Extent;
use crate::map::{self, ENTRIES, Interrupted, MapSlot};

/// Number of blocks locked together for reading: 1 MiB.
const BLOCKS_AT_ONCE: u64 = 256;

/// The contents of a logical block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// Nothing: it reads as zeroes, and has no space of its own.
    Hole,
    /// Nothing yet: it reads as zeroes, and has space of its own.
    Zero,
    /// The block of the pool from this offset on.
    Data(PoolOffset),
}

/// A run of bytes of an extent, at most 1 MiB, read under one set of locks.
#[derive(Clone, Copy, Debug)]
pub struct ByteRange {
    /// Its first byte.
    pub offset: DeviceOffset,
    /// Its length in bytes.
    pub len: usize,
}

impl ByteRange {
    /// The touched blocks.
    #[must_use]
    pub fn blocks(self) -> BlockRange {
        BlockRange::of_bytes(self.offset, self.len as u64)
    }
}

/// Cuts a range at multiples of 1 MiB; each part comes with its place in the whole.
pub fn chunks(offset: DeviceOffset, len: usize) -> impl Iterator<Item = (ByteRange, usize)> {
    const CHUNK: u64 = BLOCKS_AT_ONCE * everbyte_media::BLOCK_U64;
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset.plus(done as u64);
        let to_boundary = usize::try_from(CHUNK - at.0 % CHUNK).expect("at most 1 MiB");
        let part = to_boundary.min(len - done);
        let range = ByteRange { offset: at, len: part };
        done += part;
        Some((range, done - part))
    })
}

/// The contents of a block with this entry.
fn stored_by(entry: Option<Entry>) -> Stored {
    match entry {
        None => Stored::Hole,
        Some(entry) if entry.flags.zero => Stored::Zero,
        Some(entry) => Stored::Data(entry.block.offset()),
    }
}

impl<M: Medium> Extent<M> {
    fn stored(&self, block: LogicalBlock) -> Result<Stored, Corrupt> {
        match self.look_up(block)? {
            MapSlot::At(at) => self.entries().load(at).map(stored_by),
            MapSlot::Missing(_) => Ok(Stored::Hole),
        }
    }

    /// Returns true if `block` has contents. The caller holds its lock.
    pub(crate) fn has_data(&self, block: LogicalBlock) -> Result<bool, Corrupt> {
        Ok(matches!(self.stored(block)?, Stored::Data(_)))
    }

    /// Reads bytes from `offset` on into `out`: a snapshot of each 1 MiB.
    ///
    /// A thread that changes the extent during the read holds the locks of the blocks, or keeps readers out
    /// in some other way.
    ///
    /// # Errors
    /// The range leaves the extent, the map is corrupt, or bytes cannot be read or are not the stored ones.
    /// `out` is then undefined.
    pub fn read(&self, offset: DeviceOffset, out: &mut [u8]) -> Result<(), ExtentError> {
        if out.len() <= BLOCK - offset.in_block() {
            // Most reads are of one block, which is one chunk.
            return self.read_chunk(ByteRange { offset, len: out.len() }, out);
        }
        // Before the first chunk, so that a refused read copies nothing.
        self.check_range(offset.0, out.len() as u64)?;
        for (range, chunk_at) in chunks(offset, out.len()) {
            self.read_chunk(range, &mut out[chunk_at..chunk_at + range.len])?;
        }
        Ok(())
    }

    /// Reads `range` as a snapshot; the range may still leave the extent.
    #[inline]
    fn read_chunk(&self, range: ByteRange, out: &mut [u8]) -> Result<(), ExtentError> {
        if self.read_unlocked(range, out)? {
            return Ok(());
        }
        // A copy that was thrown away may have been of a block that is another volume's by now.
        self.read_in_locks(range, out).inspect_err(|_| out.fill(0))
    }

    /// Reads under the locks of the blocks.
    #[cold]
    fn read_in_locks(&self, range: ByteRange, out: &mut [u8]) -> Result<(), ExtentError> {
        let _blocks = self.locks().read(range.blocks());
        // Under the locks: a resize or a deletion takes all of them.
        self.check_range(range.offset.0, range.len as u64)?;
        self.read_locked(range.offset, out)
    }

    /// Reads under the caller's locks.
    fn read_locked(&self, offset: DeviceOffset, out: &mut [u8]) -> Result<(), ExtentError> {
        let mut done = 0;
        while done < out.len() {
            let at = offset.plus(done as u64);
            let len = (BLOCK - at.in_block()).min(out.len() - done);
            let piece = &mut out[done..done + len];
            match self.stored(at.block())? {
                Stored::Data(start) if self.has_checksums() => {
                    // The checksum covers the whole block, also if a part is wanted.
                    let mut whole = [0; BLOCK];
                    self.read_verified(start.block(), at.block().offset(), &mut whole)?;
                    piece.copy_from_slice(&whole[at.in_block()..at.in_block() + len]);
                }
                Stored::Data(start) => {
                    let start = start.plus(at.in_block() as u64);
                    self.medium().read(start, piece);
                    // After the copy: zeroes may stand for unreadable bytes.
                    self.check_data(start, len, at)?;
                }
                Stored::Hole | Stored::Zero => piece.fill(0),
            }
            done += len;
        }
        Ok(())
    }

    /// The places of the bytes of `range` as pieces of a message with the head `prefix`; adjacent ones are
    /// joined. The caller holds the locks of the blocks.
    ///
    /// # Errors
    /// The map is corrupt.
    pub fn pieces<'a>(
        &self,
        range: ByteRange,
        prefix: &'a [u8],
    ) -> Result<Vec<Piece<'a>>, Corrupt> {
        let mut pieces = Vec::with_capacity(2 + range.len / BLOCK);
        if !prefix.is_empty() {
            pieces.push(Piece::Bytes(prefix));
        }
        let mut done = 0;
        while done < range.len {
            let at = range.offset.plus(done as u64);
            let len = (BLOCK - at.in_block()).min(range.len - done);
            match (self.stored(at.block())?, pieces.last_mut()) {
                (Stored::Data(start), last) => {
                    let at = start.plus(at.in_block() as u64);
                    match last {
                        Some(Piece::Stored { at: before, len: bytes })
                            if before.plus(*bytes as u64) == at =>
                        {
                            *bytes += len;
                        }
                        _ => pieces.push(Piece::Stored { at, len }),
                    }
                }
                (_, Some(Piece::Zeroes { len: bytes })) => *bytes += len,
                _ => pieces.push(Piece::Zeroes { len }),
            }
            done += len;
        }
        Ok(pieces)
    }

    /// The contents at byte `at`, and the first block of possibly another sort: for a missing leaf of the
    /// map, that of the next present or unreadable leaf.
    ///
    /// # Errors
    /// The byte lies beyond the end, or the map is corrupt on the way there, or leads to itself.
    pub fn stored_run(&self, at: DeviceOffset) -> Result<(Stored, LogicalBlock), ExtentError> {
        let _blocks = self.locks().read(BlockRange::of_bytes(at, 1));
        // Under the lock: a resize or a deletion takes all of them.
        self.check_range(at.0, 1)?;
        let block = at.block();
        Ok(match self.look_up(block)? {
            MapSlot::At(entry_at) => {
                (stored_by(self.entries().load(entry_at)?), LogicalBlock(block.0 + 1))
            }
            MapSlot::Missing(_) => {
                // Below a missing node there is no entry, so the hole lasts to the next leaf.
                let next = self.leaf_after(block);
                (Stored::Hole, next.map_err(|interrupted| interrupted.corrupt)?)
            }
        })
    }

    /// The first block of the next present or unreadable leaf of the map, or beyond the last one. For an
    /// invalid map, the following leaf.
    pub(crate) fn next_leaf(&self, block: LogicalBlock) -> LogicalBlock {
        // The scrub continues at the damage, and finds it there.
        self.leaf_after(block).unwrap_or_else(|interrupted| LogicalBlock(interrupted.at))
    }

    /// The same.
    ///
    /// Reads inner nodes only. They stay in place as long as the caller holds the lock of any block: just
    /// leaves are taken off a map, and a shrink of a map holds all locks.
    ///
    /// # Errors
    /// The map leads to itself.
    fn leaf_after(&self, block: LogicalBlock) -> Result<LogicalBlock, Interrupted> {
        let next = (block.0 / ENTRIES + 1) * ENTRIES;
        Ok(LogicalBlock(match map::first_leaf_from(&self.entries(), self.root_at(), next) {
            Ok(Some(leaf)) => leaf.max(next),
            Ok(None) => u64::MAX / everbyte_media::BLOCK_U64,
            // In a cyclic tree no place is the next one.
            Err(interrupted) if interrupted.is_endless => return Err(interrupted),
            // The caller meets the damage at this place itself.
            Err(interrupted) => interrupted.at,
        }))
    }
}
