//! A connection to an export that comes back: what `RemoteDevice` sends its requests over.
//!
//! When a connection breaks, the request that was not answered is sent again on a new one. That is
//! right as long as nobody else writes to the export:
//! - A read changes nothing. A write, a trim or a zeroing that may have been done leaves the same
//!   bytes when it is done again, and nothing else was sent in between: there is one request under
//!   way at a time, and the lock around the link is held until it is answered.
//! - It must not be done a third time, by a server that still has the first copy and comes to it
//!   later, over newer bytes. The old socket is closed before a new one is opened, and a TCP
//!   connection is reset so that the kernel sends nothing more of it. What remains is a server that
//!   closes a connection and goes on working on what came over it; servers are taken not to.
//! - A flush covers writes that were answered on the *old* connection, and a server that died has
//!   lost what it had not flushed. To send only the flush again would promise what is gone, and to
//!   fail it would not be enough: the answered bytes must be read back, too, whether anybody
//!   flushes or not. So the link keeps what was answered since the last flush, bounded in bytes,
//!   and gives it to the server again before anything else is done on a new connection. The same
//!   is done after a flush that failed, because a server's system may have dropped what it could
//!   not write and call the next flush a success.
//!
//! Invariants: nothing but `unflushed` is sent while the server is behind; a connection to an export
//! of another size or kind is closed before a byte goes there. Knows nothing of devices' contracts.

use std::time::{Duration, Instant};

use crate::address::Address;
use crate::client::{Client, ClientError};
use crate::protocol::{errno, transmission_flag};
use crate::unflushed::{Content, Unflushed};

/// Rest before the second attempt to connect; doubled after each one, up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Zeroes are written in pieces of so many bytes where the server cannot zero.
pub(crate) const ZEROES_LEN: usize = 1 << 20;

/// Splits are at multiples of this, so that no block is torn between two requests.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Longest request without payload, in bytes.
pub(crate) const RANGE_MAX: u64 = 1 << 30;

/// Where an export is, and how long to look for it when it is lost.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: Address,
    pub(crate) export: String,
    pub(crate) timeout: Duration,
    /// Bytes that may be unflushed before the link flushes by itself.
    pub(crate) unflushed_max: usize,
}

/// What the server of a connection can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Able {
    pub(crate) flush: bool,
    pub(crate) fua: bool,
    pub(crate) zero: bool,
    pub(crate) zero_fast: bool,
    pub(crate) cache: bool,
    pub(crate) status: bool,
    /// Most bytes of a read or a write, whole blocks.
    pub(crate) payload_max: u64,
}

impl Able {
    fn of(client: &Client) -> Self {
        Self {
            flush: client.can_flush(),
            fua: client.can(transmission_flag::SEND_FUA),
            zero: client.can(transmission_flag::SEND_WRITE_ZEROES),
            zero_fast: client.can(transmission_flag::SEND_FAST_ZERO),
            cache: client.can(transmission_flag::SEND_CACHE),
            status: client.can_block_status(),
            payload_max: u64::from(client.payload_bytes_max()).max(BLOCK_BYTES) / BLOCK_BYTES
                * BLOCK_BYTES,
        }
    }
}

/// What an export must still be when it is connected to again. NBD knows no serial numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) size_bytes: u64,
    pub(crate) read_only: bool,
    flush: bool,
    pub(crate) minimum_bytes: u32,
}

impl Shape {
    pub(crate) fn of(client: &Client) -> Self {
        Self {
            size_bytes: client.size_bytes(),
            read_only: client.is_read_only(),
            flush: client.can_flush(),
            minimum_bytes: client.block_bytes().0,
        }
    }

    fn describe(self) -> String {
        let or = |is: bool, yes: &'static str, no: &'static str| if is { yes } else { no };
        format!(
            "{} bytes, {}, {}, in blocks of {}",
            self.size_bytes,
            or(self.read_only, "read-only", "writable"),
            or(self.flush, "flushed on request", "never flushed"),
            self.minimum_bytes
        )
    }
}

/// The time without a connection on which a request was answered.
#[derive(Debug)]
struct Outage {
    since: Instant,
    next_attempt: Instant,
    pause: Duration,
    reason: String,
}

