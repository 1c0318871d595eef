//! The server's side of the transmission phase of one connection.
//!
//! Requests are executed in order of arrival. Replies gather in `output`. They are sent together
//! when no further request has arrived, so they are always on their way before the connection waits
//! for input. The device gets writes straight from the input buffer, in the batches of the request
//! queue. Large reads go from the device to the socket.
//!
//! Invariants: queued writes lie in the input buffer. They are executed before it is filled again.
//! Each request gets exactly one reply. With structured replies, a read never gets a simple one.

use std::borrow::Cow;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use everbyte_device::request_queue::{self, Face, RequestQueue, Work};
use everbyte_device::{BlockDevice, DeviceError, Extent, Fua, Hole, SendError, send_all};

use crate::counters::Activity;
use crate::disconnect::DisconnectReason;
use crate::exports::Durability;
use crate::handshake::{CONTEXT_ID, Session};
pub(crate) use crate::input::Limits;
use crate::input::{Input, Next};
use crate::output::{Output, Sink};
use crate::payloads::{self, PayloadMemory};
use crate::protocol::{
    CHUNK_HEADER_LEN, PAYLOAD_MAX, Request, chunk, command, command_flag, encode_error_chunk,
    encode_last_chunk, encode_simple_reply, errno, extent_flag, wire_len,
};
use crate::remote_text;
use crate::wire;

/// Bytes of gathered replies that are sent even while more requests wait.
const OUTPUT_MAX: usize = 128 << 10;

/// Reads of at most this many bytes are copied and sent with their neighbours' replies when more
/// requests wait: a system call costs more than the copy.
const GATHERED_READ_MAX: u32 = 16 << 10;

/// Most extents in a block status.
const EXTENTS_MAX: usize = 1024;

/// An error reply: its number and a message for people.
struct Failure {
    errno: u32,
    message: Cow<'static, str>,
}

impl Failure {
    fn new(errno: u32, message: &'static str) -> Self {
        Self { errno, message: message.into() }
    }

    /// Maps a device's error to the protocol's; nothing else does.
    fn from_device(command: u16, error: &DeviceError) -> Self {
        let errno = match error {
            // The protocol wants ENOSPC for a write beyond the end, and EINVAL for other requests.
            DeviceError::OutOfRange { .. } => match command {
                command::WRITE | command::WRITE_ZEROES => errno::NOSPC,
                _ => errno::INVAL,
            },
            DeviceError::NoSpace { .. } => errno::NOSPC,
            DeviceError::ReadOnly { .. } => errno::PERM,
            DeviceError::NotFast => errno::NOTSUP,
            DeviceError::Gone => errno::SHUTDOWN,
            _ => errno::IO,
        };
        Self { errno, message: remote_text::of_device_error(error) }
    }
}

/// A request, and the place of its payload in the input buffer.
struct Tag {
    request: Request,
    payload: Range<usize>,
}

pub(crate) struct Transmission<'a> {
    requests: RequestQueue<Tag>,
    stream: Stream<'a>,
    limits: Limits,
    /// Memory of payloads that are too large for the input buffer.
    payloads: &'a PayloadMemory,
    /// Set once the server is being shut down: later requests are refused.
    refusing: bool,
}

/// The requests and the replies of one connection.
struct Stream<'a> {
    socket: BorrowedFd<'a>,
    session: &'a Session,
    activity: &'a Activity,
    input: Input,
    output: Output,
    /// True once the log has a media error of this connection.
    warned: bool,
}

impl<'a> Transmission<'a> {
    pub(crate) fn new(
        socket: BorrowedFd<'a>,
        session: &'a Session,
        activity: &'a Activity,
        limits: Limits,
        payloads: &'a PayloadMemory,
    ) -> Self {
        let stream = Stream {
            socket,
            session,
            activity,
            input: Input::new(),
            output: Output::with_capacity(OUTPUT_MAX),
            warned: false,
        };
        let requests = RequestQueue::new(Arc::clone(&session.export.device));
        Self { requests, stream, limits, payloads, refusing: false }
    }

