//! The trait at which frontends and backends of block storage meet.

use std::io;
use std::os::fd::BorrowedFd;

use crate::lend::Lends;

/// Force Unit Access: `Yes` if a request must be durable when it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fua {
    /// The answer may come before durability.
    No,
    /// The answer promises durability.
    Yes,
}

/// Permission to give back the space under zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hole {
    /// The device may give the space back and read zeroes from nowhere.
    Allowed,
    /// Later writes to the range must not fail for lack of space.
    Forbidden,
}

/// A write in a batch.
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest<'a> {
    /// First byte.
    pub offset: u64,
    /// Bytes to write.
    pub data: &'a [u8],
    /// `Yes` if it must be durable when it is answered.
    pub fua: Fua,
}

/// Sizes a client may want to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// Smallest request that costs no read-modify-write inside the device, a power of two.
    pub minimum_bytes: u32,
    /// Request size and alignment that suits the device best, a power of two.
    pub preferred_bytes: u32,
    /// True if writes are refused.
    pub read_only: bool,
}

/// A run of bytes of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes in the run, at least 1.
    pub len: u64,
    /// True if no space is allocated for it.
    pub hole: bool,
    /// True if it reads as zeroes.
    pub zero: bool,
}

/// Errors of requests to a [`BlockDevice`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The request leaves the device.
    #[error("request of {len} bytes at {offset} leaves the device of {size_bytes} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Size of the device.
        size_bytes: u64,
    },
    /// No space is left for the write; nothing of it was done.
    #[error("no space left for {len} bytes at {offset}: {advice}")]
    NoSpace {
        /// First byte of the request.
        offset: u64,
        /// Bytes of the request.
        len: u64,
        /// Something that the operator can do about it.
        advice: String,
    },
    /// The device is read-only.
    #[error("the device is read-only: {reason}")]
    ReadOnly {
        /// The reason.
        reason: String,
    },
    /// Fast zeroing was asked for and is not possible here.
    #[error("zeroing here is not faster than writing")]
    NotFast,
    /// The medium below failed; the range may hold neither the old nor the new bytes.
    #[error("media error at {offset}+{len}: {reason}")]
    Media {
        /// First byte of the request.
        offset: u64,
        /// Bytes of the request.
        len: u64,
        /// The medium's words.
        reason: String,
    },
    /// The device is being removed.
    #[error("the device is going away")]
    Gone,
}

/// Errors of [`BlockDevice::send`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The device could not read; nothing, not even the prefix, was put on the socket.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The socket failed, perhaps in the middle; it is of no further use.
    #[error("sending failed: {0}")]
    Socket(#[from] io::Error),
}

/// A block device: byte ranges that can be read, written and made durable.
///
/// # Contract
/// - **Ranges.** Any byte offset and length is legal; devices that work in larger units read,
///   modify and write. The device checks ranges: a request that leaves `0 .. size_bytes` fails
///   with [`DeviceError::OutOfRange`] and does nothing. A zero-length request inside the range
///   succeeds and does nothing.
/// - **Atomicity.** Concurrent reads see every 4 KiB-aligned block of a write whole or not at all.
///   What a crash leaves of a request is the device's own promise.
/// - **Durability.** `flush` makes durable every write that was answered before it was called, on
///   whichever thread. A request with `Fua::Yes` is durable itself when it is answered.
///   Without either, a crash may undo answered writes.
/// - **Errors.** A failed request leaves the device usable. A failed write left either all of its
///   bytes or none, unless the error is [`DeviceError::Media`].
/// - **Threads.** Every method may be called from any thread at any time. Methods block until
///   done.
/// - No method panics for anything a caller passes.
pub trait BlockDevice: Send + Sync {
    /// Current sizes; `size_bytes` may change between calls when the device is resized.
    fn geometry(&self) -> Geometry;

    /// Fills `out` from `offset` on.
    ///
    /// # Errors
    /// `OutOfRange`, `Media`, `Gone`.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError>;

    /// Puts `prefix` and then `len` bytes from `offset` on on `socket`, blocking until all is
    /// sent. A device over mapped memory sends without an intermediate copy.
    ///
    /// # Errors
    /// `Device` if the read fails, before anything was sent; else `Socket`.
    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        check_range(offset, len as u64, self.geometry().size_bytes)?;
        read_and_send(|at, out| self.read(at, out), (offset, len), prefix, socket)
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// `OutOfRange`, `NoSpace`, `ReadOnly`, `Media`, `Gone`.
    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError>;

    /// Does every write of `requests`, in an order that leaves the bytes of a later request where
    /// two overlap, and returns one result each, in their order. Devices that pay per commit pay
    /// once for the batch.
    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        requests.iter().map(|r| self.write(r.offset, r.data, r.fua)).collect()
    }

    /// Makes every write answered before this call durable.
    ///
    /// # Errors
    /// `Media`, `Gone`. Writes that were answered before may be lost then, and a flush that begins later may not tell so: to
    /// be durable they are to be made again.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Gives back the whole blocks in the range and zeroes the rest of it: the range reads as
    /// zeroes afterwards.
    ///
    /// # Errors
    /// As `write`.
    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError>;

    /// Makes the range read as zeroes. With `fast`, fails with `NotFast`, having done nothing,
    /// where it would cost as much as writing zeroes.
    ///
    /// # Errors
    /// As `write`, and `NotFast`.
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError>;

    /// Returns the extents of the range: adjacent ones from `offset` on that cover at least one byte
    /// and at most `len`, at most `extents_max` of them.
    ///
    /// # Errors
    /// `OutOfRange` (also for `len` 0), `Media`, `Gone`.
    fn status(&self, offset: u64, len: u64, extents_max: usize)
    -> Result<Vec<Extent>, DeviceError>;

    /// Hints that the range will be read soon.
    ///
    /// # Errors
    /// `OutOfRange`, `Gone`.
    fn cache(&self, offset: u64, len: u64) -> Result<(), DeviceError>;

    /// Returns the device as one whose bytes can be used where they lie, if it is one. One that is gone
    /// has no bytes any more.
    fn lender(&self) -> Option<&dyn Lends> {
        None
    }
}