/// A connection to an export that is made again when it breaks.
pub(crate) struct ReconnectingClient {
    client: Option<Client>,
    able: Able,
    shape: Shape,
    /// `None` if a broken connection stays broken.
    target: Option<Target>,
    unflushed: Unflushed,
    /// Whether the server may have lost what is unflushed.
    needs_replay: bool,
    outage: Option<Outage>,
}

impl ReconnectingClient {
    pub(crate) fn new(client: Client, target: Option<Target>) -> Self {
        Self {
            able: Able::of(&client),
            shape: Shape::of(&client),
            client: Some(client),
            target,
            unflushed: Unflushed::default(),
            needs_replay: false,
            outage: None,
        }
    }

    /// What the server can do. After a reconnection it may be another one.
    pub(crate) fn able(&self) -> Able {
        self.able
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn disconnect(self) -> Result<(), ClientError> {
        self.client.map_or(Ok(()), Client::disconnect)
    }

    /// Makes one request, on a new connection if the old one breaks before it is answered.
    ///
    /// # Errors
    /// The server's; `Broken` if there is no connection within the time; `OtherExport`.
    pub(crate) fn request<T>(
        &mut self,
        mut request: impl FnMut(&mut Client, &Able) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        loop {
            self.connect()?;
            if self.needs_replay && !self.replay()? {
                continue;
            }
            let done = self.attempt(&mut request);
            match done {
                Err(error) if self.is_loss(&error) => {
                    self.lose(&error);
                    if self.is_over() {
                        return Err(error);
                    }
                }
                done => {
                    self.outage = None;
                    return done;
                }
            }
        }
    }

    fn attempt<T>(
        &mut self,
        request: impl FnOnce(&mut Client, &Able) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        match &mut self.client {
            Some(client) => request(client, &self.able),
            None => Err(ClientError::Broken { reason: "not connected".to_owned() }),
        }
    }

    /// The server answered that a range has this content.
    pub(crate) fn answered(&mut self, offset: u64, len: u64, durable: bool, content: Content) {
        if durable {
            self.unflushed.cut(offset, len);
        } else if self.keeps_unflushed() {
            self.unflushed.put(offset, content);
        }
    }

    /// Whether what is answered must be kept until a flush: not without reconnections, and not if
    /// there are no flushes after which it could go.
    pub(crate) fn keeps_unflushed(&self) -> bool {
        self.target.is_some() && self.able.flush
    }

    /// Makes room for `len` bytes that will be unflushed.
    ///
    /// # Errors
    /// Those of a flush.
    pub(crate) fn make_room(&mut self, len: u64) -> Result<(), ClientError> {
        let max = self.target.as_ref().map_or(usize::MAX, |target| target.unflushed_max);
        let cost = self.unflushed.cost();
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if cost > 0 && self.keeps_unflushed() && cost.saturating_add(len) > max {
            self.flush()?;
        }
        Ok(())
    }

    /// Makes all that was answered durable.
    ///
    /// # Errors
    /// As `request`.
    pub(crate) fn flush(&mut self) -> Result<(), ClientError> {
        let flushed = self.request(|client, _| client.flush());
        match flushed {
            Ok(()) => self.unflushed.clear(),
            // Nobody knows what became of it.
            Err(_) => self.needs_replay = self.keeps_unflushed(),
        }
        flushed
    }

    /// Whether a new connection may help.
    fn is_loss(&self, error: &ClientError) -> bool {
        let is_loss = match error {
            ClientError::Broken { .. } => true,
            ClientError::Request { errno: number, .. } => *number == errno::SHUTDOWN,
            _ => false,
        };
        is_loss && self.target.is_some()
    }

    /// Whether the time for coming back has passed.
    fn is_over(&self) -> bool {
        match (&self.outage, &self.target) {
            (Some(outage), Some(target)) => outage.since.elapsed() >= target.timeout,
            _ => false,
        }
    }

    fn lose(&mut self, error: &ClientError) {
        if let Some(client) = self.client.take() {
            client.reset();
        }
        self.needs_replay = true;
        self.note_failure(error);
    }

    fn note_failure(&mut self, error: &ClientError) {
        let now = Instant::now();
        let reason = error.to_string();
        let Some(target) = &self.target else { return };
        if let Some(outage) = &mut self.outage {
            outage.pause = (outage.pause * 2).min(PAUSE_MAX);
            outage.next_attempt = now + outage.pause;
            outage.reason = reason;
            return;
        }
        tracing::warn!(address = %target.address, export = target.export, reason,
            "the NBD server is lost; connecting again");
        self.outage = Some(Outage { since: now, next_attempt: now, pause: PAUSE_MIN / 2, reason });
    }

    /// Connects, if there is no connection, and holds the export against what it was.
    fn connect(&mut self) -> Result<(), ClientError> {
        while self.client.is_none() {
            let Some(target) = self.target.clone() else {
                return Err(ClientError::Broken { reason: "not connected".to_owned() });
            };
            self.await_turn(target.timeout)?;
            let client = match Client::connect(&target.address, &target.export) {
                Ok(client) => client,
                Err(error) => {
                    self.note_failure(&error);
                    continue;
                }
            };
            let found = Shape::of(&client);
            if found != self.shape {
                let (was, is) = (self.shape.describe(), found.describe());
                let error = ClientError::OtherExport { was, is };
                self.note_failure(&error);
                return Err(error);
            }
            tracing::info!(address = %target.address, export = target.export, "connected again");
            self.able = Able::of(&client);
            self.client = Some(client);
        }
        Ok(())
    }

    /// Waits until the next attempt to connect is due. Once the time is over, attempts are still
    /// made as often, and requests between them fail at once.
    fn await_turn(&self, timeout: Duration) -> Result<(), ClientError> {
        let Some(outage) = &self.outage else { return Ok(()) };
        let wait = outage.next_attempt.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Ok(());
        }
        let left = timeout.saturating_sub(outage.since.elapsed());
        if left.is_zero() {
            let reason = format!(
                "no server for {} s: {}; what it must still be given is kept, so start it again",
                outage.since.elapsed().as_secs(),
                outage.reason
            );
            return Err(ClientError::Broken { reason });
        }
        std::thread::sleep(wait.min(left));
        Ok(())
    }

