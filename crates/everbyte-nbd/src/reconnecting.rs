//! A connection to an export that is renewed after a failure. `RemoteDevice` sends its requests
//! over it.
//!
//! After a failure, the client replays on a new connection all writes answered since the last
//! flush. Then it repeats the unanswered request. A failed flush, and a failed request with FUA,
//! count as a lost server. A write refused in a replay is kept, and offered again before every
//! request that needs it. Lemmas R1 to R6 of `docs/proofs.md` prove that this keeps the contract of
//! a device, if the export has no other writer.
//!
//! Invariants: nothing but `unflushed` is sent while the server needs a replay; a connection to an
//! export of another size or kind is closed before a byte goes there. Knows nothing of devices'
//! contracts.

use std::time::{Duration, Instant};

use everbyte_device::{Fua, Hole};

use crate::address::{Address, Place};
use crate::blocks::{Span, in_memory};
use crate::client::{AbandonedConnection, Client, ClientError, ClientOptions, resolve};
use crate::protocol::{errno, transmission_flag};
use crate::unflushed::{Content, Unflushed};
use crate::wire::nap;

/// Rest before the second attempt to connect; doubled after each one, up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Zeroes are written in pieces of so many bytes where the server cannot zero.
pub(crate) const ZEROES_LEN: u32 = 1 << 20;

/// Splits are at multiples of this, so no block is torn between two requests. Servers with smaller
/// requests or larger blocks are the exception.
const BLOCK_BYTES: u32 = 4096;

/// Longest request without a payload and without a change, in bytes.
pub(crate) const RANGE_MAX: u32 = 1 << 30;

/// Zeroes are requested in pieces of this many bytes. A server that writes them finishes a piece in
/// time.
const ZERO_MAX: u32 = 64 << 20;
/// Bytes of zeroes that a server makes in the time of one received byte. Some servers write each
/// zero.
const ZEROES_PER_BYTE: u64 = 8;

/// The place of an export, and the time to look for it when it is lost.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    place: Place,
    /// Addresses of the last successful look-up.
    addresses: Vec<Address>,
    export: String,
    options: ClientOptions,
    timeout: Duration,
    /// Limit of unflushed bytes before the client flushes.
    unflushed_max: usize,
}

impl Target {
    /// The export named by an NBD URI.
    ///
    /// # Errors
    /// The URI is wrong, or its host has no address.
    pub(crate) fn new(
        uri: &str,
        options: ClientOptions,
        timeout: Duration,
        unflushed_max: usize,
    ) -> Result<Self, ClientError> {
        let (place, export) = Place::from_uri(uri)?;
        let addresses = resolve(&place, &options)?;
        Ok(Self { place, addresses, export, options, timeout, unflushed_max })
    }

    /// Connects to it. The host may have moved. A failed resolver does not prevent the attempt.
    ///
    /// # Errors
    /// Those of [`Client::connect_uri_with`].
    pub(crate) fn connect(&mut self, again: bool) -> Result<Client, ClientError> {
        if again && let Ok(addresses) = resolve(&self.place, &self.options) {
            self.addresses = addresses;
        }
        Client::connect_any(&self.addresses, &self.export, &self.options)
    }
}

/// Abilities of a connection's server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerCapabilities {
    pub(crate) flush: bool,
    pub(crate) fua: bool,
    pub(crate) zero: bool,
    pub(crate) zero_fast: bool,
    pub(crate) cache: bool,
    pub(crate) status: bool,
    /// Most bytes of a read or a write, in whole units.
    pub(crate) payload_max: u32,
    /// Requests are split at multiples of this many bytes.
    pub(crate) unit: u64,
}

impl ServerCapabilities {
    fn of(client: &Client) -> Self {
        let payload_max = client.payload_bytes_max();
        let minimum = client.block_bytes().0;
        let block = minimum.max(BLOCK_BYTES);
        // A server with smaller requests cannot take a whole block at once.
        let unit = if payload_max < block { minimum } else { block };
        Self {
            flush: client.can_flush(),
            fua: client.can(transmission_flag::SEND_FUA),
            zero: client.can(transmission_flag::SEND_WRITE_ZEROES),
            zero_fast: client.can(transmission_flag::SEND_FAST_ZERO),
            cache: client.can(transmission_flag::SEND_CACHE),
            status: client.can_block_status(),
            // A server may say less than its own smallest request.
            payload_max: (payload_max / unit * unit).max(unit),
            unit: u64::from(unit),
        }
    }
}

/// Properties that must be unchanged after a reconnection. NBD has no serial numbers.
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

