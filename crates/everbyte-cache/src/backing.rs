//! Flushes of the backing device, and repetition of lost changes.
//!
//! Invariants: one flush at a time, and its outcome is noted before the next one begins, because a
//! system reports a failure to one flush only (lemma C6 of `docs/proofs.md`). No thread waits for
//! busy pages while it holds that lock, because their owner may wait for the lock.

use everbyte_device::unflushed::Content;
use everbyte_device::{DeviceError, Fua, Hole};

use crate::cache::Cache;
use crate::layout::pages_of;

impl Cache {
    /// Counts a failed request of the backing device and returns the error for the client.
    pub(crate) fn backing_failed(&self, offset: u64, len: u64, error: &DeviceError) -> DeviceError {
        self.state.lock().counts.stats.backing_errors += 1;
        tracing::warn!(backing = %self.settings.backing, %error, "the backing device failed");
        let reason = format!("{}: {error}", self.settings.backing);
        DeviceError::Media { offset, len, reason }
    }

    /// Flushes the backing device.
    pub(crate) fn flush_backing(&self) -> Result<(), DeviceError> {
        // Held until the outcome is noted: the system reports a failure to one flush only (C6).
        let _one_at_a_time = self.flushing.lock();
        self.state.lock().bypassed.begin_flush();
        // Changes from now on are not covered: `begin_flush` has separated them.
        let flushed = self.backing.flush().map_err(|error| {
            let size_bytes = self.settings.backing_bytes;
            self.backing_failed(0, size_bytes, &error)
        });
        let bypassed = &mut self.state.lock().bypassed;
        match &flushed {
            Ok(()) => bypassed.flushed(),
            Err(error) => bypassed.flush_failed(error),
        }
        flushed
    }

    /// Returns the number of failed flushes of the backing device, for [`Cache::flush_since`].
    pub(crate) fn flushes_failed(&self) -> u64 {
        self.state.lock().bypassed.failures()
    }

    /// Flushes the backing device, with everything written there since `failures` was taken.
    ///
    /// # Errors
    /// Also if another thread's flush failed in the time between, because it may have lost those
    /// writes.
    pub(crate) fn flush_since(&self, failures: u64) -> Result<(), DeviceError> {
        self.flush_backing()?;
        // A failure of another flush may have dropped these writes, and ours would still succeed
        // (C4).
        if self.flushes_failed() == failures {
            return Ok(());
        }
        Err(self.failed_meanwhile())
    }

    fn failed_meanwhile(&self) -> DeviceError {
        let reason = "another flush of the backing device failed meanwhile".to_owned();
        DeviceError::Media { offset: 0, len: self.settings.backing_bytes, reason }
    }

    /// Makes the bypassing changes durable, after repeating those that a failed flush may have
    /// lost. The caller has no busy pages.
    pub(crate) fn flush_bypassed(&self) -> Result<(), DeviceError> {
        if self.state.lock().bypassed.is_empty() {
            return Ok(());
        }
        // Before the flush, which must cover the repeated changes (C7). Its error waits: the flush
        // still serves the others.
        let redone = self.redo_lost();
        self.flush_backing()?;
        redone?;
        if self.state.lock().bypassed.has_lost() {
            return Err(self.failed_meanwhile());
        }
        Ok(())
    }

    /// Repeats every lost change.
    ///
    /// # Errors
    /// The first one, after every change was tried.
    fn redo_lost(&self) -> Result<(), DeviceError> {
        let (mut at, mut first_error) = (0, None);
        loop {
            let mut state = self.state.lock();
            let Some((offset, content)) = state.bypassed.lost_from(at) else { break };
            let pages = pages_of(offset, content.len());
            if state.is_busy(&pages) {
                // The owner of the pages may change them.
                self.freed.wait(&mut state);
                continue;
            }
            // Otherwise a newer write of the range could be overwritten by the repetition.
            state.begin_busy(pages.clone());
            let failures = state.bypassed.failures();
            drop(state);
            let redone = self.redo(offset, &content);
            let mut state = self.end_busy(&[pages]);
            // A failed change is not tried again in this round, so the loop ends.
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
            Content::Bytes(bytes) => self.backing.write(offset, bytes, Fua::No),
            // A hole was allowed, so the repetition may free the space as a trim does.
            Content::Zeroes(len, Hole::Allowed) => self.backing.discard(offset, *len, Fua::No),
            Content::Zeroes(len, hole) => {
                self.backing.write_zeroes(offset, *len, *hole, false, Fua::No)
            }
        };
        done.map_err(|error| self.backing_failed(offset, content.len(), &error))
    }
}
