//! Reading: from the pool to the caller or straight to a socket, and what is mapped where.
//!
//! Invariants: a block is read under its lock, so it is seen whole; a socket that has no room is
//! never waited for under a lock.

use std::os::fd::BorrowedFd;

use everbyte_device::{DeviceError, Extent, SendError, send_all};
use everbyte_media::{BLOCK, BLOCK_U64, Medium, Piece, PoolOffset};
use everbyte_pool::Corrupt;
use everbyte_pool::plant::{Bug, planted};

use crate::locks::BlockRange;
use crate::map::{self, ENTRIES, MapKind, Path};
use crate::volume::{BlockVolume, RequestRange};

/// Blocks that are locked at once for reading: 1 MiB.
const BLOCKS_AT_ONCE: u64 = 256;

/// What lies at a logical block.
enum Stored {
    Hole,
    /// Reserved, reads as zeroes.
    Zero,
    Data(PoolOffset),
}

impl<M: Medium> BlockVolume<M> {
    fn stored(&self, block: u64) -> Result<Stored, Corrupt> {
        match self.walk(block, None)? {
            Path::Entry(at) => self.stored_by(at),
            Path::Missing(_) => Ok(Stored::Hole),
        }
    }

    /// What the entry of the map at `at` says.
    fn stored_by(&self, at: PoolOffset) -> Result<Stored, Corrupt> {
        Ok(match map::load_entry(self.medium(), at)? {
            None => Stored::Hole,
            Some(entry) if entry.flags.zero => Stored::Zero,
            Some(entry) => Stored::Data(entry.block.offset()),
        })
    }

    /// Whether logical block `block` has contents of its own.
    pub(crate) fn has_data(&self, block: u64) -> Result<bool, Corrupt> {
        Ok(matches!(self.stored(block)?, Stored::Data(_)))
    }

    pub(crate) fn read_bytes(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let request = RequestRange { offset, len: out.len() as u64 };
        self.check_range(offset, request.len)?;
        for (range, chunk_at) in chunks(offset, out.len()) {
            let mut blocks = self.locks.read(range.blocks());
            if planted(Bug::ReaderUnlocksEarly) {
                blocks.clear();
            }
            self.check_range(range.offset, range.len as u64)?;
            let chunk = &mut out[chunk_at..chunk_at + range.len];
            self.read_locked(request, range.offset, chunk)?;
        }
        Ok(())
    }

    /// Reads under locks that the caller holds.
    fn read_locked(
        &self,
        request: RequestRange,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        let mut done = 0;
        while done < out.len() {
            let at = PoolOffset(offset + done as u64);
            let len = (BLOCK - at.in_block()).min(out.len() - done);
            let piece = &mut out[done..done + len];
            match self.stored(at.block().0).map_err(|c| self.corrupt(request, &c))? {
                Stored::Data(start) if self.has_checksums() => {
                    let mut whole = [0; BLOCK];
                    let (block, offset) = (start.block(), at.block().offset().0);
                    self.sound(request, self.read_verified(block, offset, &mut whole))?;
                    piece.copy_from_slice(&whole[at.in_block()..at.in_block() + len]);
                }
                Stored::Data(start) => {
                    let start = start.plus(at.in_block() as u64);
                    self.medium().read(start, piece);
                    self.sound(request, self.check_data(start, len, at.0))?;
                }
                Stored::Hole | Stored::Zero => piece.fill(0),
            }
            done += len;
        }
        Ok(())
    }

    pub(crate) fn send_bytes(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        let request = RequestRange { offset, len: len as u64 };
        self.check_range(offset, request.len)?;
        if chunks(offset, len).nth(1).is_some() {
            // Later chunks are walked after bytes have gone out: look before saying yes.
            self.check_mapped(request)?;
        }
        let mut prefix = prefix;
        for (range, chunk_at) in chunks(offset, len) {
            let sent = self.send_chunk(range, prefix, socket);
            let rest = match sent {
                Ok(rest) => rest,
                Err(SendError::Device(error)) if chunk_at > 0 => {
                    return Err(SendError::Socket(std::io::Error::other(error)));
                }
                Err(error) => return Err(error),
            };
            send_all(socket, &rest)?;
            prefix = &[];
        }
        if len == 0 {
            send_all(socket, prefix)?;
        }
        Ok(())
    }

    fn check_mapped(&self, request: RequestRange) -> Result<(), DeviceError> {
        for (range, _) in chunks(request.offset, usize::try_from(request.len).unwrap_or(usize::MAX))
        {
            let _blocks = self.locks.read(range.blocks());
            self.check_range(range.offset, range.len as u64)?;
            let pieces = self.pieces(range, &[]).map_err(|c| self.corrupt(request, &c))?;
            self.sound(request, self.check_pieces(&pieces, 0, range.offset))?;
        }
        Ok(())
    }

