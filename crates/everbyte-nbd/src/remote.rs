//! A remote export as a block device.
//!
//! One connection behind one lock: requests of several threads queue. A broken connection stays
//! broken; every later request fails with a media error that says why.
//!
//! `discard` is sent as zeroing that may punch holes, because the protocol's own trimming does
//! not promise what is read afterwards. Requests are split where the protocol bounds them, at
//! block boundaries.

use everbyte_device::{BlockDevice, DeviceError, Extent, Fua, Geometry, Hole, check_range};
use parking_lot::Mutex;

use crate::client::{Client, ClientError};
use crate::protocol::{errno, transmission_flag};

/// Splits are at multiples of this, so that no block is torn between two requests.
const BLOCK_BYTES: u64 = 4096;

/// Longest request without payload, in bytes.
const RANGE_MAX: u64 = 1 << 30;

/// Zeroes are written in pieces of so many bytes where the server cannot zero.
const ZEROES_LEN: usize = 1 << 20;

/// A remote export. Its size is that of when it was connected to.
pub struct RemoteDevice {
    client: Mutex<Client>,
    geometry: Geometry,
    payload_max: u64,
    can_flush: bool,
    can_fua: bool,
    can_zero: bool,
    can_zero_fast: bool,
    can_cache: bool,
    can_status: bool,
}

impl RemoteDevice {
    /// Makes a device of a connection.
    ///
    /// A server that offers no flush is taken to have nothing to flush, as the protocol has it;
    /// a warning is logged, because it may as well forget everything.
    ///
    /// # Errors
    /// If the server insists on aligned requests larger than one byte.
    pub fn new(client: Client) -> Result<Self, ClientError> {
        let (minimum_bytes, preferred_bytes) = client.block_bytes();
        if minimum_bytes > 1 {
            return Err(ClientError::Refused {
                what: "take requests of any alignment",
                message: format!("its blocks have {minimum_bytes} bytes"),
            });
        }
        let read_only = client.is_read_only();
        if !read_only && !client.can_flush() {
            tracing::warn!("the NBD server offers no flush: nothing there is known to be durable");
        }
        Ok(Self {
            geometry: Geometry {
                size_bytes: client.size_bytes(),
                minimum_bytes,
                preferred_bytes,
                read_only,
            },
            payload_max: u64::from(client.payload_bytes_max()).max(BLOCK_BYTES) / BLOCK_BYTES
                * BLOCK_BYTES,
            can_flush: client.can_flush(),
            can_fua: client.can(transmission_flag::SEND_FUA),
            can_zero: client.can(transmission_flag::SEND_WRITE_ZEROES),
            can_zero_fast: client.can(transmission_flag::SEND_FAST_ZERO),
            can_cache: client.can(transmission_flag::SEND_CACHE),
            can_status: client.can_block_status(),
            client: Mutex::new(client),
        })
    }

    /// Says goodbye to the server.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn disconnect(self) -> Result<(), ClientError> {
        self.client.into_inner().disconnect()
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(offset, len, self.geometry.size_bytes)
    }

    fn check_writable(&self) -> Result<(), DeviceError> {
        if self.geometry.read_only {
            return Err(DeviceError::ReadOnly {
                reason: "the server exports it read-only".to_owned(),
            });
        }
        Ok(())
    }

    /// Ends a request that should be durable, on servers that know no FUA.
    fn finish(&self, client: &mut Client, fua: Fua) -> Result<(), ClientError> {
        if fua == Fua::Yes && !self.can_fua && self.can_flush { client.flush() } else { Ok(()) }
    }

    fn wire_fua(&self, fua: Fua) -> Fua {
        if self.can_fua { fua } else { Fua::No }
    }

    /// Zeroes by whatever means the server has.
    fn zero(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.check(offset, len)?;
        self.check_writable()?;
        if fast && !self.can_zero_fast {
            return Err(DeviceError::NotFast);
        }
        let wire_fua = self.wire_fua(fua);
        let client = &mut *self.client.lock();
        let piece_max = if self.can_zero { RANGE_MAX } else { ZEROES_LEN as u64 };
        let zeroes = if self.can_zero { Vec::new() } else { vec![0; ZEROES_LEN] };
        for (at, piece) in pieces(offset, len, piece_max) {
            let done = if self.can_zero {
                client.write_zeroes(at, piece, hole, fast, wire_fua)
            } else {
                client.write(at, &zeroes[..piece as usize], wire_fua)
            };
            done.map_err(|error| failed_piece(offset, at, u64::from(piece), &error))?;
        }
        self.finish(client, fua).map_err(|error| failed(offset, len, &error))
    }
}

