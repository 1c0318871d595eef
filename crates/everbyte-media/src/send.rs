//! Gathering sends straight out of the mapping.
//!
//! Invariants: one `sendmsg` a call, never blocking, never a SIGPIPE. The kernel reads the mapping itself
//! through raw addresses, so no reference into it is made. Knows nothing of the meaning of the bytes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_void, iovec};

use crate::medium::Piece;
use crate::units::PoolOffset;

/// Pieces the kernel takes in one call (`UIO_MAXIOV`).
const IOVECS_MAX: usize = 1024;
/// Bytes of zeroes for one iovec.
const ZEROES_LEN: usize = 16 << 10;
static ZEROES: [u8; ZEROES_LEN] = [0; ZEROES_LEN];

/// Sends as much of `pieces` as `socket` takes and returns the number of bytes. `locate` turns a range of the
/// medium into its address.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    pieces: &[Piece<'_>],
    locate: impl Fn(PoolOffset, usize) -> *const u8,
) -> io::Result<usize> {
    let iovecs = gather(pieces, locate);
    if iovecs.is_empty() {
        return Ok(0);
    }
    // SAFETY: all-zero bytes are a valid `msghdr`: no name, no control data, no iovecs.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iovecs.as_ptr().cast_mut();
    message.msg_iovlen = iovecs.len();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: every iovec names bytes of a caller's slice, of the mapping or of `ZEROES`, all
        // of which outlive the call; the kernel only reads them.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        if let Ok(sent) = usize::try_from(sent) {
            return Ok(sent);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(0),
            _ => return Err(error),
        }
    }
}

/// The ranges of the medium among the first `sent` bytes of `pieces`.
pub(crate) fn stored_ranges<'a>(
    pieces: &'a [Piece<'_>],
    sent: usize,
) -> impl Iterator<Item = (PoolOffset, usize)> + 'a {
    pieces
        .iter()
        .scan(sent, |rest, piece| {
            let taken = piece.len().min(*rest);
            *rest -= taken;
            Some((piece, taken))
        })
        .filter_map(|(piece, taken)| match piece {
            Piece::Stored { at, .. } if taken > 0 => Some((*at, taken)),
            _ => None,
        })
}

/// At most [`IOVECS_MAX`] iovecs, none empty, for a prefix of `pieces`.
fn gather(pieces: &[Piece<'_>], locate: impl Fn(PoolOffset, usize) -> *const u8) -> Vec<iovec> {
    let name = |at: *const u8, iov_len| iovec { iov_base: at.cast_mut().cast::<c_void>(), iov_len };
    let mut iovecs = Vec::with_capacity(pieces.len().min(IOVECS_MAX));
    for piece in pieces {
        match *piece {
            Piece::Bytes(bytes) => iovecs.push(name(bytes.as_ptr(), bytes.len())),
            Piece::Stored { at, len } => iovecs.push(name(locate(at, len), len)),
            Piece::Zeroes { len } => {
                let whole = (len / ZEROES_LEN).min(IOVECS_MAX);
                iovecs.extend((0..whole).map(|_| name(ZEROES.as_ptr(), ZEROES_LEN)));
                iovecs.push(name(ZEROES.as_ptr(), len % ZEROES_LEN));
            }
        }
        if iovecs.last().is_some_and(|last| last.iov_len == 0) {
            iovecs.pop();
        }
        if iovecs.len() >= IOVECS_MAX {
            iovecs.truncate(IOVECS_MAX);
            break;
        }
    }
    iovecs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gather_skips_empty_stops_at_limit() {
        let nowhere = |_, _| ZEROES.as_ptr();
        let empty = [Piece::Bytes(&[]), Piece::Zeroes { len: 0 }];
        assert!(gather(&empty, nowhere).is_empty());
        let mixed = [Piece::Bytes(b"ab"), Piece::Bytes(&[]), Piece::Zeroes { len: ZEROES_LEN + 5 }];
        let lens: Vec<_> = gather(&mixed, nowhere).iter().map(|v| v.iov_len).collect();
        assert_eq!(lens, [2, ZEROES_LEN, 5]);
        let long = [Piece::Bytes(b"a"), Piece::Zeroes { len: usize::MAX }];
        assert_eq!(gather(&long, nowhere).len(), IOVECS_MAX);
        let many = [Piece::Bytes(b"a"); 2000];
        assert_eq!(gather(&many, nowhere).len(), IOVECS_MAX);
    }

    #[test]
    fn stored_ranges_end_at_sent_bytes() {
        let at = PoolOffset(4096);
        let pieces = [
            Piece::Bytes(b"abc"),
            Piece::Stored { at, len: 100 },
            Piece::Zeroes { len: 10 },
            Piece::Stored { at, len: 7 },
        ];
        let ranges = |sent| stored_ranges(&pieces, sent).collect::<Vec<_>>();
        assert_eq!(ranges(3), []);
        assert_eq!(ranges(50), [(at, 47)]);
        assert_eq!(ranges(114), [(at, 100), (at, 1)]);
        assert_eq!(ranges(120), [(at, 100), (at, 7)]);
    }
}