/// The time since the last connection with an answered request.
#[derive(Debug)]
struct Outage {
    since: Instant,
    next_attempt: Instant,
    pause: Duration,
    reason: String,
}

/// A connection to an export that is renewed after a failure.
pub(crate) struct ReconnectingClient {
    client: Option<Client>,
    capabilities: ServerCapabilities,
    shape: Shape,
    /// `None` if a broken connection stays broken.
    target: Option<Target>,
    unflushed: Unflushed,
    /// Zeroes made since the last flush, as the payload bytes that take a flush equally long.
    zeroed: u64,
    /// True if the server may have lost unflushed writes.
    needs_replay: bool,
    /// The server's last refusal to take a write again: the error and its message.
    refusal: (u32, String),
    outage: Option<Outage>,
    /// The former connection, while its server may still execute requests from it.
    abandoned: Option<AbandonedConnection>,
}

impl ReconnectingClient {
    pub(crate) fn new(client: Client, target: Option<Target>) -> Self {
        Self {
            capabilities: ServerCapabilities::of(&client),
            shape: Shape::of(&client),
            client: Some(client),
            target,
            unflushed: Unflushed::default(),
            zeroed: 0,
            needs_replay: false,
            refusal: (errno::IO, String::new()),
            outage: None,
            abandoned: None,
        }
    }