    /// Serves requests until the client says goodbye. Requests received after `stopping` was set
    /// are refused.
    ///
    /// # Errors
    /// The reason why the connection ended otherwise.
    pub(crate) fn run(&mut self, stopping: &AtomicBool) -> Result<(), DisconnectReason> {
        loop {
            match self.stream.input.next() {
                // The client may close after its goodbye, so all earlier requests are completed
                // first.
                Ok(Next::Request(request, _)) if request.command == command::DISC => {
                    self.requests.execute_writes(&mut self.stream);
                    return self.stream.send_output();
                }
                Ok(Next::Request(request, payload)) => {
                    self.stream.activity.requests.add(1);
                    self.serve(request, payload)?;
                }
                Ok(Next::Large(request)) => {
                    self.stream.activity.requests.add(1);
                    self.large_write(request, stopping)?;
                }
                // Queued writes lie in the buffer, and `fill` moves it. Also, their client may wait
                // for the replies before it sends more.
                Ok(Next::Incomplete) => {
                    self.requests.execute_writes(&mut self.stream);
                    self.stream.send_output()?;
                    if !self.stream.input.fill(self.stream.socket, self.limits)? {
                        return Err(DisconnectReason::Closed);
                    }
                    self.stream.activity.note_activity();
                    // Checked only after a wait, so requests that arrived together have the same
                    // fate.
                    self.refusing = stopping.load(Ordering::Relaxed);
                }
                Err(end) => {
                    // Requests before the offence are still answered.
                    self.requests.execute_writes(&mut self.stream);
                    // The payload is not received, so no later request can be found in the stream.
                    if let DisconnectReason::PayloadTooLong(request) = &end {
                        let failure = Failure::new(errno::INVAL, "writes have at most 32 MiB");
                        self.stream.reply_error(request, &failure);
                    }
                    self.stream.send_output()?;
                    return Err(end);
                }
            }
        }
    }

    fn serve(&mut self, request: Request, payload: Range<usize>) -> Result<(), DisconnectReason> {
        match self.admit(&request) {
            Ok(()) => {
                let request = self.stream.session.work(request, payload);
                self.requests.submit(&mut self.stream, request)?;
            }
            Err(failure) => self.stream.reply_error(&request, &failure),
        }
        // A client that sends without pause must not let its replies fill the memory.
        if self.stream.output.len() >= OUTPUT_MAX { self.stream.send_output() } else { Ok(()) }
    }

    /// Refuses requests that need no device: late ones, unknown ones, and ones with wrong flags.
    fn admit(&self, request: &Request) -> Result<(), Failure> {
        if self.refusing {
            return Err(Failure::new(errno::SHUTDOWN, "the server is being shut down"));
        }
        let own_flags = match request.command {
            command::READ if self.stream.session.structured => command_flag::DF,
            command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            command::BLOCK_STATUS => command_flag::REQ_ONE,
            command::READ | command::WRITE | command::FLUSH | command::TRIM | command::CACHE => 0,
            _ => return Err(Failure::new(errno::INVAL, "unknown command")),
        };
        let is_fua = request.flags & command_flag::FUA != 0;
        // Success would promise durability, so an export without it refuses.
        let promises = is_fua || request.command == command::FLUSH;
        if promises && self.stream.session.export.durability == Durability::Never {
            return Err(Failure::new(errno::INVAL, "nothing of this export is ever durable"));
        }
        // FUA was advertised, so every command may have it, whether it writes or not.
        if request.flags & !(own_flags | command_flag::FUA) != 0 {
            return Err(Failure::new(errno::INVAL, "unknown command flags"));
        }
        if request.command == command::BLOCK_STATUS && !self.stream.session.status {
            return Err(Failure::new(errno::INVAL, "no metadata context was selected"));
        }
        if request.command == command::READ && request.len > PAYLOAD_MAX {
            // The protocol has an own error for a read that cannot be answered in one chunk.
            let too_large = match request.flags & command_flag::DF {
                0 => errno::INVAL,
                _ => errno::OVERFLOW,
            };
            return Err(Failure::new(too_large, "reads have at most 32 MiB"));
        }
        Ok(())
    }

