//! A remote export as a block device.
//!
//! One connection behind one lock: requests of several threads queue. A device made by
//! [`RemoteDevice::open`] reconnects when its connection breaks, and keeps the contract of
//! [`BlockDevice`] across server crashes (lemmas R1 to R6 of `docs/proofs.md`). A device made from
//! a client stays broken with its connection: every later request fails with a media error and the
//! reason.
//!
//! `discard` is sent as zeroing that may punch holes, because the protocol's trim leaves later
//! reads undefined. Requests are split at the protocol's bounds and at block boundaries. If the
//! server takes only whole blocks, the rest of the blocks at both ends of a write is read first and
//! written with it, under the lock. The export must have no other writer there.

use std::time::Duration;

use everbyte_device::{BlockDevice, DeviceError, Extent, Fua, Geometry, Hole, check_range};
use parking_lot::Mutex;

use crate::blocks::{Span, in_memory};
use crate::client::{Client, ClientError, ClientOptions};
use crate::protocol::errno;
use crate::reconnecting::{RANGE_MAX, ReconnectingClient, ServerCapabilities, Target};
use crate::unflushed::Content;

/// Default time that a reconnecting device waits for a reply.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

/// Limits of a device's search for a lost export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reconnect {
    /// Time that requests wait for a server before they fail. Later requests fail immediately,
    /// except one every 2 s that tries to reconnect.
    pub timeout: Duration,
    /// Bytes of unflushed writes kept for a replay. Above this limit the device flushes.
    pub unflushed_bytes_max: usize,
}

impl Default for Reconnect {
    /// 30 s and 64 MiB.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), unflushed_bytes_max: 64 << 20 }
    }
}

/// A remote export. Its size is the size at the time of connection. If the server takes only whole
/// blocks, an incomplete last block is left out.
pub struct RemoteDevice {
    client: Mutex<ReconnectingClient>,
    geometry: Geometry,
}

impl RemoteDevice {
    /// Makes a device of a connection.
    ///
    /// The protocol treats a server without flush as one with nothing to flush. A warning is
    /// logged, because such a server may lose everything.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self::with(client, None)
    }

    /// Connects to the export of an NBD URI, now and whenever the connection breaks. A request
    /// without an answer breaks it after 30 s; [`ClientOptions`] has the other limits.
    ///
    /// The device replays all writes answered since the last flush and repeats an unanswered
    /// request. The export must have no other writer.
    ///
    /// # Errors
    /// As [`Client::connect_uri`].
    pub fn open(uri: &str, reconnect: Reconnect) -> Result<Self, ClientError> {
        let options =
            ClientOptions { request_time_max: Some(REQUEST_TIME_MAX), ..ClientOptions::default() };
        Self::open_with(uri, reconnect, options)
    }

    /// Opens with the caller's time limits. A request fails if no reply arrives within
    /// `request_time_max` and no other server within `reconnect.timeout`. A cancelled request fails
    /// immediately, and so do all later ones.
    ///
    /// # Errors
    /// As `open`, and `Cancelled`.
    pub fn open_with(
        uri: &str,
        reconnect: Reconnect,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let (timeout, unflushed_max) = (reconnect.timeout, reconnect.unflushed_bytes_max);
        let mut target = Target::new(uri, options, timeout, unflushed_max)?;
        let client = target.connect(false)?;
        Ok(Self::with(client, Some(target)))
    }

    fn with(client: Client, target: Option<Target>) -> Self {
        let (minimum_bytes, preferred_bytes) = client.block_bytes();
        let client = ReconnectingClient::new(client, target);
        let shape = client.shape();
        if !shape.read_only && !client.capabilities().flush {
            tracing::warn!(
                "the NBD server offers no flush: its answered writes are taken as durable"
            );
        }
        let size_bytes = shape.size_bytes - shape.size_bytes % u64::from(minimum_bytes);
        if size_bytes < shape.size_bytes {
            tracing::warn!(
                minimum_bytes,
                "the last {} bytes of the NBD export are not a whole block, and are left out",
                shape.size_bytes - size_bytes
            );
        }
        let read_only = shape.read_only;
        let geometry = Geometry { size_bytes, minimum_bytes, preferred_bytes, read_only };
        Self { geometry, client: Mutex::new(client) }
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

    /// Returns the bytes of a block if the server takes only whole blocks, or 1.
    fn block(&self) -> u64 {
        self.geometry.minimum_bytes.into()
    }

    /// Zeroes by any means of the server.
    fn zero(&self, span: Span, hole: Hole, fast: bool, fua: Fua) -> Result<(), DeviceError> {
        self.check(span.start, span.len())?;
        self.check_writable()?;
        let client = &mut *self.client.lock();
        let whole = span.inward(self.block());
        // Incomplete blocks are read and written back, which is never fast.
        if fast && span.len() > 0 && (!client.capabilities().zero_fast || whole.len() == 0) {
            return Err(DeviceError::NotFast);
        }
        let mut is_durable = zero_blocks(client, whole, hole, fast, fua)?;
        let (before, after) = (whole.start - span.start, span.end - whole.end);
        let zeroes = vec![0; in_memory(before.max(after))];
        for edge in [Span::new(span.start, before), Span::new(whole.end, after)] {
            let written = self.write_any(client, edge, &zeroes, fua);
            is_durable &= written.map_err(|error| after_part(span, edge.start, error))?;
        }
        finish(client, fua, is_durable).map_err(|error| failed(span, &error))
    }

    /// Writes the first bytes of `data` to a range of any alignment; returns true if they are
    /// durable.
    fn write_any(
        &self,
        client: &mut ReconnectingClient,
        span: Span,
        data: &[u8],
        fua: Fua,
    ) -> Result<bool, DeviceError> {
        let len = in_memory(span.len());
        let whole = span.outward(self.block());
        if whole == span || len == 0 {
            return write_blocks(client, span.start, &data[..len], fua);
        }
        // The caller holds the client's lock from the read to the write, so no other request of
        // this device can change the rest of the blocks in between.
        let block = in_memory(self.block());
        let mut blocks = vec![0; in_memory(whole.len())];
        let before = in_memory(span.start - whole.start);
        if before > 0 {
            read_blocks(client, whole.start, &mut blocks[..block])?;
        }
        let last = blocks.len() - block;
        // The only block, if there is but one, may have been read already.
        if span.end < whole.end && (last > 0 || before == 0) {
            read_blocks(client, whole.end - self.block(), &mut blocks[last..])?;
        }
        blocks[before..before + len].copy_from_slice(&data[..len]);
        write_blocks(client, whole.start, &blocks, fua)
    }
}

