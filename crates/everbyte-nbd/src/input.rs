//! The received requests of a connection.
//!
//! Invariants: `start <= end <= buffer.len()`. The bytes between have arrived and are not taken
//! yet. Taken payloads stay at their place until the next `fill`, so their ranges are valid until
//! then.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::disconnect::DisconnectReason;
use crate::payloads::Progress;
use crate::protocol::{PAYLOAD_MAX, REQUEST_LEN, Request, command};
use crate::wire;

/// Bytes buffered, more than a Unix socket hands over at once.
const BUFFER_LEN: usize = 256 << 10;

/// Payloads above this size that are incomplete are received into their destination, without the
/// buffer.
const BUFFERED_PAYLOAD_MAX: usize = 64 << 10;

/// Time to look for more before sleeping: less than it takes to be woken from a sleep.
const SPIN: Duration = Duration::from_micros(20);
/// Longest time between two looks at whether a payload may still arrive.
const LOOK: Duration = Duration::from_millis(100);
/// Number of sleeps without a spin after an unsuccessful spin.
const SPINS_SKIPPED: u32 = 16;

/// Limits of a connection's waits for its peer; `None` is for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Wait for the next request.
    pub(crate) idle: Option<Duration>,
    /// Longest wait for the next bytes of an incomplete request.
    pub(crate) stall: Option<Duration>,
}

/// The next item of a client's input.
#[derive(PartialEq, Debug)]
pub(crate) enum Next {
    /// A request. The payload of a write is in this range of `bytes`.
    Request(Request, Range<usize>),
    /// A write. `payload` must receive its payload next.
    Large(Request),
    /// More bytes must arrive first.
    Incomplete,
}

pub(crate) struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Sleeps before another look is worth it.
    spins_to_skip: u32,
}

