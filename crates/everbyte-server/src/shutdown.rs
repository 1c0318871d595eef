//! The end of an open pool.
//!
//! Invariants: a pool is marked clean only if everything that was answered is in it. Closing does not
//! wait for ever: it makes everything durable that it can, and leaves what hangs behind.

use std::sync::atomic::Ordering;

use everbyte_pool::PoolError;

use crate::open_pool::OpenPool;

/// Reasons for which a pool was not closed cleanly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Unflushed writes that were answered could not be made durable. Everything else was, and the
    /// pool is not marked clean.
    #[error(
        "what was written and not flushed may be lost, and the pool is not marked clean: {}",
        lost.join("; ")
    )]
    Lost {
        /// The volumes, each with the reason.
        lost: Vec<String>,
    },
    /// The pool itself could not be closed.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl OpenPool {
    /// Makes everything durable and marks the pool clean, unless it is a private copy. Nothing is
    /// opened or changed afterwards. Clients must have been disconnected. Waits a few seconds for a
    /// backing device that is silent, and for those who are to hear how their mounts ended. Then ends
    /// the control socket.
    ///
    /// # Errors
    /// Something may be lost, or the medium failed. The next opening recovers as after a crash.
    pub fn close(&self) -> Result<(), CloseError> {
        if self.is_closing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let closed = if self.unchanging() { Ok(()) } else { self.close_volumes() };
        self.ending.tell(closed.as_ref().map_or_else(|why| Err(why.to_string()), |()| Ok(())));
        let control = self.control.lock().take();
        drop(control);
        closed
    }

    fn close_volumes(&self) -> Result<(), CloseError> {
        self.volumes.await_openings();
        let volumes = self.volumes.all_opened();
        let mut closing: Vec<_> =
            volumes.iter().filter_map(|v| Some((v.name(), v.handle.close()?))).collect();
        let mut lost = Vec::new();
        for (name, closing) in &mut closing {
            if let Err(why) = closing.flush() {
                tracing::error!(volume = name, "the volume could not be made durable: {why}");
                lost.push(format!("volume {name}: {why}"));
            }
        }
        // They have all begun to end, so that what is silent is waited for once.
        closing.into_iter().for_each(|(_, closing)| closing.end());
        if lost.is_empty() {
            return Ok(self.pool().close()?);
        }
        for volume in &volumes {
            if let Err(error) = volume.volume.flush() {
                tracing::error!(volume = volume.name(), %error, "the last checkpoint failed");
                lost.push(format!("volume {}: {error}", volume.name()));
            }
        }
        Err(CloseError::Lost { lost })
    }
}
