//! Recording of requests to devices.
//!
//! A [`Recorder`] decorates devices and notes each successful request. Its thread writes the notes to a
//! [`RequestLog`]. Invariants: the log has the requests of all recorded devices in the order of their
//! answers, without a gap from the first on. Its times never decrease. A request waits at most for the
//! note of another one, never for the log. A failed or slow log ends only the recording.
//!
//! Knows no format of logs.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::decorator::Passthrough;
use crate::device::{BlockDevice, Fua, Hole, WriteRequest};
use crate::error::{DeviceError, SendError};
use crate::transport::Transport;

/// Notes that may wait for the log: 40 MiB, or some seconds of the fastest clients.
const WAITING_MAX: usize = 1 << 20;
/// Longest wait of a note before its write. No request wakes the writing thread,
/// because a wake-up costs more than the request itself.
const PAUSE: Duration = Duration::from_millis(10);
/// Time between two flushes of the log.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Kind of a recorded request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordedOp {
    /// Bytes were read, or sent to a client.
    Read,
    /// Bytes were written.
    Write,
    /// Everything was made durable.
    Flush,
    /// Space was freed.
    Discard,
    /// A range was made zero.
    WriteZeroes,
}

/// An answered request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordedRequest {
    /// Time of its answer, in ns since the recorder started.
    pub time_ns: u64,
    /// Its kind.
    pub op: RecordedOp,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Bytes; 0 for a flush, else at least 1.
    pub len: u64,
}

/// A log of a [`Recorder`].
pub trait RequestLog: Send {
    /// Writes a request to the device `name`.
    ///
    /// # Errors
    /// The errors of the log. The recorder does not use it again.
    fn write(&mut self, name: &str, request: &RecordedRequest) -> io::Result<()>;

    /// Flushes the written requests.
    ///
    /// # Errors
    /// As `write`.
    fn flush(&mut self) -> io::Result<()>;

    /// Ends the log.
    ///
    /// # Errors
    /// As `write`.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// Reasons for an early end of a recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The log failed.
    #[error("the record cannot be written: {0}")]
    Log(#[from] io::Error),
    /// Requests came faster than the log accepted them.
    #[error("the record cannot be written as fast as requests come: it ends before {after} ms")]
    Behind {
        /// ms since the start. The record has no later request.
        after: u128,
    },
}

/// Outcome of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordSummary {
    /// Requests in the log.
    pub requests: u64,
    /// False if the recording ended early. Requests answered later are missing then.
    pub is_complete: bool,
}

/// A note: the device's number and the request.
type Note = (usize, RecordedRequest);

struct Shared {
    started: Instant,
    /// True as long as requests are noted.
    is_on: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    notes: Vec<Note>,
    names: Vec<Arc<str>>,
    notes_max: usize,
    is_behind: bool,
    is_finished: bool,
}