fn read_blocks(
    client: &mut ReconnectingClient,
    offset: u64,
    out: &mut [u8],
) -> Result<(), DeviceError> {
    let capabilities = client.capabilities();
    let mut rest = out;
    for (at, piece) in
        Span::new(offset, rest.len() as u64).pieces(capabilities.payload_max, capabilities.unit)
    {
        let (first, after) = rest.split_at_mut(piece as usize);
        let span = Span::new(at, piece.into());
        let data = client
            .request_seeing(span, |client, _| client.read(at, first.len()))
            .map_err(|error| failed(span, &error))?;
        first.copy_from_slice(&data);
        rest = after;
    }
    Ok(())
}

/// Writes whole blocks; returns true if they are durable already.
fn write_blocks(
    client: &mut ReconnectingClient,
    offset: u64,
    data: &[u8],
    fua: Fua,
) -> Result<bool, DeviceError> {
    let capabilities = client.capabilities();
    let whole = Span::new(offset, data.len() as u64);
    let mut is_durable = true;
    let mut rest = data;
    for (at, piece) in whole.pieces(capabilities.payload_max, capabilities.unit) {
        let (first, after) = rest.split_at(piece as usize);
        let content = || Content::Bytes(first.to_vec());
        let cost = (u64::from(piece), 0);
        let done = change(client, (at, piece), cost, content, fua, |client, _, fua| {
            client.write(at, first, fua)
        });
        is_durable &= done.map_err(|error| failed_piece(whole, (at, piece), &error))?;
        rest = after;
    }
    Ok(is_durable)
}

/// Zeroes whole blocks. Returns true if the zeroes are durable already.
fn zero_blocks(
    client: &mut ReconnectingClient,
    whole: Span,
    hole: Hole,
    fast: bool,
    fua: Fua,
) -> Result<bool, DeviceError> {
    let capabilities = client.capabilities();
    let mut is_durable = true;
    for (at, piece) in whole.pieces(capabilities.zero_max(), capabilities.unit) {
        let content = || Content::Zeroes(piece.into(), hole);
        let cost = (0, capabilities.zeroing_cost(piece));
        let done = change(client, (at, piece), cost, content, fua, |client, capabilities, fua| {
            capabilities.zero(client, (at, piece), hole, fast, fua)
        });
        is_durable &= done.map_err(|error| failed_piece(whole, (at, piece), &error))?;
    }
    Ok(is_durable)
}

/// Sends a request that changes a range, and remembers the range's content until it is durable.
/// Requires room (see [`ReconnectingClient::make_room`]). Returns true if the content is durable
/// already. FUA is sent only to servers that offer it.
fn change(
    client: &mut ReconnectingClient,
    (at, len): (u64, u32),
    (kept, zeroed): (u64, u64),
    content: impl FnOnce() -> Content,
    fua: Fua,
    mut request: impl FnMut(&mut Client, &ServerCapabilities, Fua) -> Result<(), ClientError>,
) -> Result<bool, ClientError> {
    // Before the request: once it is answered, its content must be kept at any cost.
    client.make_room(kept, zeroed)?;
    let done = client.request(|client, capabilities| {
        // Decided for each attempt: after a reconnection the server may have other abilities.
        let fua = if capabilities.fua { fua } else { Fua::No };
        request(client, capabilities, fua).map(|()| fua == Fua::Yes)
    });
    match done {
        Ok(is_durable) => client.answered((at, len), is_durable, content),
        Err(error) if fua == Fua::Yes => {
            // R5: earlier answered writes may be lost with this one.
            client.durable_failed();
            return Err(error);
        }
        Err(error) => return Err(error),
    }
    done
}