impl Input {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; BUFFER_LEN], start: 0, end: 0, spins_to_skip: 0 }
    }

    /// Returns the buffer of the payload ranges.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Returns true if a further request has begun to arrive.
    pub(crate) fn has_more(&self) -> bool {
        self.end - self.start >= REQUEST_LEN
    }

    /// Takes the next request.
    ///
    /// # Errors
    /// If the bytes are not a request, or the request is too long. The input is then unusable.
    pub(crate) fn next(&mut self) -> Result<Next, DisconnectReason> {
        let arrived = &self.buffer[self.start..self.end];
        let Some((header, rest)) = arrived.split_first_chunk::<REQUEST_LEN>() else {
            return Ok(Next::Incomplete);
        };
        let request = Request::decode(header).map_err(DisconnectReason::RequestMagic)?;
        // Without extended headers only a write carries a payload.
        if request.command != command::WRITE {
            self.start += REQUEST_LEN;
            return Ok(Next::Request(request, 0..0));
        }
        if request.len > PAYLOAD_MAX {
            return Err(DisconnectReason::PayloadTooLong(request));
        }
        let len = request.len as usize;
        if rest.len() >= len {
            let from = self.start + REQUEST_LEN;
            self.start = from + len;
            return Ok(Next::Request(request, from..from + len));
        }
        if len > BUFFERED_PAYLOAD_MAX {
            self.start += REQUEST_LEN;
            return Ok(Next::Large(request));
        }
        Ok(Next::Incomplete)
    }

    /// Waits for more bytes. `false` means that the peer closed between requests.
    ///
    /// # Errors
    /// The socket's, and `Cut` if the peer closed in the middle of a request.
    pub(crate) fn fill(
        &mut self,
        socket: BorrowedFd<'_>,
        limits: Limits,
    ) -> Result<bool, DisconnectReason> {
        if self.start > 0 {
            // At most one incomplete buffered request moves.
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let received = match self.spin(socket)? {
            Some(count) => count,
            // An empty buffer means a wait between requests, and disks may be idle. An incomplete
            // request must progress.
            None if self.end == 0 => wire::recv_within(socket, &mut self.buffer, limits.idle)
                .map_err(|error| when_late(error, DisconnectReason::Idle))?,
            None => wire::recv_within(socket, &mut self.buffer[self.end..], limits.stall)
                .map_err(|error| when_late(error, DisconnectReason::Stalled))?,
        };
        match received {
            0 if self.end == 0 => Ok(false),
            0 => Err(DisconnectReason::Cut),
            count => {
                self.end += count;
                Ok(true)
            }
        }
    }

    /// Polls for more bytes for a moment. A client with requests in flight sends the next one
    /// within microseconds, and a wake-up takes longer. After an unsuccessful poll, the processor
    /// is better used elsewhere.
    fn spin(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<usize>> {
        if self.spins_to_skip > 0 {
            self.spins_to_skip -= 1;
            return Ok(None);
        }
        let started = Instant::now();
        loop {
            if let Some(count) = wire::recv_now(socket, &mut self.buffer[self.end..])? {
                return Ok(Some(count));
            }
            if started.elapsed() > SPIN {
                self.spins_to_skip = SPINS_SKIPPED;
                return Ok(None);
            }
            std::hint::spin_loop();
        }
    }

    /// Fills `out` with the bytes after the last taken request.
    ///
    /// # Errors
    /// The socket's; `Cut` if the peer closes before, `Stalled` if nothing comes for too long,
    /// `Slow` if another client gets the memory.
    pub(crate) fn payload(
        &mut self,
        socket: BorrowedFd<'_>,
        out: &mut [u8],
        limits: Limits,
        progress: &Progress,
    ) -> Result<(), DisconnectReason> {
        // The last `fill` may have received the first bytes of the payload with the request.
        let buffered = (self.end - self.start).min(out.len());
        let (first, mut rest) = out.split_at_mut(buffered);
        first.copy_from_slice(&self.buffer[self.start..self.start + buffered]);
        self.start += buffered;
        progress.add(buffered);
        let mut last_activity = Instant::now();
        while !rest.is_empty() {
            // Checked before each receive: a waiting client has no other way to end this one.
            if progress.is_revoked() {
                return Err(DisconnectReason::Slow);
            }
            match wire::recv_now(socket, rest)? {
                Some(0) => return Err(DisconnectReason::Cut),
                Some(count) => {
                    progress.add(count);
                    rest = &mut rest[count..];
                    last_activity = Instant::now();
                }
                None if limits.stall.is_some_and(|stall| last_activity.elapsed() >= stall) => {
                    return Err(DisconnectReason::Stalled);
                }
                None => {
                    let look = limits.stall.map_or(LOOK, |stall| stall.min(LOOK));
                    match wire::wait(socket, PollFlags::IN, Some(Instant::now() + look), None) {
                        // A timeout only leads to the next check of the revocation and of the
                        // stall.
                        Err(error) if error.kind() != io::ErrorKind::TimedOut => {
                            return Err(error.into());
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

fn when_late(error: io::Error, reason: DisconnectReason) -> DisconnectReason {
    match error.kind() {
        io::ErrorKind::TimedOut => reason,
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::payloads::{self, PayloadMemory};

    const FOREVER: Limits = Limits { idle: None, stall: None };

    fn request(command: u16, cookie: u64, len: u32) -> (Request, Vec<u8>) {
        let request = Request { flags: 0, command, cookie, offset: 0, len };
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        (request, bytes)
    }

    #[test]
    fn requests_arrive_in_pieces_of_any_size() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for cookie in 0..40 {
            let len = u32::try_from(cookie * 311).unwrap();
            let (write, bytes) = request(command::WRITE, cookie, len);
            stream.extend(bytes);
            stream.extend(vec![u8::try_from(cookie).unwrap(); len as usize]);
            let (read, bytes) = request(command::READ, 1000 + cookie, 1 << 20);
            stream.extend(bytes);
            expected.extend([write, read]);
        }
        let mut input = Input::new();
        let mut got = Vec::new();
        for piece in stream.chunks(1009) {
            far.write_all(piece).unwrap();
            assert!(input.fill(near.as_fd(), FOREVER).unwrap());
            while let Next::Request(request, payload) = input.next().unwrap() {
                let payload = &input.bytes()[payload];
                if request.command == command::WRITE {
                    assert_eq!(payload.len(), request.len as usize);
                    assert!(payload.iter().all(|&byte| u64::from(byte) == request.cookie));
                }
                got.push(request);
            }
        }
        assert_eq!(got, expected);
        drop(far);
        assert!(!input.fill(near.as_fd(), FOREVER).unwrap());
    }

    #[test]
    fn large_payload_bypasses_the_buffer() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let (write, bytes) = request(command::WRITE, 1, 100_000);
        let (read, read_bytes) = request(command::READ, 2, 1);
        far.write_all(&[bytes, vec![7; 50_000]].concat()).unwrap();
        let mut input = Input::new();
        input.fill(near.as_fd(), FOREVER).unwrap();
        assert_eq!(input.next().unwrap(), Next::Large(write));
        far.write_all(&[vec![7; 50_000], read_bytes].concat()).unwrap();
        let mut payload = vec![0; 100_000];
        let memory = PayloadMemory::default();
        let request = payloads::Request { export: String::new(), len: 100_000, is_newcomer: true };
        let buffer = memory.buffer(request, None, || false).unwrap();
        input.payload(near.as_fd(), &mut payload, FOREVER, &buffer.progress).unwrap();
        assert!(payload.iter().all(|&byte| byte == 7));
        input.fill(near.as_fd(), FOREVER).unwrap();
        assert_eq!(input.next().unwrap(), Next::Request(read, 0..0));
        assert_eq!(input.next().unwrap(), Next::Incomplete);
        assert!(!input.has_more());
    }

    #[test]
    fn untakable_request_ends_the_input() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut input = Input::new();
        far.write_all(&request(command::WRITE, 1, PAYLOAD_MAX + 1).1).unwrap();
        input.fill(near.as_fd(), FOREVER).unwrap();
        assert!(matches!(input.next(), Err(DisconnectReason::PayloadTooLong(_))));
        let mut input = Input::new();
        far.write_all(&[0x25; 28]).unwrap();
        input.fill(near.as_fd(), FOREVER).unwrap();
        assert!(matches!(input.next(), Err(DisconnectReason::RequestMagic(0x2525_2525))));
        let mut input = Input::new();
        far.write_all(&[0x25; 27]).unwrap();
        drop(far);
        input.fill(near.as_fd(), FOREVER).unwrap();
        assert!(matches!(input.fill(near.as_fd(), FOREVER), Err(DisconnectReason::Cut)));
    }
}