/// A recorder of the successful requests of devices. Its thread writes them to a [`RequestLog`].
///
/// The log has the requests of all recorded devices in the order of their answers, without a gap from
/// the first on, and its times never decrease. A request waits at most for the note of another one, never
/// for the log. A failed or slow log ends only the recording. A drop of the recorder ends the recording
/// like [`Recorder::finish`].
pub struct Recorder {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<RecordSummary>>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    /// Starts the thread of the log. If the recording ends early, this thread calls `on_error`, at most
    /// once.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(
        log: Box<dyn RequestLog>,
        on_error: impl FnOnce(RecordError) + Send + 'static,
    ) -> io::Result<Self> {
        Self::with_room(log, on_error, WAITING_MAX)
    }

    fn with_room(
        log: Box<dyn RequestLog>,
        on_error: impl FnOnce(RecordError) + Send + 'static,
        notes_max: usize,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            started: Instant::now(),
            is_on: AtomicBool::new(true),
            waiting: Mutex::new(Waiting { notes_max, ..Waiting::default() }),
        });
        let writer = Writer { shared: Arc::clone(&shared), names: Vec::new(), written: 0 };
        let run = move || writer.run(log, on_error);
        let writer = std::thread::Builder::new().name("record".to_owned()).spawn(run)?;
        Ok(Self { shared, writer: Some(writer) })
    }

    /// Decorates `device`. The log names its requests `name`.
    #[must_use]
    pub fn record(&self, name: &str, device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        let mut waiting = self.shared.waiting.lock();
        // A device that comes back under its name continues as the same device of the log.
        let known = waiting.names.iter().position(|known| **known == *name);
        let number = known.unwrap_or_else(|| {
            waiting.names.push(name.into());
            waiting.names.len() - 1
        });
        Arc::new(Recorded { device, number, shared: Arc::clone(&self.shared) })
    }

    /// Writes all requests answered so far, ends the log, and returns the number of its requests and their
    /// completeness. Requests answered later are not recorded.
    #[must_use]
    pub fn finish(mut self) -> RecordSummary {
        self.end()
    }

    fn end(&mut self) -> RecordSummary {
        // After a panic the count of written requests is unknown.
        let nothing = RecordSummary { requests: 0, is_complete: false };
        // From here on requests note nothing. `is_finished` stops those that have passed the check.
        self.shared.is_on.store(false, Ordering::Relaxed);
        self.shared.waiting.lock().is_finished = true;
        let Some(writer) = self.writer.take() else { return nothing };
        writer.thread().unpark();
        writer.join().unwrap_or(nothing)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread that writes.
struct Writer {
    shared: Arc<Shared>,
    names: Vec<Arc<str>>,
    written: u64,
}

impl Writer {
    fn run(
        mut self,
        log: Box<dyn RequestLog>,
        on_error: impl FnOnce(RecordError),
    ) -> RecordSummary {
        let written = self.write_all(log);
        let is_complete = written.is_ok();
        if let Err(error) = written {
            // Without a reader, further notes would only fill the memory.
            self.shared.is_on.store(false, Ordering::Relaxed);
            self.shared.waiting.lock().notes = Vec::new();
            on_error(error);
        }
        RecordSummary { requests: self.written, is_complete }
    }

    fn write_all(&mut self, mut log: Box<dyn RequestLog>) -> Result<(), RecordError> {
        let mut notes = Vec::new();
        let mut flushed = Instant::now();
        loop {
            std::thread::park_timeout(PAUSE);
            let (is_behind, is_finished) = {
                let mut waiting = self.shared.waiting.lock();
                // Swapped under the lock and written without it: no request waits for the log.
                std::mem::swap(&mut waiting.notes, &mut notes);
                // Names are only added, so a longer list is a newer one.
                if waiting.names.len() > self.names.len() {
                    self.names.clone_from(&waiting.names);
                }
                (waiting.is_behind, waiting.is_finished)
            };
            for (number, request) in notes.drain(..) {
                log.write(&self.names[number], &request)?;
                self.written += 1;
            }
            // After the notes that were taken with the flags: the log ends without a gap.
            if is_behind || is_finished {
                log.finish()?;
                let after = self.shared.started.elapsed().as_millis();
                return if is_behind { Err(RecordError::Behind { after }) } else { Ok(()) };
            }
            // Bounds the loss of a killed process.
            if flushed.elapsed() > FLUSH_INTERVAL {
                log.flush()?;
                flushed = Instant::now();
            }
        }
    }
}

impl Shared {
    /// Notes answered requests.
    fn note(&self, number: usize, requests: impl Iterator<Item = (RecordedOp, u64, u64)>) {
        // Most devices run on after a recording, so this check takes no lock.
        if !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        let mut waiting = self.waiting.lock();
        // Read under the lock, so times never decrease.
        let time_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        for (op, offset, len) in
            requests.filter(|(op, _, len)| *len > 0 || *op == RecordedOp::Flush)
        {
            // A request answered after the end of the recording is not a part of it.
            if waiting.is_finished || waiting.is_behind {
                return;
            }
            // A dropped note would leave a gap, so the recording ends instead.
            if waiting.notes.len() >= waiting.notes_max {
                waiting.is_behind = true;
                self.is_on.store(false, Ordering::Relaxed);
                return;
            }
            waiting.notes.push((number, RecordedRequest { time_ns, op, offset, len }));
        }
    }
}

/// A recorded device.
struct Recorded {
    device: Arc<dyn BlockDevice>,
    number: usize,
    shared: Arc<Shared>,
}

impl Recorded {
    fn note(&self, op: RecordedOp, offset: u64, len: u64) {
        self.shared.note(self.number, std::iter::once((op, offset, len)));
    }
}

impl Transport for Recorded {
    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        crate::send(&*self.device, (offset, len), prefix, socket)?;
        self.note(RecordedOp::Read, offset, len as u64);
        Ok(())
    }
}

