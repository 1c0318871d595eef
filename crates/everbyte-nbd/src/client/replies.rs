//! Parses a server's replies and checks them against the requests.
//!
//! The server is not trusted: lengths are checked before memory is filled, and data must lie in the
//! requested range, cover it and not overlap.

use std::collections::HashMap;
use std::io;

use everbyte_device::Extent;

use crate::protocol::{
    CHUNK_HEADER_LEN, Fields, NAME_MAX, SIMPLE_REPLY_LEN, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, chunk, extent_flag,
};
use crate::wire::Wire;

use super::negotiate::NegotiatedExport;
use super::{ClientError, Reply};

/// Bytes of one receive call.
const BUFFER_LEN: usize = 64 << 10;

/// Longest chunk other than data, in bytes: a block status of many extents.
const CHUNK_MAX: u32 = 4 << 20;

/// A complete reply, with the cookie of its request.
type FinishedRequest = (u64, Result<Reply, ClientError>);

/// The expected results of a request, filled as chunks arrive.
pub(super) enum ReplyContent {
    Nothing,
    Data(Vec<u8>),
    Extents(Vec<Extent>),
}

/// A request with an incomplete reply.
pub(super) struct PendingRequest {
    offset: u64,
    len: u32,
    wanted: ReplyContent,
    /// True if it changes bytes of the export.
    changes: bool,
    /// Bytes of data that have arrived, as (start, end) within the request.
    covered: Vec<(usize, usize)>,
    error: Option<ClientError>,
}

impl PendingRequest {
    pub(super) fn new(offset: u64, len: u32, wanted: ReplyContent, changes: bool) -> Self {
        Self { offset, len, wanted, changes, covered: Vec::new(), error: None }
    }

    pub(super) fn changes(&self) -> bool {
        self.changes
    }

    /// Returns the place in the request of `len` bytes at `offset`, which must be new.
    fn cover(&mut self, offset: u64, len: usize) -> Result<std::ops::Range<usize>, ClientError> {
        // The numbers are the server's, so each sum is checked.
        let start = offset.checked_sub(self.offset).and_then(|s| usize::try_from(s).ok());
        let range = start.and_then(|s| Some((s, s.checked_add(len)?)));
        let Some((start, end)) = range.filter(|r| r.1 <= self.len as usize && len > 0) else {
            return Err(broken("the server sent data that was not asked for"));
        };
        // `finish` only adds lengths: with an overlap, a reply with a gap would seem complete.
        if self.covered.iter().any(|&(from, to)| start < to && from < end) {
            return Err(broken("the server sent data twice"));
        }
        match self.covered.last_mut() {
            // Chunks mostly arrive in order. Joined, they keep the list and its search short.
            Some(last) if last.1 == start => last.1 = end,
            _ => self.covered.push((start, end)),
        }
        Ok(start..end)
    }

    fn finish(self) -> Result<Result<Reply, ClientError>, ClientError> {
        if let Some(error) = self.error {
            return Ok(Err(error));
        }
        match self.wanted {
            ReplyContent::Nothing => Ok(Ok(Reply::Done)),
            ReplyContent::Data(data) => {
                let covered: usize = self.covered.iter().map(|(start, end)| end - start).sum();
                if covered != data.len() {
                    return Err(broken("the server left out data"));
                }
                Ok(Ok(Reply::Data(data)))
            }
            ReplyContent::Extents(extents) if extents.is_empty() => {
                Err(broken("the server sent no extents"))
            }
            ReplyContent::Extents(extents) => Ok(Ok(Reply::Extents(extents))),
        }
    }
}

fn broken(reason: &str) -> ClientError {
    ClientError::Broken { reason: reason.to_owned() }
}