    /// Sends what the socket takes at once and returns the rest, copied.
    fn send_chunk(
        &self,
        range: ByteRange,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<Vec<u8>, SendError> {
        let request = RequestRange { offset: range.offset, len: range.len as u64 };
        let _blocks = self.locks.read(range.blocks());
        self.check_range(range.offset, range.len as u64)?;
        let pieces = self.pieces(range, prefix).map_err(|c| self.corrupt(request, &c))?;
        let check = || self.check_pieces(&pieces, prefix.len(), range.offset);
        self.sound(request, check())?;
        let mut sent = match self.medium().send(socket, &pieces) {
            Ok(sent) => sent,
            // Nothing has left; if memory failed only now, it is no fault of the socket's.
            Err(error) => {
                self.sound(request, check())?;
                return Err(error.into());
            }
        };
        let mut rest = Vec::new();
        for piece in &pieces {
            let skip = sent.min(piece.len());
            sent -= skip;
            let from = rest.len();
            rest.resize(from + piece.len() - skip, 0);
            match *piece {
                Piece::Bytes(bytes) => rest[from..].copy_from_slice(&bytes[skip..]),
                Piece::Stored { at, .. } => {
                    self.medium().read(at.plus(skip as u64), &mut rest[from..]);
                }
                Piece::Zeroes { .. } => {}
            }
        }
        if !rest.is_empty() {
            check().map_err(std::io::Error::other)?;
        }
        Ok(rest)
    }

    /// The message of `prefix` and the bytes of `range`, adjacent pieces joined.
    fn pieces<'a>(&self, range: ByteRange, prefix: &'a [u8]) -> Result<Vec<Piece<'a>>, Corrupt> {
        let mut pieces = Vec::with_capacity(2 + range.len / BLOCK);
        if !prefix.is_empty() {
            pieces.push(Piece::Bytes(prefix));
        }
        let mut done = 0;
        while done < range.len {
            let logical = PoolOffset(range.offset + done as u64);
            let len = (BLOCK - logical.in_block()).min(range.len - done);
            let stored = self.stored(logical.block().0)?;
            match (stored, pieces.last_mut()) {
                (Stored::Data(start), last) => {
                    let at = start.plus(logical.in_block() as u64);
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

    pub(crate) fn extents(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        let request = RequestRange { offset, len };
        self.check_range(offset, len)?;
        if len == 0 {
            return Err(DeviceError::OutOfRange { offset, len, size_bytes: self.size_bytes() });
        }
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = offset;
        let end = offset + len;
        while at < end {
            let (stored, next) = self.stored_run(at, request)?;
            let to = (next * BLOCK_U64).min(end);
            let (hole, zero) = match stored {
                Stored::Hole => (true, true),
                Stored::Zero => (false, true),
                Stored::Data(_) => (false, false),
            };
            let full = extents.len() >= extents_max.max(1);
            match extents.last_mut() {
                Some(last) if (last.hole, last.zero) == (hole, zero) => last.len += to - at,
                Some(_) if full => break,
                _ => extents.push(Extent { len: to - at, hole, zero }),
            }
            at = to;
        }
        Ok(extents)
    }

    /// What is stored at byte `at` of a request, and the first block that may differ from it: where
    /// a leaf of the map is missing, that of the next one which is there.
    fn stored_run(&self, at: u64, request: RequestRange) -> Result<(Stored, u64), DeviceError> {
        let byte = ByteRange { offset: at, len: 1 };
        let _blocks = self.locks.read(byte.blocks());
        self.check_range(at, 1)?;
        let block = at / BLOCK_U64;
        let run = self.walk(block, None).and_then(|path| match path {
            Path::Entry(entry_at) => Ok((self.stored_by(entry_at)?, block + 1)),
            Path::Missing(_) => Ok((Stored::Hole, self.next_leaf(block))),
        });
        run.map_err(|corrupt| self.corrupt(request, &corrupt))
    }

    /// The first block of the next leaf of the map that is there, or beyond the last one. Where the
    /// map cannot tell, the leaf that would come next.
    ///
    /// Reads inner nodes only. They stay where they are as long as the caller holds the lock of any
    /// block: just leaves are taken off a map, and a map that shrinks has all locks.
    pub(crate) fn next_leaf(&self, block: u64) -> u64 {
        let next = (block / ENTRIES + 1) * ENTRIES;
        if self.map_kind() == MapKind::Direct {
            return next;
        }
        match map::first_leaf_from(self.medium(), self.volume().root_at(), next) {
            Ok(Some(leaf)) => leaf.max(next),
            Ok(None) => u64::MAX / BLOCK_U64,
            Err(_) => next,
        }
    }
}

/// A run of bytes of the device.
#[derive(Clone, Copy, Debug)]
struct ByteRange {
    offset: u64,
    len: usize,
}

impl ByteRange {
    fn blocks(self) -> BlockRange {
        BlockRange::of_bytes(self.offset, self.len as u64)
    }
}

/// Cuts a range at multiples of 1 MiB; each part comes with its place in the whole.
fn chunks(offset: u64, len: usize) -> impl Iterator<Item = (ByteRange, usize)> {
    const CHUNK: u64 = BLOCKS_AT_ONCE * BLOCK_U64;
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let to_boundary = usize::try_from(CHUNK - at % CHUNK).unwrap_or(usize::MAX);
        let part = to_boundary.min(len - done);
        let range = ByteRange { offset: at, len: part };
        done += part;
        Some((range, done - part))
    })
}