impl crate::decorator::Decorator for Recorded {
    type Inner = dyn BlockDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Whole;

    fn inner(&self) -> &Self::Inner {
        &*self.device
    }

    fn transport(&self) -> Option<&dyn Transport> {
        Some(self)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(offset, out)?;
        self.note(RecordedOp::Read, offset, out.len() as u64);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.device.write(offset, data, fua)?;
        self.note(RecordedOp::Write, offset, data.len() as u64);
        Ok(())
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        let results = self.device.write_batch(requests);
        // Failed requests are no part of the record, as in single writes.
        let answered = requests.iter().zip(&results).filter(|(_, result)| result.is_ok());
        let writes = answered.map(|(r, _)| (RecordedOp::Write, r.offset, r.data.len() as u64));
        self.shared.note(self.number, writes);
        results
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush()?;
        self.note(RecordedOp::Flush, 0, 0);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.device.discard(offset, len, fua)?;
        self.note(RecordedOp::Discard, offset, len);
        Ok(())
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.device.write_zeroes(offset, len, hole, fast, fua)?;
        self.note(RecordedOp::WriteZeroes, offset, len);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{MemoryDevice, conformance};

    /// Keeps what it is given; fails after so many requests.
    #[derive(Clone, Default)]
    struct Kept {
        lines: Arc<Mutex<Vec<(String, RecordedRequest)>>>,
        room: Option<usize>,
        is_finished: Arc<AtomicBool>,
        /// Held by a test that wants the log to be slow.
        gate: Arc<Mutex<()>>,
    }

    impl RequestLog for Kept {
        fn write(&mut self, name: &str, request: &RecordedRequest) -> io::Result<()> {
            let _open = self.gate.lock();
            let mut lines = self.lines.lock();
            if self.room == Some(lines.len()) {
                return Err(io::Error::other("the disk is full"));
            }
            lines.push((name.to_owned(), *request));
            Ok(())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn finish(self: Box<Self>) -> io::Result<()> {
            self.is_finished.store(true, Ordering::SeqCst);
            Ok(())
        }
    }

    fn no_error(error: RecordError) {
        panic!("{error}");
    }

    #[test]
    fn recorded_device_keeps_contract() {
        let recorder = Recorder::start(Box::new(Kept::default()), no_error).unwrap();
        conformance(&|size| recorder.record("disk", Arc::new(MemoryDevice::new(size))));
        assert!(recorder.finish().requests > 100);
    }

    #[test]
    fn requests_that_succeed_are_recorded_in_order() {
        let kept = Kept::default();
        let recorder = Recorder::start(Box::new(kept.clone()), no_error).unwrap();
        let first = recorder.record("first", Arc::new(MemoryDevice::new(8192)));
        let second = recorder.record("second", Arc::new(MemoryDevice::new(8192)));
        let again = recorder.record("first", Arc::new(MemoryDevice::new(8192)));
        let write = |offset| WriteRequest { offset, data: &[1; 7], fua: Fua::No };
        first.write(1, &[1; 5], Fua::Yes).unwrap();
        first.write(8192, &[1; 5], Fua::No).unwrap_err();
        let batch = second.write_batch(&[write(0), write(8190), write(10)]);
        assert!(batch[0].is_ok() && batch[1].is_err() && batch[2].is_ok());
        first.read(3, &mut [0; 9]).unwrap();
        first.read(3, &mut []).unwrap();
        again.flush().unwrap();
        second.discard(0, 4096, Fua::No).unwrap();
        second.write_zeroes(1, 2, Hole::Allowed, false, Fua::No).unwrap();
        second.status(0, 4096, 1).unwrap();
        assert_eq!(recorder.finish(), RecordSummary { requests: 7, is_complete: true });
        first.flush().unwrap();
        let lines = kept.lines.lock();
        let found: Vec<_> =
            lines.iter().map(|(name, r)| (name.as_str(), r.op, r.offset, r.len)).collect();
        let wanted = [
            ("first", RecordedOp::Write, 1, 5),
            ("second", RecordedOp::Write, 0, 7),
            ("second", RecordedOp::Write, 10, 7),
            ("first", RecordedOp::Read, 3, 9),
            ("first", RecordedOp::Flush, 0, 0),
            ("second", RecordedOp::Discard, 0, 4096),
            ("second", RecordedOp::WriteZeroes, 1, 2),
        ];
        assert_eq!(found, wanted);
        assert!(lines.iter().map(|(_, request)| request.time_ns).is_sorted());
        assert!(kept.is_finished.load(Ordering::SeqCst));
    }

    #[test]
    fn many_threads_lose_nothing() {
        let kept = Kept::default();
        let recorder = Recorder::start(Box::new(kept.clone()), no_error).unwrap();
        let device = recorder.record("disk", Arc::new(MemoryDevice::new(1 << 20)));
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let device = &device;
                scope.spawn(move || {
                    for number in 0..5000 {
                        device.read(thread * 5000 + number, &mut [0]).unwrap();
                    }
                });
            }
        });
        assert_eq!(recorder.finish(), RecordSummary { requests: 20_000, is_complete: true });
        let lines = kept.lines.lock();
        assert!(lines.iter().map(|(_, request)| request.time_ns).is_sorted());
        let mut offsets: Vec<_> = lines.iter().map(|(_, request)| request.offset).collect();
        for thread in 0..4 {
            let own = thread * 5000..(thread + 1) * 5000;
            assert!(offsets.iter().filter(|&&offset| own.contains(&offset)).is_sorted());
        }
        offsets.sort_unstable();
        assert!(offsets.into_iter().eq(0..20_000));
    }

    #[test]
    fn failed_record_log_ends_recording_only() {
        let kept = Kept { room: Some(3), ..Kept::default() };
        let (told, hear) = mpsc::channel();
        let tell = move |error: RecordError| told.send(error.to_string()).unwrap();
        let recorder = Recorder::start(Box::new(kept.clone()), tell).unwrap();
        let device = recorder.record("disk", Arc::new(MemoryDevice::new(8192)));
        for _ in 0..10 {
            device.flush().unwrap();
        }
        let error = hear.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(error.contains("the disk is full"), "{error}");
        device.write(0, &[1], Fua::No).unwrap();
        assert_eq!(recorder.finish(), RecordSummary { requests: 3, is_complete: false });
        assert_eq!(kept.lines.lock().len(), 3);
    }

    #[test]
    fn slow_record_log_has_no_gap() {
        let kept = Kept::default();
        let (told, hear) = mpsc::channel();
        let tell = move |error: RecordError| told.send(error.to_string()).unwrap();
        let recorder = Recorder::with_room(Box::new(kept.clone()), tell, 50).unwrap();
        let device = recorder.record("disk", Arc::new(MemoryDevice::new(8192)));
        let gate = kept.gate.lock();
        // 50 may be on the writer's side already when the next 50 fill the room again.
        for number in 0..200 {
            device.read(number, &mut [0]).unwrap();
        }
        drop(gate);
        let error = hear.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(error.contains("as fast as requests come"), "{error}");
        let RecordSummary { requests: written, is_complete } = recorder.finish();
        assert!((50..200).contains(&written) && !is_complete, "{written}");
        let lines = kept.lines.lock();
        assert!(lines.iter().map(|(_, request)| request.offset).eq(0..written));
        assert!(kept.is_finished.load(Ordering::SeqCst));
    }
}
