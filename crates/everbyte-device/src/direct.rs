//! Reads and writes of a file without the system's page cache.
//!
//! Owns the required alignment of offsets, lengths and buffers: 4096 bytes, enough for every disk of
//! today. Requests of other alignment are widened. A widened write first reads the blocks at its ends, so
//! the caller must keep writers apart. A part of a block at the end of a file lies beyond
//! [`Direct::end`]; the caller serves it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::OFlags;

/// Alignment of offsets, lengths and buffers, in bytes.
pub(crate) const ALIGN: u64 = 4096;
const ALIGN_LEN: usize = 4096;

/// Longest piece of one system call.
const PIECE_LEN: u64 = 1 << 20;

/// Memory that begins at a multiple of [`ALIGN`].
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let bytes = vec![0; len + ALIGN_LEN];
        // A vector's bytes stay where they are. `align_offset` may fail to align them; then the
        // system refuses the request, and its error is returned.
        let start = bytes.as_ptr().align_offset(ALIGN_LEN).min(ALIGN_LEN);
        Self { bytes, start, len }
    }

    fn slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// The pieces of a range: each with the blocks that it lies in.
struct Piece {
    at: u64,
    len: usize,
    blocks_at: u64,
    blocks_len: usize,
}

fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let blocks_at = at - at % ALIGN;
        // Pieces end at blocks, so only the first and the last one can need old bytes.
        let stop = end.min(blocks_at + PIECE_LEN);
        let short = |len: u64| usize::try_from(len).unwrap_or(0);
        let piece = Piece {
            at,
            len: short(stop - at),
            blocks_at,
            blocks_len: short(stop.next_multiple_of(ALIGN) - blocks_at),
        };
        at = stop;
        Some(piece)
    })
}

/// A file opened with `O_DIRECT`.
pub(crate) struct Direct {
    file: File,
    end: u64,
}

impl Direct {
    /// Opens the open file `other` of `size_bytes` bytes a second time, also if its path changed, and
    /// reads a block as a test.
    pub(crate) fn open(other: &File, size_bytes: u64, is_writable: bool) -> io::Result<Self> {
        let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
        let path = format!("/proc/self/fd/{}", other.as_raw_fd());
        let file =
            OpenOptions::new().read(true).write(is_writable).custom_flags(flags).open(path)?;
        // A partial block at the end cannot be read directly. The page cache serves it.
        let direct = Self { file, end: size_bytes - size_bytes % ALIGN };
        // Some file systems accept the flag, and refuse the requests.
        if direct.end > 0 {
            direct.read(0, &mut [0])?;
        }
        Ok(direct)
    }

    /// Bytes in the whole blocks of the file.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Reads a range below `end`.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut rest = out;
        for piece in pieces(offset, rest.len() as u64) {
            let mut buffer = Aligned::new(piece.blocks_len);
            let blocks = buffer.slice();
            self.file.read_exact_at(blocks, piece.blocks_at)?;
            let from = usize::try_from(piece.at - piece.blocks_at).unwrap_or(0);
            let (first, after) = rest.split_at_mut(piece.len);
            first.copy_from_slice(&blocks[from..from + piece.len]);
            rest = after;
        }
        Ok(())
    }

    /// Writes a range below `end`.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut rest = data;
        for piece in pieces(offset, rest.len() as u64) {
            let mut buffer = Aligned::new(piece.blocks_len);
            let blocks = buffer.slice();
            let from = usize::try_from(piece.at - piece.blocks_at).unwrap_or(0);
            let to = from + piece.len;
            // Only whole blocks can be written, so the bytes around the piece come from the file.
            if from > 0 {
                self.file.read_exact_at(&mut blocks[..ALIGN_LEN], piece.blocks_at)?;
            }
            let last = blocks.len() - ALIGN_LEN;
            // If the piece lies in one block, the read for its start has brought the end as well.
            if to < blocks.len() && (last > 0 || from == 0) {
                let last_at = piece.blocks_at + last as u64;
                self.file.read_exact_at(&mut blocks[last..], last_at)?;
            }
            let (first, after) = rest.split_at(piece.len);
            blocks[from..to].copy_from_slice(first);
            self.file.write_all_at(blocks, piece.blocks_at)?;
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_io_pieces_cover_range() {
        for (offset, len) in [(0, 0), (0, 1), (4095, 2), (4096, 4096), (5, 3 << 20), (4000, 96)] {
            let mut at = offset;
            for piece in pieces(offset, len) {
                assert_eq!(piece.at, at);
                assert_eq!((piece.blocks_at % ALIGN, piece.blocks_len % ALIGN_LEN), (0, 0));
                let blocks_end = piece.blocks_at + piece.blocks_len as u64;
                at += piece.len as u64;
                assert!(piece.blocks_at <= piece.at && at <= blocks_end && piece.len > 0);
                assert!(blocks_end - at < ALIGN && piece.at - piece.blocks_at < ALIGN);
            }
            assert_eq!(at, offset + len);
        }
    }

    #[test]
    fn buffers_are_aligned() {
        for len in [4096, 8192, 1 << 20] {
            let mut buffer = Aligned::new(len);
            assert_eq!(buffer.slice().as_ptr().align_offset(ALIGN_LEN), 0);
            assert_eq!(buffer.slice().len(), len);
        }
    }
}
