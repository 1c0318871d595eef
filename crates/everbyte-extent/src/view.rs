//! Views: bytes of an extent used in place, without a copy.
//!
//! Invariants: all of a view was looked up, checked and pinned under one set of block locks, so it is a
//! snapshot. Loaded bytes are valid only after a check that the view is alive; the check follows the loads.
//! Knows neither devices nor files.

use std::io;
use std::os::fd::BorrowedFd;

use everbyte_media::{BLOCK_U64, Mapped, MediaError, Medium, Piece, PoolOffset};
use everbyte_pool::{BlockRun, PinError, PinnedBlocks};

use crate::address::DeviceOffset;
use crate::error::ExtentError;
use crate::extent::Extent;
use crate::read::ByteRange;

/// The reason for invalid bytes of a view.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The view has ended, and its blocks may have been reused: it was held for too long, its volume was
    /// closed or deleted, or a writer would have found no space.
    #[error("the view has ended: its time is over, or its blocks were needed")]
    Ended,
    /// Bytes of it cannot be read.
    #[error(transparent)]
    Memory(#[from] MediaError),
    /// The socket failed, perhaps in the middle.
    #[error("sending failed: {0}")]
    Socket(#[from] io::Error),
}

/// Bytes of an extent as they were when the view was made, where they lie.
///
/// While the view is alive, the blocks with its bytes are neither reused, moved nor stored to: a write to one
/// of them puts the new bytes into another block. Checksums were verified and the range was found readable
/// before the view was made. It is alive until it is dropped or its time is over
/// ([`PinLimits`](everbyte_pool::PinLimits)); until its volume is closed, deleted, or rolled back to where a
/// group of it began; and until a writer would find no space otherwise. It keeps the medium open.
///
/// **Loaded bytes are valid only once [`View::check`] has succeeded after the loads.** A thread that takes
/// its blocks ends the view before. So if a check after the loads finds the view alive, the loads gave the
/// bytes of the view.
pub struct View<M: Medium> {
    pins: PinnedBlocks<M>,
    pieces: Vec<Piece<'static>>,
    len: usize,
}

impl<M: Medium> Extent<M> {
    /// Pins bytes `offset .. offset + len` to be used where they lie. Fails rather than waits where limits
    /// of the volume are reached.
    ///
    /// # Errors
    /// The range leaves the extent; its bytes cannot be read or are not the stored ones; the map is corrupt;
    /// a limit of pins.
    pub fn view(&self, offset: DeviceOffset, len: usize) -> Result<View<M>, ExtentError> {
        let (bytes, bytes_max) = (len as u64, self.volume().pin_limits().bytes_max);
        if bytes > bytes_max {
            return Err(PinError::TooLarge { bytes, bytes_max }.into());
        }
        self.check_range(offset.0, bytes)?;
        let range = ByteRange { offset, len };
        let _blocks = self.locks().read(range.blocks());
        // Again under the locks: a resize or a deletion takes all of them.
        self.check_range(offset.0, bytes)?;
        let pieces = self.pieces(range, &[])?;
        // Pinned first: the verification of many blocks' checksums takes time.
        let pins = self.volume().pin(pieces.iter().filter_map(blocks_of).collect())?;
        self.check_pieces(&pieces, 0, offset)?;
        Ok(View { pins, pieces, len })
    }
}

impl<M: Medium> Extent<M> {
    /// The place of bytes `offset .. offset + len`, at most 1 MiB, if they are contiguous; they are readable
    /// and equal to the stored ones. They stay there until one of their blocks is written. Unlike a view, the
    /// place does not prevent such a write.
    ///
    /// # Errors
    /// The range leaves the extent; its bytes cannot be read or are not the stored ones; the map is corrupt.
    pub fn place_of(
        &self,
        offset: DeviceOffset,
        len: usize,
    ) -> Result<Option<PoolOffset>, ExtentError> {
        self.check_range(offset.0, len as u64)?;
        let range = ByteRange { offset, len };
        let _blocks = self.locks().read(range.blocks());
        self.check_range(offset.0, len as u64)?;
        let pieces = self.pieces(range, &[])?;
        let &[Piece::Stored { at, .. }] = pieces.as_slice() else { return Ok(None) };
        self.check_pieces(&pieces, 0, offset)?;
        Ok(Some(at))
    }
}

/// The blocks of a piece.
fn blocks_of(piece: &Piece<'_>) -> Option<BlockRun> {
    let Piece::Stored { at, len } = *piece else { return None };
    let end = at.plus(len as u64).0.div_ceil(BLOCK_U64);
    Some(BlockRun { start: at.block(), len: end - at.block().0 })
}

impl<M: Medium> View<M> {
    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The places of its bytes in order, as [`Medium::send`] takes them: ranges of the medium, and zeroes
    /// without a place.
    #[must_use]
    pub fn pieces(&self) -> &[Piece<'static>] {
        &self.pieces
    }

    /// Returns true if it has ended: later loads are invalid.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !self.pins.is_alive()
    }

    /// Checks that all loads of the calling thread until now gave the view's contents.
    ///
    /// # Errors
    /// `Ended`, or `Memory` if some of it cannot be read.
    pub fn check(&self) -> Result<(), ViewError> {
        self.check_readable()?;
        if self.pins.is_alive() { Ok(()) } else { Err(ViewError::Ended) }
    }

    /// Copies its bytes from `from` on into `out`, as many as there are, and returns how many.
    ///
    /// # Errors
    /// As [`View::check`]; `out` may hold anything then.
    pub fn read(&self, from: usize, out: &mut [u8]) -> Result<usize, ViewError> {
        let mut done = 0;
        for piece in self.rest(from) {
            let room = &mut out[done..];
            let len = piece.len().min(room.len());
            match piece {
                Piece::Stored { at, .. } => self.medium().read(at, &mut room[..len]),
                _ => room[..len].fill(0),
            }
            done += len;
        }
        // After the copy: only a view that is alive now vouches for the loads before.
        self.check()?;
        Ok(done)
    }

    /// Sends its bytes from `from` on to `socket`, without a copy and without a wait, and returns the number
    /// of bytes taken by the socket: 0 if it has no room. The view does not end during the call, so nothing
    /// else is sent.
    ///
    /// # Errors
    /// `Ended`, and nothing was sent; `Memory`, and zeroes may have been sent for unreadable bytes, so the
    /// socket is unusable; or the socket's.
    pub fn send(&self, socket: BorrowedFd<'_>, from: usize) -> Result<usize, ViewError> {
        let pieces: Vec<Piece<'_>> = self.rest(from).collect();
        // The end of the view waits for this call, so the socket gets bytes of a valid view.
        let sent = self.pins.while_alive(|| {
            // Before the send: sent zeroes could not be taken back.
            self.check_readable()?;
            let sent = self.medium().send(socket, &pieces)?;
            // For a page that has failed since.
            self.check_readable()?;
            Ok(sent)
        });
        sent.unwrap_or(Err(ViewError::Ended))
    }

    fn medium(&self) -> &M {
        self.pins.volume().medium()
    }

    fn check_readable(&self) -> Result<(), MediaError> {
        if !self.medium().has_poison() {
            return Ok(());
        }
        let stored = self.pieces.iter().filter_map(|piece| match *piece {
            Piece::Stored { at, len } => Some((at, len as u64)),
            _ => None,
        });
        stored.into_iter().try_for_each(|(at, len)| self.medium().check_range(at, len))
    }

    /// The pieces without the first `from` bytes.
    fn rest(&self, from: usize) -> impl Iterator<Item = Piece<'static>> {
        let mut skip = from;
        self.pieces.iter().filter_map(move |piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            let len = piece.len() - skipped;
            let rest = match *piece {
                Piece::Stored { at, .. } => Piece::Stored { at: at.plus(skipped as u64), len },
                _ => Piece::Zeroes { len },
            };
            (len > 0).then_some(rest)
        })
    }
}

impl View<Mapped> {
    /// The addresses of its bytes in order, each with a number of bytes; none for zeroes without a place.
    /// They are mapped as long as the view is not dropped. Other processes may write there, and so may this
    /// one once the view has ended. So no caller makes a reference of them, and loads are valid only after
    /// [`View::check`].
    pub fn addresses(&self) -> impl Iterator<Item = (Option<*const u8>, usize)> {
        self.pieces.iter().map(|piece| match *piece {
            Piece::Stored { at, len } => (Some(self.medium().address(at, len as u64)), len),
            _ => (None, piece.len()),
        })
    }
}