    /// Returns the server's abilities. After a reconnection it may be another server.
    pub(crate) fn capabilities(&self) -> ServerCapabilities {
        self.capabilities
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn disconnect(self) -> Result<(), ClientError> {
        self.client.map_or(Ok(()), Client::disconnect)
    }

    /// Sends one request, on a new connection if the old one breaks before the answer.
    ///
    /// # Errors
    /// The server's; `Broken` if no connection succeeds within the time; `OtherExport`;
    /// `Cancelled`.
    pub(crate) fn request<T>(
        &mut self,
        request: impl FnMut(&mut Client, &ServerCapabilities) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        self.request_seeing(Span::new(0, 0), request)
    }

    /// Sends a request that must see the bytes of earlier requests in a range.
    ///
    /// # Errors
    /// As `request`, and `NotTakenAgain` for a part of the range that the server has refused.
    pub(crate) fn request_seeing<T>(
        &mut self,
        seen: Span,
        mut request: impl FnMut(&mut Client, &ServerCapabilities) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        loop {
            self.connect()?;
            // R3 and R4: lost writes go to the server before any request, and refused ones before a
            // request that must see their range.
            if (self.needs_replay && !self.replay()?) || !self.give_refused(seen)? {
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
        request: impl FnOnce(&mut Client, &ServerCapabilities) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        match &mut self.client {
            Some(client) => request(client, &self.capabilities),
            None => Err(ClientError::Broken { reason: "not connected".to_owned() }),
        }
    }

    /// Notes an answered request that set a range to this content.
    pub(crate) fn answered(
        &mut self,
        (at, len): (u64, u32),
        is_durable: bool,
        content: impl FnOnce() -> Content,
    ) {
        if is_durable {
            // A kept older write of this range must not overwrite the durable bytes in a replay.
            self.unflushed.cut(at, len.into());
        } else if self.keeps_unflushed() {
            let content = content();
            if let Content::Zeroes(..) = content {
                self.zeroed += self.capabilities.zeroing_cost(len);
            }
            self.unflushed.put(at, content);
        }
    }

    /// Returns true if answered writes must be kept until a flush: with reconnections, and if the
    /// server offers flushes.
    pub(crate) fn keeps_unflushed(&self) -> bool {
        self.target.is_some() && self.capabilities.flush
    }

    /// Notes the failure of a request with FUA. Many servers execute it as a write and a flush.
    /// Then the durability of earlier answered writes is unknown for any error: some servers use
    /// EINVAL for errors without a protocol name.
    pub(crate) fn durable_failed(&mut self) {
        self.needs_replay |= self.keeps_unflushed();
    }

    /// Makes room for `len` unflushed bytes, and for zeroes that take a flush as long as `zeroed`
    /// bytes.
    ///
    /// # Errors
    /// Those of a flush.
    pub(crate) fn make_room(&mut self, len: u64, zeroed: u64) -> Result<(), ClientError> {
        let max = self.target.as_ref().map_or(usize::MAX, |target| target.unflushed_max);
        let cost = self.unflushed.cost();
        // A single write above the limit is kept whole: no flush could make room for it.
        let has_room = cost == 0 || cost.saturating_add(in_memory(len)) <= max;
        // A flush of more zeroes could exceed the time limit for its reply.
        let is_quick = self.zeroed == 0 || self.zeroed.saturating_add(zeroed) <= max as u64;
        if !self.keeps_unflushed() || (has_room && is_quick) {
            return Ok(());
        }
        if self.unflushed.given_cost() > 0 {
            self.flush_given()?;
        }
        // Refused writes do not block the rest, up to a bound.
        if self.unflushed.cost() > max { Err(self.refused()) } else { Ok(()) }
    }

    /// Makes all answered writes durable.
    ///
    /// # Errors
    /// As `request`, and `NotTakenAgain` if the server refuses some of them.
    pub(crate) fn flush(&mut self) -> Result<(), ClientError> {
        if self.unflushed.has_refused() {
            let everything = Span { start: 0, end: u64::MAX };
            // R6: refused writes are offered before every flush. If the server refuses them again,
            // it still flushes the others.
            match self.request_seeing(everything, |_, _| Ok(())) {
                Ok(()) | Err(ClientError::NotTakenAgain { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.flush_given()?;
        if self.unflushed.has_refused() { Err(self.refused()) } else { Ok(()) }
    }

    /// Makes the writes that the server has taken durable.
    fn flush_given(&mut self) -> Result<(), ClientError> {
        let flushed = self.request(|client, _| client.flush());
        match flushed {
            Ok(()) => {
                self.unflushed.clear_given();
                self.zeroed = 0;
            }
            // The server may have dropped the writes.
            Err(_) => self.needs_replay |= self.keeps_unflushed(),
        }
        flushed
    }

    fn refused(&self) -> ClientError {
        let (errno, message) = self.refusal.clone();
        ClientError::NotTakenAgain { errno, message }
    }

    /// Returns true if a new connection may help.
    fn is_loss(&self, error: &ClientError) -> bool {
        let is_loss = match error {
            ClientError::Broken { .. } => true,
            // A server in its shutdown refuses requests that its successor takes.
            ClientError::Request { errno: number, .. } => *number == errno::SHUTDOWN,
            _ => false,
        };
        is_loss && self.target.is_some()
    }

    /// Returns true if the time for reconnecting has passed.
    fn is_over(&self) -> bool {
        match (&self.outage, &self.target) {
            (Some(outage), Some(target)) => outage.since.elapsed() >= target.timeout,
            _ => false,
        }
    }

    fn lose(&mut self, error: &ClientError) {
        if let Some(client) = self.client.take() {
            self.abandoned = client.abandon();
        }
        // R3: a lost server may have crashed with its unflushed writes.
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
        tracing::warn!(place = %target.place, export = target.export, reason,
            "the NBD server is lost; connecting again");
        // The next attempt comes immediately. Its failure doubles the pause to `PAUSE_MIN`.
        self.outage = Some(Outage { since: now, next_attempt: now, pause: PAUSE_MIN / 2, reason });
    }

    /// Connects, if necessary, and compares the export with the former one.
    fn connect(&mut self) -> Result<(), ClientError> {
        while self.client.is_none() {
            self.await_turn()?;
            // R2: an old change could otherwise be executed after newer requests.
            if self.abandoned.as_ref().is_some_and(|abandoned| !abandoned.is_over()) {
                let reason = "a change was not answered in time, and the server has not closed that \
                              connection: it may still carry the change out";
                self.note_failure(&ClientError::Broken { reason: reason.to_owned() });
                continue;
            }
            self.abandoned = None;
            let Some(target) = &mut self.target else {
                return Err(ClientError::Broken { reason: "not connected".to_owned() });
            };
            let client = match target.connect(true) {
                Ok(client) => client,
                // A cancelled handle stays cancelled, so no later attempt can succeed.
                Err(ClientError::Cancelled) => return Err(ClientError::Cancelled),
                Err(error) => {
                    self.note_failure(&error);
                    continue;
                }
            };
            let found = Shape::of(&client);
            // Compared before the first request: another export must not get the kept writes.
            if found != self.shape {
                let (was, is) = (self.shape.describe(), found.describe());
                let error = ClientError::OtherExport { was, is };
                self.note_failure(&error);
                return Err(error);
            }
            tracing::info!(place = %target.place, export = target.export, "connected again");
            self.capabilities = ServerCapabilities::of(&client);
            self.client = Some(client);
        }
        Ok(())
    }

    /// Waits until the next attempt to connect is due. After the timeout, attempts are as frequent
    /// as before, and requests between them fail immediately.
    fn await_turn(&self) -> Result<(), ClientError> {
        let (Some(outage), Some(target)) = (&self.outage, &self.target) else { return Ok(()) };
        let wait = outage.next_attempt.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Ok(());
        }
        let left = target.timeout.saturating_sub(outage.since.elapsed());
        if left.is_zero() {
            let reason = format!(
                "no server for {} s: {}; what it must still be given is kept, so start it again",
                outage.since.elapsed().as_secs(),
                outage.reason
            );
            return Err(ClientError::Broken { reason });
        }
        Ok(nap(wait.min(left), target.options.cancel.as_ref())?)
    }

    /// Replays all writes that the server may have lost. Returns true if the connection lasted. A
    /// refused write is kept, and blocks only requests that need it.
    fn replay(&mut self) -> Result<bool, ClientError> {
        // Kept pieces do not overlap, so any order leaves the same bytes.
        for start in self.unflushed.starts() {
            match self.give(start) {
                Ok(()) => self.unflushed.set_refused(start, false),
                Err(ClientError::Request { errno, message }) if errno != errno::SHUTDOWN => {
                    let had_refused = self.unflushed.has_refused();
                    self.unflushed.set_refused(start, true);
                    if !had_refused {
                        tracing::error!(
                            start,
                            errno,
                            message,
                            "the NBD server refuses to take \
                            again what it had answered; it is kept, and flushes fail until it is \
                            taken"
                        );
                    }
                    self.refusal = (errno, message);
                }
                Err(error) if self.is_loss(&error) => {
                    self.lose(&error);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        // Only after the last piece: a loss within the replay repeats all of it.
        self.needs_replay = false;
        Ok(true)
    }

    /// Offers the server again the refused writes of a range; returns true if the connection
    /// lasted.
    fn give_refused(&mut self, span: Span) -> Result<bool, ClientError> {
        if span.len() == 0 || !self.unflushed.has_refused() {
            return Ok(true);
        }
        for start in self.unflushed.refused_in(span.start, span.end) {
            match self.give(start) {
                Ok(()) => self.unflushed.set_refused(start, false),
                // This arm precedes the refusals, because a shutdown error is a loss.
                Err(error) if self.is_loss(&error) => {
                    self.lose(&error);
                    return Ok(false);
                }
                Err(ClientError::Request { errno, message }) => {
                    self.refusal = (errno, message);
                    return Err(self.refused());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Sends the server one unflushed piece.
    fn give(&mut self, start: u64) -> Result<(), ClientError> {
        let Some(client) = &mut self.client else {
            return Err(ClientError::Broken { reason: "not connected".to_owned() });
        };
        match self.unflushed.piece(start) {
            Some(Content::Bytes(bytes)) => write_again(client, &self.capabilities, start, bytes),
            Some(Content::Zeroes(len, hole)) => Span::new(start, *len)
                .pieces(self.capabilities.zero_max(), self.capabilities.unit)
                .try_for_each(|(at, piece)| {
                    self.capabilities.zero(client, (at, piece), *hole, false, Fua::No)
                }),
            None => Ok(()),
        }
    }
}

fn write_again(
    client: &mut Client,
    capabilities: &ServerCapabilities,
    offset: u64,
    bytes: &[u8],
) -> Result<(), ClientError> {
    let mut rest = bytes;
    for (at, piece) in
        Span::new(offset, bytes.len() as u64).pieces(capabilities.payload_max, capabilities.unit)
    {
        let (first, after) = rest.split_at(piece as usize);
        // Without FUA: the next flush covers the write, as it would have covered the first one.
        client.write(at, first, Fua::No)?;
        rest = after;
    }
    Ok(())
}

impl ServerCapabilities {
    /// Returns the longest range of one zeroing request, in bytes.
    pub(crate) fn zero_max(&self) -> u32 {
        if self.zero { ZERO_MAX } else { ZEROES_LEN.min(self.payload_max) }
    }

    /// Returns how many bytes of payload take a flush as long as `len` bytes of zeroes.
    pub(crate) fn zeroing_cost(&self, len: u32) -> u64 {
        if self.zero { u64::from(len).div_ceil(ZEROES_PER_BYTE) } else { len.into() }
    }

    /// Zeroes a range by any means of the server. After a reconnection the server may have fewer
    /// means than the one for which the range was cut.
    pub(crate) fn zero(
        &self,
        client: &mut Client,
        (at, len): (u64, u32),
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), ClientError> {
        if self.zero {
            return client.write_zeroes(at, len, hole, fast, fua);
        }
        let zeroes = vec![0; self.zero_max().min(len) as usize];
        Span::new(at, u64::from(len))
            .pieces(self.zero_max(), self.unit)
            .try_for_each(|(at, piece)| client.write(at, &zeroes[..piece as usize], fua))
    }
}
