//! A remote export as a block device.
//!
//! One connection behind one lock: requests of several threads queue. A device made by
//! [`RemoteDevice::open`] connects again when its connection breaks, and keeps the contract of
//! [`BlockDevice`] across servers that crash: `link` argues how. One made of a client stays broken
//! with its connection; every later request fails with a media error that says why.
//!
//! `discard` is sent as zeroing that may punch holes, because the protocol's own trimming does
//! not promise what is read afterwards. Requests are split where the protocol bounds them, at
//! block boundaries.

use std::time::Duration;

use everbyte_device::{BlockDevice, DeviceError, Extent, Fua, Geometry, Hole, check_range};
use parking_lot::Mutex;

use crate::address::Address;
use crate::client::{Client, ClientError};
use crate::protocol::errno;
use crate::reconnecting::{Able, RANGE_MAX, ReconnectingClient, Target, ranges};
use crate::unflushed::Content;

/// How a device comes back to an export that it has lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reconnect {
    /// How long requests wait for a server before they fail. Afterwards requests fail at once, but
    /// for one every 2 s that looks whether the server is back.
    pub timeout: Duration,
    /// Bytes that are kept to be given to a server that forgot them; with more than these, the
    /// device flushes by itself.
    pub unflushed_bytes_max: usize,
}

impl Default for Reconnect {
    /// 30 s and 64 MiB.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), unflushed_bytes_max: 64 << 20 }
    }
}

/// A remote export. Its size is that of when it was connected to.
pub struct RemoteDevice {
    link: Mutex<ReconnectingClient>,
    geometry: Geometry,
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
        Self::with(client, None)
    }

    /// Connects to what an NBD URI names, now and whenever the connection breaks.
    ///
    /// A request that was not answered is made again, and so is whatever was answered since the
    /// last flush, before anything else. Nobody else may write to the export.
    ///
    /// # Errors
    /// As [`Client::connect_uri`] and [`RemoteDevice::new`].
    pub fn open(uri: &str, reconnect: Reconnect) -> Result<Self, ClientError> {
        let (address, export) = Address::from_uri(uri)?;
        let client = Client::connect(&address, &export)?;
        let (timeout, unflushed_max) = (reconnect.timeout, reconnect.unflushed_bytes_max);
        Self::with(client, Some(Target { address, export, timeout, unflushed_max }))
    }

    fn with(client: Client, target: Option<Target>) -> Result<Self, ClientError> {
        let (_, preferred_bytes) = client.block_bytes();
        let link = ReconnectingClient::new(client, target);
        let shape = link.shape();
        if shape.minimum_bytes > 1 {
            return Err(ClientError::Refused {
                what: "take requests of any alignment",
                message: format!("its blocks have {} bytes", shape.minimum_bytes),
            });
        }
        if !shape.read_only && !link.able().flush {
            tracing::warn!("the NBD server offers no flush: nothing there is known to be durable");
        }
        let geometry = Geometry {
            size_bytes: shape.size_bytes,
            minimum_bytes: shape.minimum_bytes,
            preferred_bytes,
            read_only: shape.read_only,
        };
        Ok(Self { geometry, link: Mutex::new(link) })
    }

    /// Says goodbye to the server.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn disconnect(self) -> Result<(), ClientError> {
        self.link.into_inner().disconnect()
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
        let link = &mut *self.link.lock();
        if fast && !link.able().zero_fast {
            return Err(DeviceError::NotFast);
        }
        for (at, piece) in ranges(offset, len, link.able().zero_max()) {
            let done = zero_piece(link, (at, piece), hole, fast, fua);
            done.map_err(|error| failed_piece(offset, at, u64::from(piece), &error))?;
        }
        finish(link, fua).map_err(|error| failed(offset, len, &error))
    }
}

fn wire_fua(able: &Able, fua: Fua) -> Fua {
    if able.fua { fua } else { Fua::No }
}

/// Ends a request that should be durable, on servers that know no FUA.
fn finish(link: &mut ReconnectingClient, fua: Fua) -> Result<(), ClientError> {
    let able = link.able();
    if fua == Fua::Yes && !able.fua && able.flush { link.flush() } else { Ok(()) }
}

fn write_piece(
    link: &mut ReconnectingClient,
    at: u64,
    data: &[u8],
    fua: Fua,
) -> Result<(), ClientError> {
    let len = data.len() as u64;
    link.make_room(len)?;
    let durable = link.request(|client, able| {
        let fua = wire_fua(able, fua);
        client.write(at, data, fua).map(|()| fua == Fua::Yes)
    })?;
    if link.keeps_unflushed() {
        let content = if durable { Vec::new() } else { data.to_vec() };
        link.answered(at, len, durable, Content::Bytes(content));
    }
    Ok(())
}

/// Zeroes a range of at most `Able::zero_max` bytes. A server that comes back may be able to do
/// less than before.
fn zero_piece(
    link: &mut ReconnectingClient,
    (at, len): (u64, u32),
    hole: Hole,
    fast: bool,
    fua: Fua,
) -> Result<(), ClientError> {
    link.make_room(0)?;
    let durable = link.request(|client, able| {
        let fua = wire_fua(able, fua);
        let done = if able.zero {
            client.write_zeroes(at, len, hole, fast, fua)
        } else {
            let zeroes = vec![0; usize::try_from(able.zero_max()).unwrap_or(0).min(len as usize)];
            ranges(at, u64::from(len), able.zero_max())
                .try_for_each(|(at, piece)| client.write(at, &zeroes[..piece as usize], fua))
        };
        done.map(|()| fua == Fua::Yes)
    })?;
    link.answered(at, u64::from(len), durable, Content::Zeroes(u64::from(len), hole));
    Ok(())
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

impl BlockDevice for RemoteDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let len = out.len() as u64;
        self.check(offset, len)?;
        let mut rest = out;
        let link = &mut *self.link.lock();
        for (at, piece) in ranges(offset, len, link.able().payload_max) {
            let (first, after) = rest.split_at_mut(piece as usize);
            let data = link
                .request(|client, _| client.read(at, first.len()))
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
        let link = &mut *self.link.lock();
        for (at, piece) in ranges(offset, len, link.able().payload_max) {
            let (first, after) = rest.split_at(piece as usize);
            write_piece(link, at, first, fua)
                .map_err(|error| failed_piece(offset, at, u64::from(piece), &error))?;
            rest = after;
        }
        finish(link, fua).map_err(|error| failed(offset, len, &error))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let mut link = self.link.lock();
        if !link.able().flush {
            return Ok(());
        }
        link.flush().map_err(|error| failed(0, 0, &error))
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
        let Some((_, piece)) = ranges(offset, len, RANGE_MAX).next() else {
            let size_bytes = self.geometry.size_bytes;
            return Err(DeviceError::OutOfRange { offset, len, size_bytes });
        };
        let extents = self.link.lock().request(|client, able| {
            if able.status {
                return client.block_status(offset, piece, extents_max <= 1);
            }
            Ok(vec![Extent { len, hole: false, zero: false }])
        });
        let mut extents = extents.map_err(|error| failed(offset, len, &error))?;
        extents.truncate(extents_max.max(1));
        Ok(extents)
    }

    fn cache(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.check(offset, len)?;
        let mut link = self.link.lock();
        for (at, piece) in ranges(offset, len, RANGE_MAX) {
            let hinted = link.request(|client, able| match able.cache {
                true => client.cache(at, piece),
                false => Ok(()),
            });
            hinted.map_err(|error| failed(at, u64::from(piece), &error))?;
        }
        Ok(())
    }
}