/// Ends a request with FUA in several pieces: flushes if a server without FUA answered one of them.
fn finish(client: &mut ReconnectingClient, fua: Fua, is_durable: bool) -> Result<(), ClientError> {
    if fua == Fua::Yes && !is_durable && client.capabilities().flush {
        client.flush()
    } else {
        Ok(())
    }
}

fn failed(span: Span, error: &ClientError) -> DeviceError {
    let (offset, len) = (span.start, span.len());
    let ClientError::Request { errno, message } = error else {
        return DeviceError::Media { offset, len, reason: error.to_string() };
    };
    match *errno {
        errno::PERM => DeviceError::ReadOnly { reason: message.clone() },
        errno::NOSPC => DeviceError::NoSpace { offset, len, reason: message.clone() },
        errno::NOTSUP => DeviceError::NotFast,
        errno::SHUTDOWN => DeviceError::Gone,
        _ => DeviceError::Media { offset, len, reason: error.to_string() },
    }
}

/// Returns the error of a failed piece of a request. Earlier pieces may have been executed.
fn failed_piece(whole: Span, (at, len): (u64, u32), error: &ClientError) -> DeviceError {
    after_part(whole, at, failed(Span::new(at, len.into()), error))
}

/// Returns the error of a request that failed at `at`. An error other than a media error states
/// that nothing was done, so behind the request's start it becomes a media error. `Gone` stays.
fn after_part(whole: Span, at: u64, error: DeviceError) -> DeviceError {
    match error {
        DeviceError::Gone => DeviceError::Gone,
        error if at > whole.start => {
            let reason = format!("done in part: {error}");
            DeviceError::Media { offset: at, len: whole.end - at, reason }
        }
        error => error,
    }
}

impl BlockDevice for RemoteDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.check(offset, out.len() as u64)?;
        let span = Span::new(offset, out.len() as u64);
        // One lock for all pieces: no write of another thread falls between them.
        let client = &mut *self.client.lock();
        let whole = span.outward(self.block());
        if whole == span || out.is_empty() {
            return read_blocks(client, offset, out);
        }
        let mut blocks = vec![0; in_memory(whole.len())];
        read_blocks(client, whole.start, &mut blocks)?;
        let before = in_memory(offset - whole.start);
        out.copy_from_slice(&blocks[before..before + out.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        let len = data.len() as u64;
        self.check(offset, len)?;
        self.check_writable()?;
        let span = Span::new(offset, len);
        let client = &mut *self.client.lock();
        let is_durable = self.write_any(client, span, data, fua)?;
        finish(client, fua, is_durable).map_err(|error| failed(span, &error))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let mut client = self.client.lock();
        // By the protocol a server without flush has nothing to flush.
        if !client.capabilities().flush {
            return Ok(());
        }
        client.flush().map_err(|error| failed(Span::new(0, 0), &error))
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.write_zeroes(offset, len, Hole::Allowed, false, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.check(offset, len)?;
        self.zero(Span::new(offset, len), hole, fast, fua)
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        self.check(offset, len)?;
        let span = Span::new(offset, len);
        let whole = span.outward(self.block());
        let mut client = self.client.lock();
        let first = whole.pieces(RANGE_MAX, client.capabilities().unit).next();
        let Some((at, piece)) = first.filter(|_| len > 0) else {
            let size_bytes = self.geometry.size_bytes;
            return Err(DeviceError::OutOfRange { offset, len, size_bytes });
        };
        let seen = Span::new(at, piece.into());
        let extents = client.request_seeing(seen, |client, capabilities| {
            // Checked for each attempt: a later server may not offer it. Data is always a true
            // answer.
            if capabilities.status {
                return client.block_status(at, piece, extents_max <= 1);
            }
            Ok(vec![Extent { len: whole.len(), hole: false, zero: false }])
        });
        let extents = extents.map_err(|error| failed(span, &error))?;
        Ok(within(extents, at, span, extents_max))
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.check(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let mut client = self.client.lock();
        let whole = Span::new(offset, len).outward(self.block());
        for (at, piece) in whole.pieces(RANGE_MAX, client.capabilities().unit) {
            let hinted = client.request(|client, capabilities| match capabilities.cache {
                true => client.cache(at, piece),
                false => Ok(()),
            });
            hinted.map_err(|error| failed(Span::new(at, piece.into()), &error))?;
        }
        Ok(())
    }
}

/// Returns the extents within `span`, at most `extents_max` and at least one. The given extents
/// begin at `at`, which is not behind `span`. A range without a server extent may be data.
fn within(extents: Vec<Extent>, at: u64, span: Span, extents_max: usize) -> Vec<Extent> {
    let mut start = at;
    let mut out = Vec::new();
    for extent in extents {
        let end = start.saturating_add(extent.len).min(span.end);
        let from = start.max(span.start);
        if from < end && out.len() < extents_max.max(1) {
            out.push(Extent { len: end - from, ..extent });
        }
        start = end;
    }
    if out.is_empty() {
        out.push(Extent { len: span.len(), hole: false, zero: false });
    }
    out
}