    /// Carries out a write whose payload is still arriving.
    fn large_write(
        &mut self,
        request: Request,
        stopping: &AtomicBool,
    ) -> Result<(), DisconnectReason> {
        // The waits for memory and payload can be long. Earlier requests get their replies first,
        // and earlier writes stay earlier.
        self.requests.execute_writes(&mut self.stream);
        self.stream.send_output()?;
        let Stream { socket, session, activity, .. } = self.stream;
        let wanted = payloads::Request {
            export: session.export.name.clone(),
            len: request.len as usize,
            // `run` has counted this request already.
            is_newcomer: activity.requests.get() <= 1,
        };
        // Nothing is received during the wait for memory, so a closed socket must be looked for.
        let is_over = || stopping.load(Ordering::Relaxed) || wire::has_hung_up(socket);
        let deadline = self.limits.stall.map(|stall| Instant::now() + stall);
        let buffer = self.payloads.buffer(wanted, deadline, is_over);
        let mut buffer = buffer.ok_or(DisconnectReason::NoMemory)?;
        let progress = Arc::clone(&buffer.progress);
        self.stream.input.payload(socket, buffer.bytes(), self.limits, &progress)?;
        activity.note_activity();
        // After the payload: the next request comes behind it, even if this one is refused.
        match self.admit(&request) {
            Ok(()) => {
                let request = session.work(request, 0..0);
                self.requests.write(&mut self.stream, &request, buffer.bytes());
            }
            Err(failure) => self.stream.reply_error(&request, &failure),
        }
        Ok(())
    }
}

impl Session {
    /// Returns an admitted request for the device.
    fn work(&self, request: Request, payload: Range<usize>) -> request_queue::Request<Tag> {
        let work = match request.command {
            command::WRITE => Work::Write,
            command::FLUSH => Work::Flush,
            command::TRIM => Work::Discard,
            command::WRITE_ZEROES => Work::WriteZeroes {
                hole: match request.flags & command_flag::NO_HOLE {
                    0 => Hole::Allowed,
                    _ => Hole::Forbidden,
                },
                fast: request.flags & command_flag::FAST_ZERO != 0,
            },
            command::CACHE => Work::Prefetch,
            // `admit` lets only reads and block status pass in addition.
            _ => Work::Transfer,
        };
        let is_fua = request.flags & command_flag::FUA != 0;
        let fua = match is_fua || self.export.durability == Durability::WhenAnswered {
            true => Fua::Yes,
            false => Fua::No,
        };
        let (offset, len) = (request.offset, u64::from(request.len));
        request_queue::Request { tag: Tag { request, payload }, work, offset, len, fua }
    }
}

impl Face for Stream<'_> {
    type Tag = Tag;
    type Stop = DisconnectReason;

    fn payload<'a>(&'a self, write: &'a request_queue::Request<Tag>) -> &'a [u8] {
        &self.input.bytes()[write.tag.payload.clone()]
    }

    fn transfer(
        &mut self,
        device: &dyn BlockDevice,
        request: &request_queue::Request<Tag>,
    ) -> Result<(), DisconnectReason> {
        let request = &request.tag.request;
        match request.command {
            command::READ => self.read(device, request),
            _ => {
                self.block_status(device, request);
                Ok(())
            }
        }
    }

    fn complete(&mut self, request: &request_queue::Request<Tag>, done: Result<(), DeviceError>) {
        let activity = self.activity;
        match (request.work, &done) {
            (Work::Flush, _) => activity.flushes.add(1),
            (Work::Write, Ok(())) => activity.written_bytes.add(request.len),
            (Work::Discard, Ok(())) => activity.trimmed_bytes.add(request.len),
            (Work::WriteZeroes { .. }, Ok(())) => activity.zeroed_bytes.add(request.len),
            _ => {}
        }
        self.reply(&request.tag.request, done);
    }
}

