//! Resizing while the volume is in use.
//!
//! Invariants: the size word is the truth; beyond it nothing is mapped that a reader could see
//! again after a later growth. Growing clears what lies beyond the old end before the size
//! changes; shrinking changes the size durably before it unmaps. A crash in between is mended by
//! `trim_tail` when the volume is opened.

use everbyte_media::Medium;
use everbyte_pool::format::encode_word;
use everbyte_pool::{BatchOutcome, BlockRun, PoolError, check_readable};

use crate::volume::BlockVolume;

impl<M: Medium> BlockVolume<M> {
    /// Makes the volume `size_bytes` large, a positive multiple of 512. Durable when it returns.
    /// Bytes beyond a smaller size are lost; bytes gained read as zeroes.
    ///
    /// # Errors
    /// The size is impossible, the volume read-only, the pool too full for a larger direct table,
    /// or the medium's.
    pub fn resize(&self, size_bytes: u64) -> Result<(), PoolError> {
        self.pool().check_volume_size(size_bytes)?;
        self.check_writable()?;
        let _op = self.volume().begin_op();
        let _blocks = self.extent().locks().write_all();
        let old = self.size_bytes();
        if size_bytes == old {
            return Ok(());
        }
        if size_bytes > old {
            self.trim_tail()?;
        }
        let fresh = self.new_table(size_bytes)?;
        // A direct map may lie elsewhere then.
        self.extent().forget_leaves();
        let changed = self.change_size(size_bytes, fresh);
        if let (Err(_), Some(table)) = (&changed, fresh) {
            self.pool().return_run(table);
        }
        let epoch = changed?;
        fresh.into_iter().for_each(|table| self.volume().adopt_run(table));
        self.extent().set_size_bytes(size_bytes);
        self.volume().complete(epoch)?;
        if size_bytes < old {
            self.trim_tail()?;
        }
        Ok(())
    }

    /// A larger table, if the volume needs one.
    fn new_table(&self, new: u64) -> Result<Option<BlockRun>, PoolError> {
        match self.extent().table_blocks_for(new) {
            0 => Ok(None),
            blocks => self.pool().take_run("the volume's larger map", blocks).map(Some),
        }
    }

    /// Changes size and table in one commit; returns its epoch. If it fails, nothing names the
    /// `fresh` table, and nothing is on its way there.
    fn change_size(&self, new: u64, fresh: Option<BlockRun>) -> Result<u64, PoolError> {
        loop {
            let mut batch = self.volume().begin_batch()?;
            self.extent().plan_resize(&mut batch, new, fresh)?;
            let size_at = self.volume().size_at();
            let now = self.medium().load_word(size_at);
            check_readable(self.medium(), "volume size", size_at, 8)?;
            batch.change_word_once(size_at, now, encode_word(new / 512));
            // At most one block of words is logged, which any log has room for.
            if let BatchOutcome::Done(epoch) = batch.commit()? {
                return Ok(epoch);
            }
            self.volume().make_room()?;
        }
    }
}
