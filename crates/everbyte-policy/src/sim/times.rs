//! The time of the steps that an [`Outcome`] counts.
//!
//! The model: steps do not overlap. Memory costs a part per operation and a part per 64-byte line
//! (from the counts, partial lines as their share). The backing device costs a part per page and a
//! part per jump. A step jumps unless it continues at most [`GAP_PAGES`] pages after the previous
//! one of the same kind. A device with a head moves it between reading and writing once a batch of
//! writes. So writing back in the order of sectors pays as it does on the device.
//!
//! The time with a drain adds the write-back of the dirty pages at the end, in the order of sectors
//! and as one batch, see [`Drain`]. The model's form is our own assumption, and so is that nothing
//! overlaps.
//!
//! [`GAP_PAGES`]: super::BackingCosts::GAP_PAGES

use super::drain::Drain;
use super::outcome::Outcome;
use crate::access::PAGE_BYTES;
use crate::costs::{Costs, MemoryCosts};

impl Costs {
    /// Returns the time that an outcome's steps take one after the other, in nanoseconds.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a model of times needs no 53 bits")]
    pub fn elapsed_ns(&self, outcome: &Outcome) -> f64 {
        let memory = |costs: &MemoryCosts, operations: u64, read: u64, written: u64| {
            operations as f64 * costs.operation_ns
                + read as f64 / 64.0 * costs.read_line_ns
                + written as f64 / 64.0 * costs.write_line_ns
        };
        let scm_operations = outcome.scm.reads + outcome.scm.writes;
        memory(
            &self.dram,
            outcome.dram_accesses,
            outcome.dram_bytes_read,
            outcome.dram_bytes_written,
        ) + memory(&self.scm, scm_operations, outcome.scm.bytes_read, outcome.scm.bytes)
            + self.backing_ns(outcome)
    }

    /// Returns the backing device's part of [`Costs::elapsed_ns`], in nanoseconds.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a model of times needs no 53 bits")]
    pub fn backing_ns(&self, outcome: &Outcome) -> f64 {
        let (steps, backing) = (&outcome.backing, &self.backing);
        steps.pages_read as f64 * backing.read_page_ns
            + steps.read_jumps as f64 * backing.read_jump_ns
            + steps.pages_written as f64
                * (backing.write_page_ns + backing.turn_ns / f64::from(backing.batch_writes))
            + steps.write_jumps as f64 * backing.write_jump_ns
    }

    /// Returns the time that a last write-back takes, in nanoseconds. The device turns to it once.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a model of times needs no 53 bits")]
    pub fn drain_ns(&self, drain: &Drain) -> f64 {
        let lines = f64::from(PAGE_BYTES / 64);
        let from_dram = (drain.pages - drain.pages_from_scm) as f64;
        from_dram * lines * self.dram.read_line_ns
            + drain.pages_from_scm as f64 * (self.scm.operation_ns + lines * self.scm.read_line_ns)
            + self.backing_drain_ns(drain)
    }

    /// Returns the backing device's part of [`Costs::drain_ns`], in nanoseconds.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a model of times needs no 53 bits")]
    pub fn backing_drain_ns(&self, drain: &Drain) -> f64 {
        let turns = if drain.pages > 0 { 1.0 } else { 0.0 };
        drain.pages as f64 * self.backing.write_page_ns
            + drain.write_jumps as f64 * self.backing.write_jump_ns
            + turns * self.backing.turn_ns
    }
}