/// Checks that `len` bytes at `offset` lie in a device of `size_bytes` bytes. Zero bytes at the
/// very end do; zero bytes beyond it do not. The one check that devices share, so that they agree on
/// the corners.
///
/// # Errors
/// `OutOfRange`.
#[inline]
pub fn check_range(offset: u64, len: u64, size_bytes: u64) -> Result<(), DeviceError> {
    match offset.checked_add(len) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(DeviceError::OutOfRange { offset, len, size_bytes }),
    }
}

/// Most bytes that are held for a peer that does not take them.
const HELD_MAX: usize = 2 << 20;

/// Bytes of a block that no read may see half written.
const BLOCK_BYTES: u64 = 4096;

/// A [`BlockDevice::send`] of the range `offset`, `len` by a copy; `read` gets the offset of each piece. The caller has
/// checked the range, which bounds the memory by the size of the device.
///
/// All bytes are read before the first one is sent, because the protocol reports errors only before data. If the peer
/// stalls, the memory is freed but for a part, and the rest is read again later. Peers that ask for
/// much and take nothing cannot exhaust the memory. Parts end at blocks, so each block is of one moment.
pub(crate) fn read_and_send(
    read: impl Fn(u64, &mut [u8]) -> Result<(), DeviceError>,
    (offset, len): (u64, usize),
    prefix: &[u8],
    socket: BorrowedFd<'_>,
) -> Result<(), SendError> {
    let mut message = vec![0; prefix.len() + len];
    message[..prefix.len()].copy_from_slice(prefix);
    read(offset, &mut message[prefix.len()..])?;
    let mut sent = crate::socket::send_until_stall(socket, &message)?;
    let total = message.len();
    if total - sent <= HELD_MAX {
        crate::socket::send_all(socket, &message[sent..])?;
        return Ok(());
    }
    let device_offset = |at: usize| offset + (at - prefix.len()) as u64;
    let part_end = |from: usize| {
        let end = total.min(from.saturating_add(HELD_MAX));
        let beyond = if end == total { 0 } else { device_offset(end) % BLOCK_BYTES };
        end - usize::try_from(beyond).unwrap_or(0)
    };
    // The prefix is in this part: it cannot be read again.
    let mut part = message[sent..part_end(sent.max(prefix.len()))].to_vec();
    drop(message);
    loop {
        crate::socket::send_all(socket, &part)?;
        sent += part.len();
        if sent == total {
            return Ok(());
        }
        part.resize(part_end(sent) - sent, 0);
        read(device_offset(sent), &mut part)
            .map_err(|error| SendError::Socket(io::Error::other(error)))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_takes_nothing_gets_all_bytes_later() {
        use std::io::Read;
        use std::os::fd::AsFd;
        use std::os::unix::net::UnixStream;

        const LEN: usize = 9 << 20;
        let bytes = |from: u64| u8::try_from(from / 1000 % 251).unwrap();
        let longest = std::sync::Mutex::new(Vec::new());
        let (near, mut far) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let read = |from: u64, out: &mut [u8]| {
                    longest.lock().unwrap().push(out.len());
                    let places = out.iter_mut().zip(from..);
                    places.for_each(|(byte, at)| *byte = bytes(at));
                    Ok(())
                };
                read_and_send(read, (0, LEN), b"prefix", near.as_fd()).unwrap();
            });
            // The sender reads again when the peer has stalled.
            while longest.lock().unwrap().is_empty() {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(400));
            let mut got = vec![0; LEN + 6];
            far.read_exact(&mut got).unwrap();
            assert_eq!(&got[..6], b"prefix");
            assert!(got[6..].iter().zip(0..).all(|(&byte, at)| byte == bytes(at)));
            sending.join().unwrap();
        });
        let longest = longest.into_inner().unwrap();
        assert_eq!(longest[0], LEN);
        assert!(longest.len() > 1, "a stalled peer frees memory");
        assert!(longest[1..].iter().all(|&len| len <= HELD_MAX), "{longest:?}");
    }

    #[test]
    fn reading_peer_causes_one_read() {
        use std::io::Read;
        use std::os::fd::AsFd;
        use std::os::unix::net::UnixStream;
        use std::sync::atomic::{AtomicUsize, Ordering};

        const LEN: usize = 16 << 20;
        let reads = AtomicUsize::new(0);
        let (near, mut far) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut got = vec![0; LEN + 6];
                far.read_exact(&mut got).unwrap();
                assert!(got[6..].iter().all(|&byte| byte == 7));
            });
            let read = |_, out: &mut [u8]| {
                reads.fetch_add(1, Ordering::Relaxed);
                out.fill(7);
                Ok(())
            };
            read_and_send(read, (0, LEN), b"prefix", near.as_fd()).unwrap();
        });
        assert_eq!(reads.into_inner(), 1);
    }

    #[test]
    fn the_corners() {
        for (offset, len) in [(0, 0), (0, 10), (9, 1), (10, 0), (3, 4)] {
            assert!(check_range(offset, len, 10).is_ok(), "{offset}+{len}");
        }
        for (offset, len) in
            [(0, 11), (10, 1), (11, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)]
        {
            assert!(check_range(offset, len, 10).is_err(), "{offset}+{len}");
        }
    }
}
