//! A volatile, sparse device in DRAM: the reference model, and a backend for tests.
//!
//! Invariants: a block absent from the map is a hole. Every block in the map lies, at least in
//! part, below the size. Bytes of a block beyond the size are zero. One lock covers the map and
//! the size, so every request is atomic, batches too.
//!
//! Its code is simple instead of fast. A drop loses all contents.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::device::{BlockDevice, Extent, Fua, Geometry, Hole, check_range};
use crate::error::DeviceError;

const BLOCK: usize = 4096;
const BLOCK_U64: u64 = BLOCK as u64;

/// An allocated block.
enum Block {
    /// Allocated and never written: reads as zeroes.
    Zero,
    /// Written.
    Data(Box<[u8; BLOCK]>),
}

struct Contents {
    size_bytes: u64,
    blocks: BTreeMap<u64, Block>,
}

/// The part of a request in one block.
struct Piece {
    block: u64,
    start: usize,
    len: usize,
    /// Index in the request of the piece's first byte.
    at: usize,
}

/// The pieces, in order, of a request for `len` bytes at `offset`. Ends early rather than
/// overflow, so the range is to be checked first.
#[expect(clippy::cast_possible_truncation, reason = "values below 4096, or sizes of slices")]
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let address = offset + done;
        let start = address % BLOCK_U64;
        let piece_len = (BLOCK_U64 - start).min(len - done);
        let at = done as usize;
        done += piece_len;
        Some(Piece {
            block: address / BLOCK_U64,
            start: start as usize,
            len: piece_len as usize,
            at,
        })
    })
}

impl Contents {
    fn check(&self, offset: u64, len: usize) -> Result<(), DeviceError> {
        check_range(offset, len as u64, self.size_bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) {
        for piece in pieces(offset, out.len() as u64) {
            let to = &mut out[piece.at..piece.at + piece.len];
            match self.blocks.get(&piece.block) {
                Some(Block::Data(data)) => {
                    to.copy_from_slice(&data[piece.start..piece.start + piece.len]);
                }
                Some(Block::Zero) | None => to.fill(0),
            }
        }
    }

    fn data_mut(&mut self, block: u64) -> &mut [u8; BLOCK] {
        let entry = self.blocks.entry(block).or_insert(Block::Zero);
        if matches!(entry, Block::Zero) {
            *entry = Block::Data(Box::new([0; BLOCK]));
        }
        match entry {
            Block::Data(data) => data,
            Block::Zero => unreachable!("the block was made data just above"),
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for piece in pieces(offset, data.len() as u64) {
            self.data_mut(piece.block)[piece.start..piece.start + piece.len]
                .copy_from_slice(&data[piece.at..piece.at + piece.len]);
        }
    }

    /// Zeroes the range, and makes whole blocks of it holes or reserved blocks. A last block cut by
    /// the device's end counts as whole.
    fn zero(&mut self, offset: u64, len: u64, hole: Hole) {
        match hole {
            Hole::Allowed => self.punch(offset, len),
            Hole::Forbidden => {
                for piece in pieces(offset, len) {
                    // The block keeps its space and loses its bytes.
                    if piece.len == BLOCK {
                        self.blocks.insert(piece.block, Block::Zero);
                    } else if let Some(Block::Data(data)) = self.blocks.get_mut(&piece.block) {
                        data[piece.start..piece.start + piece.len].fill(0);
                    } else {
                        self.blocks.insert(piece.block, Block::Zero);
                    }
                }
            }
        }
    }

    /// Makes holes. The time depends on the number of blocks, not on `len`.
    fn punch(&mut self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let end = offset + len;
        let touched: Vec<u64> = self
            .blocks
            .range(offset / BLOCK_U64..=(end - 1) / BLOCK_U64)
            .map(|(&block, _)| block)
            .collect();
        for block in touched {
            let block_start = block * BLOCK_U64;
            let from = offset.max(block_start);
            let piece = (end - from).min(BLOCK_U64 - (from - block_start));
            if from == block_start && (piece == BLOCK_U64 || end == self.size_bytes) {
                self.blocks.remove(&block);
            } else if let Some(Block::Data(data)) = self.blocks.get_mut(&block) {
                for piece in pieces(from, piece) {
                    data[piece.start..piece.start + piece.len].fill(0);
                }
            }
        }
    }

    /// The first run of one kind in `offset .. end`, as (its end, hole, zero).
    fn run(&self, offset: u64, end: u64) -> (u64, bool, bool) {
        // The block after the last one of 2^64 bytes begins beyond the largest number.
        let start_of = |block: u64| block.saturating_mul(BLOCK_U64);
        let first = offset / BLOCK_U64;
        let mut allocated = self.blocks.range(first..);
        let (found, block) = match allocated.next() {
            None => return (end, true, true),
            Some((&found, _)) if found > first => return (start_of(found).min(end), true, true),
            Some((&found, block)) => (found, block),
        };
        let zero = matches!(block, Block::Zero);
        let mut next = found + 1;
        for (&number, block) in allocated {
            if number != next || matches!(block, Block::Zero) != zero || start_of(next) >= end {
                break;
            }
            next += 1;
        }
        (start_of(next).min(end), false, zero)
    }
}

/// A volatile sparse device over DRAM. Blocks of 4 KiB are allocated when first written.
///
/// Threads can share it. A request waits for the writes of others.
pub struct MemoryDevice {
    contents: RwLock<Contents>,
    read_only: AtomicBool,
}

impl MemoryDevice {
    /// A device of `size_bytes` bytes, all of it a hole. Any size is legal.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        Self {
            contents: RwLock::new(Contents { size_bytes, blocks: BTreeMap::new() }),
            read_only: AtomicBool::new(false),
        }
    }