impl Stream<'_> {
    fn read(
        &mut self,
        device: &dyn BlockDevice,
        request: &Request,
    ) -> Result<(), DisconnectReason> {
        let len = request.len as usize;
        if len == 0 {
            // A chunk of data must not be empty.
            let done = device.read(request.offset, &mut []);
            self.reply(request, done);
            return Ok(());
        }
        let before = self.output.len();
        // The header precedes the data, which is read in place behind it. An error takes it back.
        if self.session.structured {
            encode_last_chunk(
                &mut self.output,
                chunk::OFFSET_DATA,
                request.cookie,
                8 + request.len,
            );
            self.output.put(&request.offset.to_be_bytes());
        } else {
            encode_simple_reply(&mut self.output, 0, request.cookie);
        }
        let done = if request.len <= GATHERED_READ_MAX && self.input.has_more() {
            device.read(request.offset, self.output.space(len))
        } else {
            let range = (request.offset, len);
            match everbyte_device::send(device, range, self.output.as_slice(), self.socket) {
                Ok(()) => {
                    self.output.clear();
                    Ok(())
                }
                // No byte was sent, not even the earlier replies, so an error reply can follow.
                Err(SendError::Device(error)) => Err(error),
                // A part may have been sent, so the stream can carry no error reply.
                Err(SendError::Socket(error)) => return Err(error.into()),
                Err(other) => return Err(std::io::Error::other(other).into()),
            }
        };
        match done {
            Ok(()) => self.activity.read_bytes.add(u64::from(request.len)),
            Err(error) => {
                self.output.truncate(before);
                self.reply_device_error(request, &error);
            }
        }
        Ok(())
    }

    fn block_status(&mut self, device: &dyn BlockDevice, request: &Request) {
        let extents_max = if request.flags & command_flag::REQ_ONE == 0 { EXTENTS_MAX } else { 1 };
        let len = u64::from(request.len);
        match device.status(request.offset, len, extents_max) {
            Ok(extents) => self.reply_extents(request, &extents, extents_max),
            Err(error) => self.reply_device_error(request, &error),
        }
    }

    /// Replies with the extents, cut to the limits of the protocol for any result of the device.
    fn reply_extents(&mut self, request: &Request, extents: &[Extent], extents_max: usize) {
        let before = self.output.len();
        let chunk_len = 4 + 8 * extents.len().min(extents_max);
        encode_last_chunk(
            &mut self.output,
            chunk::BLOCK_STATUS,
            request.cookie,
            wire_len(chunk_len),
        );
        self.output.put(&CONTEXT_ID.to_be_bytes());
        let mut left = request.len;
        for extent in extents.iter().take(extents_max) {
            // A device may report a longer range than the requested one.
            let len = u32::try_from(extent.len).map_or(left, |len| len.min(left));
            if len == 0 {
                break;
            }
            left -= len;
            let hole = if extent.hole { extent_flag::HOLE } else { 0 };
            let zero = if extent.zero { extent_flag::ZERO } else { 0 };
            self.output.put(&len.to_be_bytes());
            self.output.put(&(hole | zero).to_be_bytes());
        }
        // An empty extent of the device ends the loop before the announced length is reached.
        if extents.is_empty() || self.output.len() != before + CHUNK_HEADER_LEN + chunk_len {
            self.output.truncate(before);
            self.reply_error(request, &Failure::new(errno::IO, "the device's extents are wrong"));
        }
    }

    fn reply(&mut self, request: &Request, done: Result<(), DeviceError>) {
        match done {
            // An empty read: with structured replies it must not get a simple one.
            Ok(()) if self.session.structured && request.command == command::READ => {
                encode_last_chunk(&mut self.output, chunk::NONE, request.cookie, 0);
            }
            Ok(()) => encode_simple_reply(&mut self.output, 0, request.cookie),
            Err(error) => self.reply_device_error(request, &error),
        }
    }

    fn reply_device_error(&mut self, request: &Request, error: &DeviceError) {
        let export = &self.session.export.name;
        // The first failure that the client did not cause. The log of the program limits the
        // others.
        if matches!(error, DeviceError::Media { .. }) && !std::mem::replace(&mut self.warned, true)
        {
            tracing::warn!(export, ?request, %error, "a request failed");
        } else {
            tracing::debug!(export, ?request, %error, "a request failed");
        }
        self.reply_error(request, &Failure::from_device(request.command, error));
    }

    fn reply_error(&mut self, request: &Request, failure: &Failure) {
        self.activity.errors.add(1);
        tracing::debug!(?request, errno = failure.errno, "refused: {}", failure.message);
        if self.session.structured {
            encode_error_chunk(&mut self.output, failure.errno, request.cookie, &failure.message);
        } else {
            encode_simple_reply(&mut self.output, failure.errno, request.cookie);
        }
    }

    fn send_output(&mut self) -> Result<(), DisconnectReason> {
        if self.output.len() > 0 {
            send_all(self.socket, self.output.as_slice())?;
            self.output.clear();
        }
        Ok(())
    }
}