/// Received bytes that are not decoded yet.
pub(super) struct ReceiveBuffer {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReceiveBuffer {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; BUFFER_LEN], start: 0, end: 0 }
    }

    /// Fills `out`; large rests go there without passing through the buffer.
    fn recv(&mut self, wire: &Wire<'_>, mut out: &mut [u8]) -> io::Result<()> {
        loop {
            let count = (self.end - self.start).min(out.len());
            out[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
            self.start += count;
            out = &mut out[count..];
            if out.is_empty() {
                return Ok(());
            }
            if out.len() >= BUFFER_LEN {
                return wire.recv_exact(out);
            }
            self.start = 0;
            self.end = wire.recv_some(&mut self.buffer)?;
            if self.end == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn array<const N: usize>(&mut self, wire: &Wire<'_>) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.recv(wire, &mut bytes)?;
        Ok(bytes)
    }
}

/// Receives one simple reply or one chunk. Returns the reply that it completes.
///
/// The socket's, and `Broken` for every protocol violation of the server. The connection is then
/// unusable.
pub(super) fn receive(
    wire: &Wire<'_>,
    incoming: &mut ReceiveBuffer,
    agreed: &NegotiatedExport,
    pending: &mut HashMap<u64, PendingRequest>,
) -> Result<Option<FinishedRequest>, ClientError> {
    match u32::from_be_bytes(incoming.array(wire)?) {
        SIMPLE_REPLY_MAGIC => receive_simple(wire, incoming, agreed, pending).map(Some),
        STRUCTURED_REPLY_MAGIC if agreed.structured => {
            receive_chunk(wire, incoming, agreed, pending)
        }
        magic => Err(broken(&format!("a reply starts with {magic:#010x}"))),
    }
}

const UNASKED: &str = "the server answered what was not asked";

fn receive_simple(
    wire: &Wire<'_>,
    incoming: &mut ReceiveBuffer,
    agreed: &NegotiatedExport,
    pending: &mut HashMap<u64, PendingRequest>,
) -> Result<FinishedRequest, ClientError> {
    let header: [u8; SIMPLE_REPLY_LEN - 4] = incoming.array(wire)?;
    let mut fields = Fields(&header);
    let (errno, cookie) = (fields.u32().unwrap_or_default(), fields.u64().unwrap_or_default());
    // Without a request its length is unknown, so the rest of the stream is unreadable.
    let mut request = pending.remove(&cookie).ok_or_else(|| broken(UNASKED))?;
    match &mut request.wanted {
        // The protocol forbids it once structured replies are agreed on.
        ReplyContent::Data(_) if agreed.structured => {
            return Err(broken("the server gave a simple reply to a read"));
        }
        ReplyContent::Data(data) if errno == 0 => {
            incoming.recv(wire, data)?;
            request.covered.push((0, data.len()));
        }
        ReplyContent::Nothing | ReplyContent::Data(_) | ReplyContent::Extents(_) => {}
    }
    if errno != 0 {
        request.error = Some(ClientError::Request { errno, message: String::new() });
    }
    Ok((cookie, request.finish()?))
}

fn receive_chunk(
    wire: &Wire<'_>,
    incoming: &mut ReceiveBuffer,
    agreed: &NegotiatedExport,
    pending: &mut HashMap<u64, PendingRequest>,
) -> Result<Option<FinishedRequest>, ClientError> {
    let header: [u8; CHUNK_HEADER_LEN - 4] = incoming.array(wire)?;
    let mut fields = Fields(&header);
    let (flags, kind) = (fields.u16().unwrap_or_default(), fields.u16().unwrap_or_default());
    let (cookie, len) = (fields.u64().unwrap_or_default(), fields.u32().unwrap_or_default());
    let request = pending.get_mut(&cookie).ok_or_else(|| broken(UNASKED))?;
    if kind == chunk::OFFSET_DATA {
        let offset = u64::from_be_bytes(incoming.array(wire)?);
        let len = len.checked_sub(8).ok_or_else(|| broken("a chunk of data is cut short"))?;
        // Checked before a byte is received into the range.
        let range = request.cover(offset, len as usize)?;
        let ReplyContent::Data(data) = &mut request.wanted else {
            return Err(broken(UNASKED));
        };
        incoming.recv(wire, &mut data[range])?;
    } else {
        // The server chose the length, so it is checked before memory is taken.
        if len > CHUNK_MAX {
            return Err(broken("a chunk is too long"));
        }
        let mut payload = vec![0; len as usize];
        incoming.recv(wire, &mut payload)?;
        take_chunk(request, agreed, kind, &payload)?;
    }
    if flags & chunk::FLAG_DONE == 0 {
        return Ok(None);
    }
    let Some(request) = pending.remove(&cookie) else {
        return Err(broken(UNASKED));
    };
    Ok(Some((cookie, request.finish()?)))
}

/// Takes a chunk without data.
fn take_chunk(
    request: &mut PendingRequest,
    agreed: &NegotiatedExport,
    kind: u16,
    payload: &[u8],
) -> Result<(), ClientError> {
    let cut = || broken("a chunk is cut short");
    let mut fields = Fields(payload);
    match kind {
        chunk::NONE => {}
        chunk::OFFSET_HOLE => {
            let offset = fields.u64().ok_or_else(cut)?;
            let len = fields.u32().ok_or_else(cut)?;
            // The buffer is zero where nothing has arrived.
            request.cover(offset, len as usize)?;
        }
        chunk::BLOCK_STATUS => {
            let id = fields.u32().ok_or_else(cut)?;
            let mut left = request.len;
            let ReplyContent::Extents(extents) = &mut request.wanted else {
                return Err(broken(UNASKED));
            };
            // Extents of a second chunk would count from the wrong start.
            if Some(id) != agreed.context || !extents.is_empty() {
                return Err(broken(UNASKED));
            }
            // The last extent may exceed the requested range; it is cut.
            while left > 0 && !fields.is_empty() {
                let len = fields.u32().ok_or_else(cut)?.min(left);
                let flags = fields.u32().ok_or_else(cut)?;
                // A caller that walks the range by extents would make no progress.
                if len == 0 {
                    return Err(broken("an extent is empty"));
                }
                left -= len;
                extents.push(Extent {
                    len: u64::from(len),
                    hole: flags & extent_flag::HOLE != 0,
                    zero: flags & extent_flag::ZERO != 0,
                });
            }
        }
        _ if kind & chunk::ERROR_BIT != 0 => {
            let errno = fields.u32().ok_or_else(cut)?;
            let len = usize::from(fields.u16().ok_or_else(cut)?);
            let message = fields.bytes(len).ok_or_else(cut)?;
            let message = String::from_utf8_lossy(&message[..len.min(NAME_MAX)]).into_owned();
            // More chunks may follow. The request fails with its last one.
            request.error = Some(ClientError::Request { errno, message });
        }
        _ => return Err(broken("a chunk is of an unknown kind")),
    }
    Ok(())
}
