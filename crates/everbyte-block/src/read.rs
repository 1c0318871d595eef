//! Reading: from the pool to the caller or straight to a socket; and the status of ranges.
//!
//! Invariants: a block is read under its lock, so it is seen whole. No lock is held during a wait for a full
//! socket.

use std::os::fd::BorrowedFd;

use everbyte_device::{
    DeviceError, DirectAccess, Extent as Status, MappedBytes, SendError, send_all,
};
use everbyte_extent::{ByteRange, DeviceOffset, ExtentError, Stored, View, chunks};
use everbyte_media::{Medium, Piece, PoolOffset};

use crate::error::RequestRange;
use crate::volume::BlockVolume;

impl<M: Medium> BlockVolume<M> {
    /// Pins `len` bytes from `offset` on for use in place: their present contents, unaffected by later writes
    /// to the volume. The view ends without a release some time after; see [`View`] for the time, and for the
    /// validity of loads.
    ///
    /// # Errors
    /// The range leaves the device; bytes cannot be read or are not the stored ones; `Pin` if the volume's
    /// views reach their limits.
    pub fn view(&self, offset: u64, len: usize) -> Result<View<M>, ExtentError> {
        self.extent().view(DeviceOffset(offset), len)
    }

    pub(crate) fn read_bytes(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let request = RequestRange { offset, len: out.len() as u64 };
        let read = self.extent().read(DeviceOffset(offset), out);
        read.map_err(|error| request.failed(self.volume(), error))
    }

    pub(crate) fn send_bytes(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        let request = RequestRange { offset, len: len as u64 };
        self.check_range(request)?;
        if chunks(DeviceOffset(offset), len).nth(1).is_some() {
            // Later chunks are looked up after bytes have gone out: look before saying yes.
            self.check_mapped(request, len)?;
        }
        let mut prefix = prefix;
        for (range, chunk_at) in chunks(DeviceOffset(offset), len) {
            let sent = self.send_chunk(range, prefix, socket);
            let rest = match sent {
                Ok(rest) => rest,
                // Bytes have gone out, so only the end of the connection can report the error.
                Err(SendError::Device(error)) if chunk_at > 0 => {
                    return Err(SendError::Socket(std::io::Error::other(error)));
                }
                Err(error) => return Err(error),
            };
            // The blocks are unlocked by now: a full socket must not stop their writers.
            send_all(socket, &rest)?;
            prefix = &[];
        }
        // Without bytes there is no chunk to carry the prefix.
        if len == 0 {
            send_all(socket, prefix)?;
        }
        Ok(())
    }

    fn check_mapped(&self, request: RequestRange, len: usize) -> Result<(), DeviceError> {
        for (range, _) in chunks(DeviceOffset(request.offset), len) {
            let _blocks = self.extent().locks().read(range.blocks());
            self.check_range(request_of(range))?;
            self.checked_pieces(request, range, &[])?;
        }
        Ok(())
    }

    /// The pieces of `range`, readable and equal to the stored bytes.
    fn checked_pieces<'a>(
        &self,
        request: RequestRange,
        range: ByteRange,
        prefix: &'a [u8],
    ) -> Result<Vec<Piece<'a>>, DeviceError> {
        let pieces = self.extent().pieces(range, prefix);
        let pieces = pieces.map_err(|error| request.failed(self.volume(), error))?;
        self.check_pieces(request, range, &pieces, prefix.len())?;
        Ok(pieces)
    }

    fn check_pieces(
        &self,
        request: RequestRange,
        range: ByteRange,
        pieces: &[Piece<'_>],
        prefix_len: usize,
    ) -> Result<(), DeviceError> {
        let checked = self.extent().check_pieces(pieces, prefix_len, range.offset);
        checked.map_err(|error| request.failed(self.volume(), error))
    }

    /// Sends as much as the socket takes immediately and returns the rest, copied.
    fn send_chunk(
        &self,
        range: ByteRange,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<Vec<u8>, SendError> {
        let request = request_of(range);
        let _blocks = self.extent().locks().read(range.blocks());
        // Under the locks: a resize or a deletion takes all of them.
        self.check_range(request)?;
        let pieces = self.checked_pieces(request, range, prefix)?;
        let mut sent = match self.medium().send(socket, &pieces) {
            Ok(sent) => sent,
            // Nothing was sent; if memory failed only now, it is not the socket's fault.
            Err(error) => {
                self.check_pieces(request, range, &pieces, prefix.len())?;
                return Err(error.into());
            }
        };
        // Copied under the locks, so a block sent in two pieces is still of one moment.
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
        // A page may have failed since they were checked, with zeroes sent or copied instead of its bytes.
        // Sent bytes cannot be taken back, so the end of the connection reports it to the client.
        if !rest.is_empty() || self.medium().has_poison() {
            let checked = self.extent().check_pieces(&pieces, prefix.len(), range.offset);
            checked.map_err(std::io::Error::other)?;
        }
        Ok(rest)
    }

    pub(crate) fn extents(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Status>, DeviceError> {
        let request = RequestRange { offset, len };
        self.check_range(request)?;
        if len == 0 {
            return Err(DeviceError::OutOfRange { offset, len, size_bytes: self.size_bytes() });
        }
        let mut extents: Vec<Status> = Vec::new();
        let mut at = offset;
        let end = offset + len;
        while at < end {
            let run = self.extent().stored_run(DeviceOffset(at));
            let (stored, next) = run.map_err(|error| request.failed(self.volume(), error))?;
            let to = next.offset().0.min(end);
            let (hole, zero) = match stored {
                Stored::Hole => (true, true),
                Stored::Zero => (false, true),
                Stored::Data(_) => (false, false),
            };
            // The contract requires at least one extent.
            let full = extents.len() >= extents_max.max(1);
            match extents.last_mut() {
                Some(last) if (last.hole, last.zero) == (hole, zero) => last.len += to - at,
                Some(_) if full => break,
                _ => extents.push(Status { len: to - at, hole, zero }),
            }
            at = to;
        }
        Ok(extents)
    }
}

impl<M: Medium> DirectAccess for BlockVolume<M> {
    fn map_range(&self, offset: u64, len: usize) -> Option<MappedBytes> {
        // An error counts as no mapping: a read of the range reports it.
        let at = self.extent().place_of(DeviceOffset(offset), len).ok().flatten()?;
        let address = self.medium().lend(at, len as u64)?;
        Some(MappedBytes { address, place: at.0, len })
    }

    fn has_failed(&self, mapped: &MappedBytes) -> bool {
        self.medium().check_range(PoolOffset(mapped.place), mapped.len as u64).is_err()
    }
}

fn request_of(range: ByteRange) -> RequestRange {
    RequestRange { offset: range.offset.0, len: range.len as u64 }
}
