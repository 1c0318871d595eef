//! The trait between frontends and backends of block storage.

use crate::error::DeviceError;
use crate::transport::Transport;

/// Force Unit Access: the durability of a request when its call returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fua {
    /// The request may return before it is durable.
    No,
    /// The request is durable when it returns.
    Yes,
}

/// Permission to free the space of zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hole {
    /// The device may free the space, and reads zeroes without it.
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
    /// `Yes` if it must be durable when it returns.
    pub fua: Fua,
}

/// Sizes of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// Smallest request without a read-modify-write inside the device, a power of two.
    pub minimum_bytes: u32,
    /// Preferred request size and alignment, a power of two.
    pub preferred_bytes: u32,
    /// True if the device refuses writes.
    pub read_only: bool,
}

/// A run of bytes of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes in the run, at least 1.
    pub len: u64,
    /// True if the run has no space.
    pub hole: bool,
    /// True if the run reads as zeroes.
    pub zero: bool,
}

/// A block device: byte ranges that users read, write and make durable.
///
/// Users call [`read_at`](Self::read_at), [`write_at`](Self::write_at), [`flush`](Self::flush) and
/// [`write_durable`](Self::write_durable). A device implements [`read`](Self::read) and
/// [`write`](Self::write), which gets the durability of the request as a parameter.
///
/// # Contract
/// - **Ranges.** Every byte offset and length is legal. A device with larger units reads, modifies
///   and writes. The device checks ranges: a request beyond `0 .. size_bytes` fails with
///   [`DeviceError::OutOfRange`] and changes nothing. A zero-length request inside the range
///   succeeds and changes nothing.
/// - **Atomicity.** Concurrent reads see every 4 KiB-aligned block of a write whole or not at all.
///   The device itself documents the state of an unfinished request after a crash.
/// - **Durability.** `flush` makes every write durable that any thread's call returned before the flush
///   began. A request with `Fua::Yes` is durable when its call returns. Without either, a crash may
///   undo completed writes.
/// - **Errors.** The device stays usable after a failed request. A failed write changed all of its
///   bytes or none, unless the error is [`DeviceError::Media`].
/// - **Threads.** Any thread may call any method at any time. Methods block until the request is
///   done.
/// - **Panics.** No method panics, whatever the arguments.
pub trait BlockDevice: Send + Sync {
    /// Current sizes. A resize changes `size_bytes` between calls.
    fn geometry(&self) -> Geometry;

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// `OutOfRange`, `Media`, `Gone`.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.read(offset, out)
    }

    /// Writes `data` at `offset`. The next [`flush`](Self::flush) makes it durable.
    ///
    /// # Errors
    /// `OutOfRange`, `NoSpace`, `ReadOnly`, `Media`, `Gone`.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.write(offset, data, Fua::No)
    }

    /// Writes `data` at `offset`. The write is durable when the call returns.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.write(offset, data, Fua::Yes)
    }

    /// Implements [`read_at`](Self::read_at).
    ///
    /// # Errors
    /// `OutOfRange`, `Media`, `Gone`.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError>;

    /// Implements [`write_at`](Self::write_at) for `Fua::No` and
    /// [`write_durable`](Self::write_durable) for `Fua::Yes`.
    ///
    /// # Errors
    /// `OutOfRange`, `NoSpace`, `ReadOnly`, `Media`, `Gone`.
    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError>;

    /// Makes all writes of `requests` and returns their results in the same order. If two requests
    /// overlap, the bytes of the later request remain. A device with a cost per commit pays it once for
    /// the batch.
    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        requests.iter().map(|r| self.write(r.offset, r.data, r.fua)).collect()
    }

    /// Makes every write durable that returned before this call.
    ///
    /// # Errors
    /// `Media`, `Gone`. These writes may be lost then, and a later flush may not report it: to make
    /// them durable, write them again.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Frees the whole blocks of the range and zeroes the rest. The range then reads as zeroes.
    ///
    /// # Errors
    /// As `write`.
    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError>;

    /// Makes the range read as zeroes. With `fast`, fails with `NotFast` and changes nothing if zeroing
    /// would cost as much as a write of zeroes.
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

    /// Returns adjacent extents from `offset` on, at most `extents_max`. Together they cover at least one
    /// byte and at most `len` bytes.
    ///
    /// # Errors
    /// `OutOfRange` (also for `len` 0), `Media`, `Gone`.
    fn status(&self, offset: u64, len: u64, extents_max: usize)
    -> Result<Vec<Extent>, DeviceError>;

    /// Hints that a read of the range follows soon.
    ///
    /// # Errors
    /// `OutOfRange`, `Gone`.
    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError>;

    /// Returns the requests that the device serves without a copy, if it has any.
    fn transport(&self) -> Option<&dyn Transport> {
        None
    }
}

/// Checks that `len` bytes at `offset` lie in a device of `size_bytes` bytes. Zero bytes at the end
/// are inside, zero bytes beyond the end are not. All devices share this check, so they agree on the
/// limits.
///
/// # Errors
/// `OutOfRange`.
#[inline]
pub fn check_range(offset: u64, len: u64, size_bytes: u64) -> Result<(), DeviceError> {
    // The range comes from a client, so its end may overflow.
    match offset.checked_add(len) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(DeviceError::OutOfRange { offset, len, size_bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_check_accepts_the_exact_end_only() {
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
