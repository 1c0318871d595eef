//! The thread for write-back.
//!
//! It begins when more than half of the cache's pages are dirty and ends at 45%. It also writes
//! evicted pages when half of their room is used, so that requests seldom wait for the backing
//! device. The watermarks are those of dm-writecache. After a failure it pauses and tries again. If
//! some pages fail, it continues with others first.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use everbyte_device::DeviceError;

use crate::cache::Cache;
use crate::write_back::WritebackTarget;

const HIGH_PERCENT: u64 = 50;
const LOW_PERCENT: u64 = 45;

/// Pause after a failure, and longest time between two checks for work.
const REST: Duration = Duration::from_secs(1);

/// A thread that writes dirty pages back. Dropping it stops it.
pub struct WritebackThread {
    cache: Arc<Cache>,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for WritebackThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl WritebackThread {
    /// Starts the thread. From now on a policy that weighs costs uses the measured times of the
    /// backing device.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(cache: &Arc<Cache>) -> io::Result<Self> {
        cache.state.lock().latency.measure();
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (work, stop) = (Arc::clone(cache), Arc::clone(&is_stopping));
        let run = move || run(&work, &stop);
        let thread = std::thread::Builder::new().name("write-back".to_owned()).spawn(run)?;
        Ok(Self { cache: Arc::clone(cache), is_stopping, thread: Some(thread) })
    }
}

impl Drop for WritebackThread {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        {
            // Under the lock, the thread is either before its check of the flag or waiting.
            let _state = self.cache.state.lock();
            self.cache.work.notify_all();
        }
        if let Some(thread) = self.thread.take() {
            // The outcome of a thread that panicked is of no use.
            let _ = thread.join();
        }
    }
}

fn run(cache: &Cache, is_stopping: &AtomicBool) {
    while !is_stopping.load(Ordering::SeqCst) {
        let failed = match cache.next_work() {
            Some(work) => cache.write_back_work(&work, is_stopping).is_err(),
            None => false,
        };
        let mut state = cache.state.lock();
        if is_stopping.load(Ordering::SeqCst) {
            return;
        }
        // Checked under the lock of the wait, so no wake-up is lost. A failure always pauses.
        if failed || cache.work_in(&state).is_none() {
            cache.work.wait_for(&mut state, REST);
        }
    }
}

impl Cache {
    /// Writes back the pages that a [`WritebackThread`] would write now, on the caller's thread.
    /// Returns true if any were due. For callers with a fixed order of events in every run.
    ///
    /// # Errors
    /// Those of the backing device or of the volume. Unwritten pages stay dirty.
    pub fn write_back_due(&self) -> Result<bool, DeviceError> {
        let Some(work) = self.next_work() else { return Ok(false) };
        self.write_back_work(&work, &AtomicBool::new(false))?;
        Ok(true)
    }

    fn next_work(&self) -> Option<WritebackTarget> {
        self.work_in(&self.state.lock())
    }

    fn work_in(&self, state: &crate::state::State) -> Option<WritebackTarget> {
        // Evicted pages first: when their room is full, requests wait.
        if state.pending_writeback.len() * 2 >= self.settings.pending_pages_max() as usize {
            Some(WritebackTarget::Pending)
        } else if state.dirty.len() as u64 > self.share_of_pages(HIGH_PERCENT) {
            Some(WritebackTarget::Sweep)
        } else {
            None
        }
    }

    fn share_of_pages(&self, percent: u64) -> u64 {
        (self.settings.dram_pages() + self.settings.scm_pages()) * percent / 100
    }

    fn write_back_work(
        &self,
        work: &WritebackTarget,
        is_stopping: &AtomicBool,
    ) -> Result<(), DeviceError> {
        let mut first_error = None;
        loop {
            let written = self.written_back_pages();
            if let Err(error) = self.write_back(work) {
                // With progress the other pages are tried before the error is returned.
                if self.written_back_pages() == written {
                    return Err(error);
                }
                first_error.get_or_insert(error);
            }
            let dirty_pages = self.state.lock().dirty.len() as u64;
            let is_done = !matches!(work, WritebackTarget::Sweep)
                || dirty_pages <= self.share_of_pages(LOW_PERCENT);
            if is_done || is_stopping.load(Ordering::SeqCst) {
                return first_error.map_or(Ok(()), Err);
            }
        }
    }

    /// Wakes the thread, if there is something to write back.
    pub(crate) fn wake_writeback_thread(&self) {
        if self.next_work().is_some() {
            self.work.notify_one();
        }
    }
}
