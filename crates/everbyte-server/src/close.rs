//! The end of an open pool.
//!
//! Invariants: a pool is marked clean only if it contains every answered write. Closing waits a
//! bounded time: it makes durable as much as it can, and leaves the rest behind.

use std::sync::atomic::Ordering;

use everbyte::Error;
use everbyte::error::LostWrites;

use crate::open_pool::OpenPool;

impl OpenPool {
    /// Makes everything durable and marks the pool clean, unless it is a private copy. Nothing is
    /// opened or changed afterwards. Clients must have been disconnected. Waits a few seconds for a
    /// silent backing device, and for clients asking for the outcome of their mounts. Then ends the
    /// control socket.
    ///
    /// # Errors
    /// [`Error::Lost`] if something may be lost; [`Error::Pool`] if the medium failed. The next opening recovers as after a
    /// crash.
    pub fn close(&self) -> Result<(), Error> {
        if self.is_closing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.volumes.await_openings();
        if !self.pool.is_read_only() {
            self.end_mounts();
        }
        let closed = self.pool.clone().close();
        self.close_status
            .report(closed.as_ref().map_or_else(|why| Err(why.to_string()), |()| Ok(())));
        let control = self.control.lock().take();
        drop(control);
        closed
    }

    /// Unmounts all file systems. All writes answered by their mounts are in the pool already.
    fn end_mounts(&self) {
        for volume in self.volumes.all_opened() {
            if let Some(Err(why)) = volume.mounts.as_ref().map(|mounts| mounts.end()) {
                tracing::error!(volume = volume.name(), "the mount could not be ended: {why}");
                self.pool.report_loss(LostWrites::new(volume.name(), &why));
            }
        }
    }
}