fn failed(offset: u64, len: u64, error: &ClientError) -> DeviceError {
    let ClientError::Request { errno, message } = error else {
        return DeviceError::Media { offset, len, reason: error.to_string() };
    };
    match *errno {
        errno::PERM => DeviceError::ReadOnly { reason: message.clone() },
        errno::NOSPC => DeviceError::NoSpace { offset, len, advice: message.clone() },
        errno::NOTSUP => DeviceError::NotFast,
        errno::SHUTDOWN => DeviceError::Gone,
        _ => DeviceError::Media { offset, len, reason: error.to_string() },
    }
}

/// The error of a request of which an earlier piece may have been done already: a failed request
/// that is not a media error has done nothing.
fn failed_piece(offset: u64, at: u64, len: u64, error: &ClientError) -> DeviceError {
    match failed(at, len, error) {
        DeviceError::Gone => DeviceError::Gone,
        error if at > offset => {
            DeviceError::Media { offset: at, len, reason: format!("done in part: {error}") }
        }
        error => error,
    }
}

/// Cuts a range into pieces of at most `piece_max` bytes, a multiple of the block size, cutting at
/// block boundaries.
fn pieces(offset: u64, len: u64, piece_max: u64) -> impl Iterator<Item = (u64, u32)> {
    let mut at = offset;
    let mut left = len;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let piece = left.min(piece_max - at % BLOCK_BYTES);
        let start = at;
        left -= piece;
        at += piece;
        // Pieces are far below 4 GiB.
        Some((start, u32::try_from(piece).unwrap_or(u32::MAX)))
    })
}

impl BlockDevice for RemoteDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let len = out.len() as u64;
        self.check(offset, len)?;
        let mut rest = out;
        let mut client = self.client.lock();
        for (at, piece) in pieces(offset, len, self.payload_max) {
            let (first, after) = rest.split_at_mut(piece as usize);
            let data = client
                .read(at, first.len())
                .map_err(|error| failed(at, u64::from(piece), &error))?;
            first.copy_from_slice(&data);
            rest = after;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        let len = data.len() as u64;
        self.check(offset, len)?;
        self.check_writable()?;
        let mut rest = data;
        let client = &mut *self.client.lock();
        for (at, piece) in pieces(offset, len, self.payload_max) {
            let (first, after) = rest.split_at(piece as usize);
            client
                .write(at, first, self.wire_fua(fua))
                .map_err(|error| failed_piece(offset, at, u64::from(piece), &error))?;
            rest = after;
        }
        self.finish(client, fua).map_err(|error| failed(offset, len, &error))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if !self.can_flush {
            return Ok(());
        }
        self.client.lock().flush().map_err(|error| failed(0, 0, &error))
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.zero(offset, len, Hole::Allowed, false, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.zero(offset, len, hole, fast, fua)
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        self.check(offset, len)?;
        let Some((_, piece)) = pieces(offset, len, RANGE_MAX).next() else {
            let size_bytes = self.geometry.size_bytes;
            return Err(DeviceError::OutOfRange { offset, len, size_bytes });
        };
        if !self.can_status {
            return Ok(vec![Extent { len, hole: false, zero: false }]);
        }
        let mut extents = self
            .client
            .lock()
            .block_status(offset, piece, extents_max <= 1)
            .map_err(|error| failed(offset, len, &error))?;
        extents.truncate(extents_max.max(1));
        Ok(extents)
    }

    fn cache(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.check(offset, len)?;
        if !self.can_cache {
            return Ok(());
        }
        let mut client = self.client.lock();
        for (at, piece) in pieces(offset, len, RANGE_MAX) {
            client.cache(at, piece).map_err(|error| failed(at, u64::from(piece), &error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_and_cut_at_blocks() {
        for (offset, len) in [(0, 0), (5, 1), (4095, 8192), (100, 100_000), (8192, 16384)] {
            let mut at = offset;
            for (start, piece) in pieces(offset, len, 8192) {
                assert_eq!(start, at);
                assert!(piece > 0 && piece <= 8192);
                assert!(start == offset || start % 4096 == 0, "{start}");
                at += u64::from(piece);
            }
            assert_eq!(at, offset + len);
        }
    }
}
