//! Resize of a volume in use.
//!
//! Invariants: the size word is authoritative. No block beyond it is mapped that a later growth could expose.
//! A growth clears the range beyond the old end before it changes the size. A shrink changes the size durably
//! before it unmaps. After a crash in between, `trim_tail` unmaps the rest at the next opening.

use everbyte_media::Medium;
use everbyte_pool::format::encode_word;
use everbyte_pool::{BatchOutcome, PoolError, check_readable};

use crate::volume::BlockVolume;

impl<M: Medium> BlockVolume<M> {
    /// Changes the size to `size_bytes`, a positive multiple of 512. Durable when it returns. Bytes beyond a smaller
    /// size are lost. Gained bytes read as zeroes.
    ///
    /// # Errors
    /// The size is impossible, the volume is read-only, or the medium fails.
    pub fn resize(&self, size_bytes: u64) -> Result<(), PoolError> {
        self.pool().check_volume_size(size_bytes)?;
        self.check_writable()?;
        let _op = self.volume().begin_op();
        // All locks: no request may see the old size with the new map, or the reverse.
        let _blocks = self.extent().locks().write_all();
        let old = self.size_bytes();
        if size_bytes == old {
            return Ok(());
        }
        // Before the growth: leftovers beyond the old end would become visible.
        if size_bytes > old {
            self.trim_tail()?;
        }
        let epoch = self.change_size(size_bytes)?;
        self.extent().set_size_bytes(size_bytes);
        self.volume().complete(epoch)?;
        // After the new size is durable: a crash before would leave the old size without its bytes.
        if size_bytes < old {
            self.trim_tail()?;
        }
        Ok(())
    }

    /// Changes the size in a separate batch. Returns its epoch.
    fn change_size(&self, new: u64) -> Result<u64, PoolError> {
        loop {
            let mut batch = self.volume().begin_batch()?;
            let size_at = self.volume().size_at();
            let now = self.medium().load_word(size_at);
            check_readable(self.medium(), "volume size", size_at, 8)?;
            batch.change_word_once(size_at, now, encode_word(new / 512));
            // The record is one word: every log has room for it.
            if let BatchOutcome::Done(epoch) = batch.commit()? {
                return Ok(epoch);
            }
            self.volume().make_room()?;
        }
    }
}
