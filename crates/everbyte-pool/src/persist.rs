//! Durability as types: what was stored is `Dirty`, what was written back is `InFlight`, and only
//! a fence makes it `Durable`.
//!
//! Owns no state. Used where the log commits and where a checkpoint completes, so that a missing
//! flush or fence there does not compile. The value carried along is what becomes durable.

use everbyte_media::{MediaError, Medium};

/// Stored with ordinary stores; may or may not reach the medium.
#[must_use = "dirty data is lost in a crash until it is flushed and fenced"]
pub(crate) struct Dirty<T>(T);

/// Being written back, or streamed; durable after the next fence of this thread.
#[must_use = "flushed data is not durable before a fence"]
pub(crate) struct InFlight<T>(T);

/// On the medium.
pub(crate) struct Durable<T>(T);

impl<T> Dirty<T> {
    /// Declares `what` to be stored and not yet written back.
    pub(crate) fn new(what: T) -> Self {
        Self(what)
    }

    /// Writes it back: `write_back` must flush every line of it.
    pub(crate) fn flush(self, write_back: impl FnOnce(&T)) -> InFlight<T> {
        write_back(&self.0);
        InFlight(self.0)
    }
}

impl<T> InFlight<T> {
    /// Declares `what` to be streamed or flushed already.
    pub(crate) fn streamed(what: T) -> Self {
        Self(what)
    }

    /// Waits until it is on the medium.
    ///
    /// # Errors
    /// The medium's; then `what` is neither certainly durable nor certainly not.
    pub(crate) fn fence<M: Medium>(self, medium: &M) -> Result<Durable<T>, MediaError> {
        medium.fence()?;
        Ok(Durable(self.0))
    }
}

impl<T> Durable<T> {
    /// What is durable.
    pub(crate) fn get(&self) -> &T {
        &self.0
    }

    /// What is durable.
    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}