    /// Gives the server all that it may have lost; says whether the connection lasted.
    fn replay(&mut self) -> Result<bool, ClientError> {
        let Some(client) = &mut self.client else { return Ok(false) };
        let pieces = self.unflushed.pieces();
        let replayed = pieces.into_iter().try_for_each(|(offset, content)| match content {
            Content::Bytes(bytes) => write_again(client, &self.able, offset, bytes),
            Content::Zeroes(len, hole) => ranges(offset, *len, self.able.zero_max())
                .try_for_each(|(at, piece)| self.able.zero_once(client, at, piece, *hole)),
        });
        match replayed {
            Ok(()) => {
                self.needs_replay = false;
                Ok(true)
            }
            Err(error) if self.is_loss(&error) => {
                self.lose(&error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

fn write_again(
    client: &mut Client,
    able: &Able,
    offset: u64,
    bytes: &[u8],
) -> Result<(), ClientError> {
    let mut rest = bytes;
    for (at, piece) in ranges(offset, bytes.len() as u64, able.payload_max) {
        let (first, after) = rest.split_at(piece as usize);
        client.write(at, first, everbyte_device::Fua::No)?;
        rest = after;
    }
    Ok(())
}

impl Able {
    /// Longest range that `zero_once` takes.
    pub(crate) fn zero_max(&self) -> u64 {
        if self.zero { RANGE_MAX } else { (ZEROES_LEN as u64).min(self.payload_max) }
    }

    fn zero_once(
        &self,
        client: &mut Client,
        at: u64,
        len: u32,
        hole: everbyte_device::Hole,
    ) -> Result<(), ClientError> {
        let fua = everbyte_device::Fua::No;
        if self.zero {
            client.write_zeroes(at, len, hole, false, fua)
        } else {
            client.write(at, &vec![0; len as usize], fua)
        }
    }
}

/// Cuts a range into pieces of at most `piece_max` bytes, a multiple of the block size, cutting at
/// block boundaries.
pub(crate) fn ranges(offset: u64, len: u64, piece_max: u64) -> impl Iterator<Item = (u64, u32)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_and_are_cut_at_blocks() {
        for (offset, len) in [(0, 0), (5, 1), (4095, 8192), (100, 100_000), (8192, 16384)] {
            let mut at = offset;
            for (start, piece) in ranges(offset, len, 8192) {
                assert_eq!(start, at);
                assert!(piece > 0 && piece <= 8192);
                assert!(start == offset || start % 4096 == 0, "{start}");
                at += u64::from(piece);
            }
            assert_eq!(at, offset + len);
        }
    }
}
