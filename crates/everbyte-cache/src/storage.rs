//! Flushing the backing device, and making again what it lost.
//!
//! Invariants: one flush at a time, counted and noted before the next one begins, because the
//! system tells a failure to one flush only; nobody waits for pages that are busy while holding
//! that lock, because who has them may wait for it.

use everbyte_device::unflushed::Content;
use everbyte_device::{DeviceError, Fua, Hole};
use everbyte_plant::planted;

use crate::cache::Cache;
use crate::layout::pages_of;
use crate::plant::Bug;

impl Cache {
    /// The error of a request that storage failed.
    pub(crate) fn storage_failed(&self, offset: u64, len: u64, error: &DeviceError) -> DeviceError {
        self.state.lock().counts.stats.storage_errors += 1;
        tracing::warn!(storage = %self.settings.storage, %error, "the storage failed");
        let reason = format!("{}: {error}", self.settings.storage);
        DeviceError::Media { offset, len, reason }
    }

    /// Makes storage durable.
    pub(crate) fn flush_storage(&self) -> Result<(), DeviceError> {
        let _one_at_a_time = self.flushing.lock();
        self.state.lock().bypassed.begin_flush();
        let flushed = self.storage.flush().map_err(|error| {
            let size_bytes = self.settings.storage_bytes;
            self.storage_failed(0, size_bytes, &error)
        });
        let bypassed = &mut self.state.lock().bypassed;
        match &flushed {
            Ok(()) => bypassed.flushed(),
            Err(error) => bypassed.flush_failed(error),
        }
        flushed
    }

    /// Flushes of storage that failed so far. For [`Cache::flush_since`].
    pub(crate) fn flushes_failed(&self) -> u64 {
        self.state.lock().bypassed.failures()
    }

    /// Makes storage durable, with what was written there since `failures` was taken. A flush that
    /// failed meanwhile, on whichever thread, may have lost it.
    pub(crate) fn flush_since(&self, failures: u64) -> Result<(), DeviceError> {
        self.flush_storage()?;
        if self.flushes_failed() == failures || planted(Bug::OthersFlushIgnored) {
            return Ok(());
        }
        Err(self.failed_meanwhile())
    }

    fn failed_meanwhile(&self) -> DeviceError {
        let reason = "another flush of the storage failed meanwhile".to_owned();
        DeviceError::Media { offset: 0, len: self.settings.storage_bytes, reason }
    }

    /// Makes durable what storage was changed past the cache, after making again what a failed
    /// flush may have lost. The caller has no busy pages.
    pub(crate) fn flush_bypassed(&self) -> Result<(), DeviceError> {
        if self.state.lock().bypassed.is_empty() {
            return Ok(());
        }
        let redone = self.redo_lost();
        self.flush_storage()?;
        redone?;
        if self.state.lock().bypassed.has_lost() {
            return Err(self.failed_meanwhile());
        }
        Ok(())
    }

    /// Makes every lost change again.
    ///
    /// # Errors
    /// The first one. What could be made again is.
    fn redo_lost(&self) -> Result<(), DeviceError> {
        let (mut at, mut first_error) = (0, None);
        loop {
            let mut state = self.state.lock();
            let Some((offset, content)) = state.bypassed.lost_from(at) else { break };
            let pages = pages_of(offset, content.len());
            if state.is_busy(&pages) {
                // Whoever has them may change them.
                self.freed.wait(&mut state);
                continue;
            }
            state.begin_busy(pages.clone());
            let failures = state.bypassed.failures();
            drop(state);
            let redone = self.redo(offset, &content);
            let mut state = self.end_busy(&[pages]);
            at = offset + content.len();
            match redone {
                Ok(()) => state.bypassed.changed(offset, content, failures),
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn redo(&self, offset: u64, content: &Content) -> Result<(), DeviceError> {
        let done = match content {
            Content::Bytes(bytes) => self.storage.write(offset, bytes, Fua::No),
            Content::Zeroes(len, Hole::Allowed) => self.storage.discard(offset, *len, Fua::No),
            Content::Zeroes(len, hole) => {
                self.storage.write_zeroes(offset, *len, *hole, false, Fua::No)
            }
        };
        done.map_err(|error| self.storage_failed(offset, content.len(), &error))
    }
}
