//! The thread that writes pages back.
//!
//! It begins when more than half of the cache's pages are dirty and ends at 45%; and it writes
//! evicted pages when half of their room is taken, so that requests seldom wait for storage. The
//! watermarks are those of dm-writecache. When storage fails it rests and tries again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use everbyte_device::DeviceError;

use crate::cache::Cache;
use crate::write_back::Choice;

const HIGH_PERCENT: u64 = 50;
const LOW_PERCENT: u64 = 45;

/// Rest after a failure, and longest time between two looks at what there is to do.
const REST: Duration = Duration::from_secs(1);

/// Writes pages back as long as it lives.
pub struct Writer {
    cache: Arc<Cache>,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(cache: &Arc<Cache>) -> io::Result<Self> {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (work, stop) = (Arc::clone(cache), Arc::clone(&is_stopping));
        let run = move || run(&work, &stop);
        let thread = std::thread::Builder::new().name("write-back".to_owned()).spawn(run)?;
        Ok(Self { cache: Arc::clone(cache), is_stopping, thread: Some(thread) })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        {
            // So that the thread is either before its look at the flag, or waiting.
            let _state = self.cache.state.lock();
            self.cache.work.notify_all();
        }
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing to tell.
            let _ = thread.join();
        }
    }
}

fn run(cache: &Cache, is_stopping: &AtomicBool) {
    while !is_stopping.load(Ordering::SeqCst) {
        let failed = match cache.next_work() {
            Some(work) => cache.write_down(&work, is_stopping).is_err(),
            None => false,
        };
        let mut state = cache.state.lock();
        if is_stopping.load(Ordering::SeqCst) {
            return;
        }
        if failed || cache.work_in(&state).is_none() {
            cache.work.wait_for(&mut state, REST);
        }
    }
}

impl Cache {
    /// Writes back what a [`Writer`] would write now, on the caller's thread; says whether
    /// anything was due. For those who want the same to happen in every run.
    ///
    /// # Errors
    /// The storage's or the volume's; pages that were not written stay dirty.
    pub fn write_back_due(&self) -> Result<bool, DeviceError> {
        let Some(work) = self.next_work() else { return Ok(false) };
        self.write_down(&work, &AtomicBool::new(false))?;
        Ok(true)
    }

    fn next_work(&self) -> Option<Choice> {
        self.work_in(&self.state.lock())
    }

    fn work_in(&self, state: &crate::state::State) -> Option<Choice> {
        if state.aside.len() * 2 >= self.settings.aside_pages_max() as usize {
            Some(Choice::Aside)
        } else if state.dirty.len() as u64 > self.share_of_pages(HIGH_PERCENT) {
            Some(Choice::Sweep)
        } else {
            None
        }
    }

    fn share_of_pages(&self, percent: u64) -> u64 {
        (self.settings.dram_pages() + self.settings.scm_pages()) * percent / 100
    }

    fn write_down(&self, work: &Choice, is_stopping: &AtomicBool) -> Result<(), DeviceError> {
        self.write_back(work)?;
        while matches!(work, Choice::Sweep)
            && self.state.lock().dirty.len() as u64 > self.share_of_pages(LOW_PERCENT)
            && !is_stopping.load(Ordering::SeqCst)
        {
            self.write_back(work)?;
        }
        Ok(())
    }

    /// Wakes the thread, if there is something to do.
    pub(crate) fn wake_writer(&self) {
        if self.next_work().is_some() {
            self.work.notify_one();
        }
    }
}
