//! Durability as types: stored data is `Dirty`, data in write-back is `InFlight`, and only a fence makes it
//! `Durable`.
//!
//! Invariant: the holder of a token has done its operation. Tokens are made only here: by a store, a stream,
//! a flush, a fence. So a missing flush or fence does not compile at the users of tokens: a writer's commit,
//! and the store of a checkpoint record.

use everbyte_media::{MediaError, Medium, PoolOffset};
use smallvec::SmallVec;

/// Stored with ordinary stores; may or may not reach the medium.
#[must_use = "dirty data is lost in a crash until it is flushed and fenced"]
#[derive(Default)]
pub(crate) struct Dirty(SmallVec<[(PoolOffset, u64); 2]>);

/// Being written back, or streamed, by this thread; durable after its next fence.
#[must_use = "what is in flight is not durable before a fence"]
pub(crate) struct InFlight<T>(T);

/// On the medium.
pub(crate) struct Durable<T>(T);

impl Dirty {
    /// Stores `bytes` at `at`.
    pub(crate) fn store<M: Medium>(&mut self, medium: &M, at: PoolOffset, bytes: &[u8]) {
        medium.store(at, bytes);
        self.0.push((at, bytes.len() as u64));
    }

    /// Stores the word at `at`.
    pub(crate) fn store_word<M: Medium>(&mut self, medium: &M, at: PoolOffset, value: u64) {
        medium.store_word(at, value);
        self.0.push((at, 8));
    }

    /// Writes all of it back.
    pub(crate) fn flush<M: Medium>(self, medium: &M) -> InFlight<()> {
        InFlight::flush(medium, self.0, ())
    }
}

impl InFlight<()> {
    /// Streams `bytes` to `at`.
    pub(crate) fn stream<M: Medium>(medium: &M, at: PoolOffset, bytes: &[u8]) -> Self {
        medium.stream(at, bytes);
        Self(())
    }

    /// Waits until it is on the medium, where nothing stands for it.
    ///
    /// # Errors
    /// The medium's; it is still in flight then.
    pub(crate) fn wait<M: Medium>(&self, medium: &M) -> Result<(), MediaError> {
        medium.fence()
    }
}

impl<T> InFlight<T> {
    /// Writes back `ranges`, each an address and a length in bytes, represented by `what`.
    pub(crate) fn flush<M: Medium>(
        medium: &M,
        ranges: impl IntoIterator<Item = (PoolOffset, u64)>,
        what: T,
    ) -> Self {
        for (at, len) in ranges {
            medium.flush(at, len);
        }
        Self(what)
    }

    /// The same state for a representative.
    pub(crate) fn with<U>(self, what: U) -> InFlight<U> {
        InFlight(what)
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
    /// Returns the durable value.
    pub(crate) fn get(&self) -> &T {
        &self.0
    }

    /// The same state for a representative.
    pub(crate) fn with<U>(self, what: U) -> Durable<U> {
        Durable(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does not compile if one of the types implements the trait: then there are two `of`.
    macro_rules! assert_not_implemented {
        ($tokens:ty: $($name:path),+) => {$({
            trait Of<Which> {
                fn of() {}
            }
            struct Implemented;
            impl<T: ?Sized> Of<()> for T {}
            impl<T: ?Sized + $name> Of<Implemented> for T {}
            <$tokens as Of<_>>::of();
        })+};
    }

    #[test]
    fn persist_tokens_require_their_step() {
        assert_not_implemented!(Durable<u64>: Clone, Copy, Default, From<u64>);
        assert_not_implemented!(Durable<()>: Clone, Copy, Default, From<()>);
        assert_not_implemented!(InFlight<u64>: Clone, Copy, Default, From<u64>);
        assert_not_implemented!(InFlight<()>: Clone, Copy, Default, From<()>);
        assert_not_implemented!(Dirty: Clone, Copy);
    }
}
