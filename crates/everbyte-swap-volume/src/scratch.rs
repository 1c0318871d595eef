//! A whole swap volume as a block device, for the swap of virtual machines and other machines.
//!
//! Block numbers follow the order of the runs. A block reads as zeroes if it was trimmed or not written
//! since the device was opened. A client therefore sees no bytes of earlier users. A bit in DRAM
//! records this state for each block. The device never flushes.
//!
//! Invariants: threads read and change a block's bytes under the lock of its stripe, so a reader sees
//! a whole block. A write sets the block's bit after it has stored the bytes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_device::{BlockDevice, DeviceError, Extent, Fua, Geometry, Hole, check_range};
use everbyte_media::{BLOCK, BLOCK_U64, Mapped, Medium, PoolOffset};
use parking_lot::RwLock;

use crate::lease::Lease;

const STRIPES: usize = 256;

/// The runs of a lease as a volatile block device: FLUSH and FUA have no effect.
pub struct ScratchDevice {
    medium: Arc<Mapped>,
    /// The pool's address of each run, and its length in bytes.
    ranges: Vec<Range<u64>>,
    /// First byte of the device in each range.
    starts: Vec<u64>,
    size_bytes: u64,
    /// A bit per block, set for written blocks.
    written: Box<[AtomicU64]>,
    stripes: Box<[RwLock<()>]>,
    _lease: Lease,
}

/// A part of a request within one block.
struct Piece {
    block: u64,
    start: usize,
    /// The bytes of the request.
    bytes: Range<usize>,
}

impl ScratchDevice {
    /// Returns a device of the first `size_bytes` bytes of the runs of `lease`, or of all bytes if the runs
    /// have fewer. A volume on `medium` lent the runs.
    #[must_use]
    pub fn new(medium: Arc<Mapped>, lease: Lease, size_bytes: u64) -> Self {
        let ranges = lease.ranges.clone();
        let mut end = 0;
        let starts = ranges.iter().map(|range| {
            let start = end;
            end += range.end - range.start;
            start
        });
        let starts = starts.collect();
        let size_bytes = size_bytes.min(end);
        let words = size_bytes.div_ceil(BLOCK_U64).div_ceil(64);
        Self {
            medium,
            ranges,
            starts,
            size_bytes,
            written: (0..words).map(|_| AtomicU64::new(0)).collect(),
            stripes: (0..STRIPES).map(|_| RwLock::new(())).collect(),
            _lease: lease,
        }
    }

    /// The pool's address of a block.
    fn place(&self, block: u64) -> PoolOffset {
        let at = block * BLOCK_U64;
        let range = self.starts.partition_point(|&start| start <= at) - 1;
        PoolOffset(self.ranges[range].start + at - self.starts[range])
    }

    fn word(&self, block: u64) -> (&AtomicU64, u64) {
        let word = usize::try_from(block / 64).expect("there is memory for a bit of each block");
        (&self.written[word], 1 << (block % 64))
    }

    fn is_written(&self, block: u64) -> bool {
        let (word, bit) = self.word(block);
        word.load(Ordering::Acquire) & bit != 0
    }

    fn stripe(&self, block: u64) -> &RwLock<()> {
        let stripe = usize::try_from(block % STRIPES as u64).expect("it is below the stripes");
        &self.stripes[stripe]
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(offset, len, self.size_bytes)
    }

    /// Changes the bytes of a block. Bytes not written before are zeroes.
    fn write_piece(&self, piece: &Piece, data: &[u8]) {
        let at = self.place(piece.block);
        let _block = self.stripe(piece.block).write();
        let (word, bit) = self.word(piece.block);
        // A partial first write must not show an earlier user's bytes in the rest of the block.
        if word.load(Ordering::Acquire) & bit == 0 && data.len() < BLOCK {
            self.medium.store(at, &[0; BLOCK]);
        }
        self.medium.store(at.plus(piece.start as u64), data);
        // After the bytes: a thread that sees the bit sees the bytes.
        word.fetch_or(bit, Ordering::Release);
    }

    fn zero(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.check(offset, len)?;
        const ZEROES: [u8; BLOCK] = [0; BLOCK];
        for piece in pieces(offset, len) {
            if piece.bytes.len() < BLOCK {
                // An unwritten block reads as zeroes already.
                if self.is_written(piece.block) {
                    self.write_piece(&piece, &ZEROES[..piece.bytes.len()]);
                }
                continue;
            }
            // A cleared bit makes the block read as zeroes without a store.
            let _block = self.stripe(piece.block).write();
            let (word, bit) = self.word(piece.block);
            word.fetch_and(!bit, Ordering::Release);
        }
        Ok(())
    }
}

impl BlockDevice for ScratchDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes,
            minimum_bytes: 64,
            preferred_bytes: 4096,
            read_only: false,
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.check(offset, out.len() as u64)?;
        for piece in pieces(offset, out.len() as u64) {
            let at = self.place(piece.block).plus(piece.start as u64);
            let into = &mut out[piece.bytes];
            let _block = self.stripe(piece.block).read();
            if !self.is_written(piece.block) {
                into.fill(0);
                continue;
            }
            let bytes = into.len() as u64;
            self.medium.read(at, into);
            // After the read: the medium reports an unreadable range only then.
            self.medium.check_range(at, bytes).map_err(|error| DeviceError::Media {
                offset: piece.block * BLOCK_U64 + piece.start as u64,
                len: bytes,
                reason: error.to_string(),
            })?;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], _: Fua) -> Result<(), DeviceError> {
        self.check(offset, data.len() as u64)?;
        for piece in pieces(offset, data.len() as u64) {
            self.write_piece(&piece, &data[piece.bytes.clone()]);
        }
        Ok(())
    }

    /// Returns immediately: the device is volatile.
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64, _: Fua) -> Result<(), DeviceError> {
        self.zero(offset, len)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        _: Hole,
        _: bool,
        _: Fua,
    ) -> Result<(), DeviceError> {
        self.zero(offset, len)
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        if len == 0 {
            return Err(DeviceError::OutOfRange { offset, len, size_bytes: self.size_bytes });
        }
        self.check(offset, len)?;
        let mut extents: Vec<Extent> = Vec::new();
        for piece in pieces(offset, len) {
            let zero = !self.is_written(piece.block);
            let bytes = piece.bytes.len() as u64;
            if let Some(last) = extents.last_mut().filter(|last| last.zero == zero) {
                last.len += bytes;
                continue;
            }
            if extents.len() == extents_max {
                break;
            }
            // The volume owns the space of written and unwritten blocks.
            extents.push(Extent { len: bytes, hole: false, zero });
        }
        Ok(extents)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.check(offset, len)
    }
}

/// The parts of a request of `len` bytes at `offset` by block. The range was checked.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done;
        let start = at % BLOCK_U64;
        let now = (BLOCK_U64 - start).min(len - done);
        let in_memory = |bytes: u64| usize::try_from(bytes).expect("a request lies in memory");
        let bytes = in_memory(done)..in_memory(done + now);
        done += now;
        Some(Piece { block: at / BLOCK_U64, start: in_memory(start), bytes })
    })
}