    /// Sets if the device refuses writes.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Relaxed);
    }

    /// Changes the size to `size_bytes`. Bytes beyond are lost; added bytes are a hole.
    pub fn resize(&self, size_bytes: u64) {
        let mut contents = self.contents.write();
        if size_bytes < contents.size_bytes {
            // The invariant: the block cut by the end is zero beyond it.
            let len = contents.size_bytes - size_bytes;
            contents.zero(size_bytes, len, Hole::Allowed);
        }
        contents.size_bytes = size_bytes;
    }

    /// Allocated bytes, a multiple of 4096.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.contents.read().blocks.len() as u64 * BLOCK_U64
    }

    fn check_writable(&self) -> Result<(), DeviceError> {
        if self.read_only.load(Ordering::Relaxed) {
            return Err(DeviceError::ReadOnly { reason: "it was made so".to_owned() });
        }
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64, hole: Hole) -> Result<(), DeviceError> {
        self.check_writable()?;
        let mut contents = self.contents.write();
        check_range(offset, len, contents.size_bytes)?;
        contents.zero(offset, len, hole);
        Ok(())
    }
}

impl BlockDevice for MemoryDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.contents.read().size_bytes,
            minimum_bytes: 1,
            preferred_bytes: 4096,
            read_only: self.read_only.load(Ordering::Relaxed),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let contents = self.contents.read();
        contents.check(offset, out.len())?;
        contents.read(offset, out);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], _fua: Fua) -> Result<(), DeviceError> {
        self.check_writable()?;
        let mut contents = self.contents.write();
        contents.check(offset, data.len())?;
        contents.write(offset, data);
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        // The device is volatile: no flush saves its bytes from a crash.
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64, _fua: Fua) -> Result<(), DeviceError> {
        self.zero(offset, len, Hole::Allowed)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        _fast: bool,
        _fua: Fua,
    ) -> Result<(), DeviceError> {
        self.zero(offset, len, hole)
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        let contents = self.contents.read();
        let size_bytes = contents.size_bytes;
        check_range(offset, len, size_bytes)?;
        if len == 0 {
            return Err(DeviceError::OutOfRange { offset, len, size_bytes });
        }
        let end = offset + len;
        let mut extents = Vec::new();
        let mut at = offset;
        // The contract requires at least one extent.
        while at < end && extents.len() < extents_max.max(1) {
            let (next, hole, zero) = contents.run(at, end);
            extents.push(Extent { len: next - at, hole, zero });
            at = next;
        }
        Ok(extents)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(offset, len, self.contents.read().size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn conforms() {
        crate::conformance(&|size_bytes| Arc::new(MemoryDevice::new(size_bytes)));
    }

    #[test]
    fn conforms_read_only() {
        crate::conformance(&|size_bytes| {
            let device = MemoryDevice::new(size_bytes);
            device.set_read_only(true);
            Arc::new(device)
        });
    }

    #[test]
    fn status_tells_holes_reserved_zeroes_and_data() {
        let device = MemoryDevice::new(8 * BLOCK_U64 + 100);
        device.write(BLOCK_U64 + 5, &[1; 4096], Fua::No).unwrap();
        device.write_zeroes(3 * BLOCK_U64, 2 * BLOCK_U64, Hole::Forbidden, true, Fua::No).unwrap();
        device.write(8 * BLOCK_U64, &[1; 100], Fua::No).unwrap();
        let expected = [
            (BLOCK_U64 - 10, true, true),
            (2 * BLOCK_U64, false, false),
            (2 * BLOCK_U64, false, true),
            (3 * BLOCK_U64, true, true),
            (50, false, false),
        ]
        .map(|(len, hole, zero)| Extent { len, hole, zero });
        assert_eq!(device.status(10, 8 * BLOCK_U64 + 40, 100).unwrap(), expected);
        assert_eq!(device.allocated_bytes(), 5 * BLOCK_U64);
        device.discard(8 * BLOCK_U64, 100, Fua::No).unwrap();
        assert_eq!(device.allocated_bytes(), 4 * BLOCK_U64);
    }

    #[test]
    fn shrinking_and_growing_again_reads_zeroes() {
        let device = MemoryDevice::new(3 * BLOCK_U64);
        device.write(0, &[7; 3 * BLOCK], Fua::No).unwrap();
        device.resize(100);
        assert!(device.read(100, &mut [0]).is_err());
        device.resize(3 * BLOCK_U64);
        let mut out = vec![1; 3 * BLOCK];
        device.read(0, &mut out).unwrap();
        assert!(out[..100].iter().all(|&b| b == 7) && out[100..].iter().all(|&b| b == 0));
        assert_eq!(device.allocated_bytes(), BLOCK_U64);
    }
}
