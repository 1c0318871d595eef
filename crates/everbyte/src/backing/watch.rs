//! Detects a silent backing device, and waits for work with possible hangs in it.
//!
//! A disk or a server may be silent forever, and a thread waiting for it cannot be interrupted. If
//! work may wait for such a device, it runs on its own thread. Its user waits for the result as
//! long as the device makes progress. Work may take hours, but a single request may not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use everbyte_device::{
    BlockDevice, DeviceError, Extent, Fua, Hole, Passthrough, SendError, Transport, WriteRequest,
};
use parking_lot::Mutex;

/// Time between two looks at a device by the threads waiting for it.
const LOOK: Duration = Duration::from_millis(50);

/// The requests without an answer from a device.
#[derive(Default)]
pub struct IoWatchdog(Mutex<Unanswered>);

#[derive(Default)]
struct Unanswered {
    next: u64,
    since: BTreeMap<u64, Instant>,
}

/// A request, or another wait for a device, as long as it lives.
pub struct PendingRequest<'w> {
    watch: &'w IoWatchdog,
    number: u64,
}

impl IoWatchdog {
    /// A request begins; it is under way as long as the result lives.
    #[must_use]
    pub fn begin(&self) -> PendingRequest<'_> {
        // Numbers grow with the times, so the first entry is the oldest request.
        let mut unanswered = self.0.lock();
        let number = unanswered.next;
        unanswered.next += 1;
        unanswered.since.insert(number, Instant::now());
        PendingRequest { watch: self, number }
    }

    /// Time since the start of the oldest unanswered request; zero without such a request.
    #[must_use]
    pub fn stall_time(&self) -> Duration {
        let oldest = self.0.lock().since.first_key_value().map(|(_, since)| *since);
        oldest.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.watch.0.lock().since.remove(&self.number);
    }
}

/// Outcome of work on another thread.
#[derive(Debug)]
pub enum Outcome<T> {
    /// It is done.
    Done(T),
    /// The work continues, but its device has been silent for this time.
    Silent(Duration),
    /// It could not be begun, or its thread has panicked.
    Failed(String),
}

/// Work on its own thread.
pub struct TimedTask<T> {
    result: Result<mpsc::Receiver<T>, std::io::Error>,
    watch: Arc<IoWatchdog>,
    begun: Instant,
}

impl<T: Send + 'static> TimedTask<T> {
    /// Begins work with its requests under `watch`.
    pub fn begin(
        name: &str,
        watch: &Arc<IoWatchdog>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Self {
        let (send, receive) = mpsc::channel();
        // The send fails if the caller has stopped waiting for the result. This is not an error.
        let run = move || drop(send.send(work()));
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        Self { result: spawned.map(|_| receive), watch: Arc::clone(watch), begun: Instant::now() }
    }

    /// Waits for the result, unless the device has been silent for `silence_max` and the work has
    /// taken as long.
    pub fn wait(&self, silence_max: Duration) -> Outcome<T> {
        let result = match &self.result {
            Ok(result) => result,
            Err(error) => return Outcome::Failed(format!("no thread for it: {error}")),
        };
        loop {
            // In short waits: a device may fall silent at any time.
            match result.recv_timeout(LOOK) {
                Ok(done) => return Outcome::Done(done),
                Err(RecvTimeoutError::Disconnected) => {
                    return Outcome::Failed("its thread has panicked".to_owned());
                }
                Err(RecvTimeoutError::Timeout) => {
                    let silence = self.watch.stall_time();
                    // A silence before the start of this work does not count.
                    if silence.min(self.begun.elapsed()) >= silence_max {
                        return Outcome::Silent(silence);
                    }
                }
            }
        }
    }
}

/// A device with its requests under a watchdog.
pub struct Watched {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Sees its requests.
    pub watch: Arc<IoWatchdog>,
}

impl Transport for Watched {
    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: std::os::fd::BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        let _request = self.watch.begin();
        everbyte_device::send(&*self.device, (offset, len), prefix, socket)
    }
}

impl everbyte_device::Decorator for Watched {
    type Inner = dyn BlockDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Whole;

    fn inner(&self) -> &Self::Inner {
        &*self.device
    }

    fn transport(&self) -> Option<&dyn Transport> {
        Some(self)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let _request = self.watch.begin();
        self.device.read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        let _request = self.watch.begin();
        self.device.write(offset, data, fua)
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        let _request = self.watch.begin();
        self.device.write_batch(requests)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let _request = self.watch.begin();
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        let _request = self.watch.begin();
        self.device.discard(offset, len, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        let _request = self.watch.begin();
        self.device.write_zeroes(offset, len, hole, fast, fua)
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        let _request = self.watch.begin();
        self.device.status(offset, len, extents_max)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let _request = self.watch.begin();
        self.device.prefetch(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn task_with_answers_is_awaited() {
        let watch = Arc::new(IoWatchdog::default());
        let busy = Arc::clone(&watch);
        let work = TimedTask::begin("busy", &watch, move || {
            for _ in 0..30 {
                let _request = busy.begin();
                std::thread::sleep(Duration::from_millis(10));
            }
            7
        });
        assert!(matches!(work.wait(Duration::from_secs(60)), Outcome::Done(7)));
        assert_eq!(watch.stall_time(), Duration::ZERO);
    }

    #[test]
    fn stalled_task_keeps_its_result() {
        let watch = Arc::new(IoWatchdog::default());
        let (busy, gate) = (Arc::clone(&watch), Arc::new(Barrier::new(2)));
        let open = Arc::clone(&gate);
        let work = TimedTask::begin("silent", &watch, move || {
            let _request = busy.begin();
            gate.wait();
            8
        });
        assert!(matches!(work.wait(Duration::from_millis(10)), Outcome::Silent(_)));
        open.wait();
        assert!(matches!(work.wait(Duration::from_secs(60)), Outcome::Done(8)));
    }

    #[test]
    fn task_panic_is_reported() {
        let watch = Arc::new(IoWatchdog::default());
        let work: TimedTask<()> = TimedTask::begin("wrong", &watch, || panic!("as it should"));
        assert!(matches!(work.wait(Duration::from_secs(60)), Outcome::Failed(_)));
    }
}
