//! Execution of a batch: fills and records, one fence, then the stores.
//!
//! Invariant: when a word or line is stored to, its undo record is durable, or undo frees its block. The next
//! checkpoint waits for the batch, and then frees the batch's blocks.

use everbyte_media::{BLOCK_U64, MediaError, Medium};
use smallvec::SmallVec;

use super::{Batch, BatchOutcome, Fill, Step};
use crate::format::{WordItem, lines_record_bytes, words_record_bytes};
use crate::volume::WriteError;

/// Numbers of a batch's steps by sort; execution skips the search for an absent sort.
#[derive(Default)]
struct Sum {
    /// Bytes of log for the records.
    log_bytes: u64,
    /// Words to record.
    words: usize,
    /// Records of lines.
    lines: usize,
    /// Blocks to fill before the records are made.
    fills: usize,
    /// Blocks and words to fill over bytes that readers see until the batch is carried out.
    refills: usize,
}

impl<M: Medium> Batch<'_, '_, M> {
    /// Carries the batch out if the log has room for its records, and leaves the epoch.
    ///
    /// # Errors
    /// The medium's. If its fence failed, nothing is stored in place. If the medium failed during the commit,
    /// everything is stored but will never be durable.
    pub fn commit(mut self) -> Result<BatchOutcome, WriteError> {
        let volume = self.volume();
        let outcome = self.carry_out()?;
        drop(self);
        volume.medium().check()?;
        Ok(outcome)
    }

    /// Carries the batch out within the epoch. The drop of the batch leaves the epoch. After it, the caller
    /// checks the medium for failed stores.
    pub(super) fn carry_out(&mut self) -> Result<BatchOutcome, WriteError> {
        let sum = self.sum();
        // Before the first record: a lane must not hold only some of a batch's records.
        if sum.log_bytes > self.writer.room_bytes() {
            // A checkpoint empties the lane. If even an empty lane is too small, only another plan helps.
            let fits_when_empty = sum.log_bytes <= self.volume().log_half_bytes();
            return Ok(if fits_when_empty {
                BatchOutcome::LogFull
            } else {
                BatchOutcome::TooLarge
            });
        }
        let epoch = self.writer.epoch();
        self.prepare(&sum)?;
        self.make()?;
        // The drop of the batch would abandon the remaining steps.
        self.steps.clear();
        Ok(BatchOutcome::Done(epoch))
    }

    fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        for step in &self.steps {
            match step {
                Step::Word { record, .. } => sum.words += usize::from(*record),
                Step::LogLines { lines, .. } => {
                    sum.log_bytes += lines_record_bytes(lines.count());
                    sum.lines += 1;
                }
                Step::Fill(fill) if !fill.is_in_place() => sum.fills += 1,
                Step::Fill(_) | Step::FillWord { .. } => sum.refills += 1,
                _ => {}
            }
        }
        if sum.words > 0 {
            sum.log_bytes += words_record_bytes(sum.words);
        }
        sum
    }

    /// Takes the steps before the fence.
    fn prepare(&mut self, sum: &Sum) -> Result<(), WriteError> {
        let Self { writer, steps, .. } = self;
        // Fills come first: the medium takes the streams while the records are made.
        for step in if_any(sum.fills, steps) {
            if let Step::Fill(fill) = step
                && !fill.is_in_place()
            {
                writer.fill_block(fill.to, fill.around, fill.start, fill.data);
            }
        }
        for step in if_any(sum.lines, steps) {
            if let Step::LogLines { block, lines } = *step {
                writer.log_lines(block, lines)?;
            }
        }
        if sum.words > 0 {
            let items: SmallVec<[WordItem; 16]> = steps.iter().filter_map(record_of).collect();
            writer.log_words(&items)?;
        }
        // After the planning: a range may have failed since its steps were planned.
        check_sources(writer.volume().medium(), steps)?;
        // Nothing fails from here to the fence. So fills over a block's own old bytes come here: a
        // failed record must leave these bytes.
        for step in if_any(sum.refills, steps) {
            match step {
                Step::Fill(fill) if fill.is_in_place() => {
                    writer.fill_block(fill.to, fill.around, fill.start, fill.data);
                }
                Step::FillWord { at, new } => writer.fill(*at, &new.to_le_bytes()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Fences, and takes the steps after the fence.
    fn make(&mut self) -> Result<(), WriteError> {
        let Self { writer, steps, .. } = self;
        // The records and fills are durable now, so recovery can undo any of the following stores.
        let mut committed = writer.commit()?;
        // In the order of planning, so a word changed twice gets its last value.
        for step in steps.iter() {
            match *step {
                Step::Store { at, data } => committed.store(at, data),
                Step::Word { at, new, .. } => committed.store_word(at, new),
                Step::Free(block) => committed.defer_free(block),
                Step::FreeRun(run) => committed.defer_free_run(run),
                _ => {}
            }
        }
        Ok(())
    }

    /// Drops the whole plan. Fences the streams and records first: another thread may allocate the blocks,
    /// and cannot fence this thread's streams. If the medium fails here, the next request fails too.
    fn abandon(&mut self) {
        let _: Result<(), MediaError> = self.writer.commit_abandoned();
        self.cancel_allocs(0);
    }
}

impl<M: Medium> Drop for Batch<'_, '_, M> {
    fn drop(&mut self) {
        // A batch that was carried out has neither, and needs no second fence.
        if !self.steps.is_empty() || self.writer.is_unfenced() {
            self.abandon();
        }
    }
}

/// Returns `steps`, or none if `count` is 0.
fn if_any<'s, 'd>(count: usize, steps: &'s [Step<'d>]) -> &'s [Step<'d>] {
    if count > 0 { steps } else { &[] }
}

/// Checks that fills read readable old blocks and stores in place go to readable ranges: a lost store would
/// end every promise of the pool.
fn check_sources<M: Medium>(medium: &M, steps: &[Step<'_>]) -> Result<(), MediaError> {
    if !medium.has_poison() {
        return Ok(());
    }
    for step in steps {
        match *step {
            Step::Fill(Fill { around: Some(block), .. }) => {
                medium.check_range(block.offset(), BLOCK_U64)?;
            }
            Step::Word { at, .. } | Step::FillWord { at, .. } => medium.check_range(at, 8)?,
            Step::Store { at, data } => medium.check_range(at, data.len() as u64)?,
            _ => {}
        }
    }
    Ok(())
}

/// Returns the undo record of a step.
fn record_of(step: &Step<'_>) -> Option<WordItem> {
    match *step {
        Step::Word { at, old, record: true, .. } => Some(WordItem { target: at.0, old }),
        _ => None,
    }
}
