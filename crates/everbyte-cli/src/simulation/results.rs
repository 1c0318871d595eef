//! Results of simulations, one row each, and figures of a row.

use everbyte_policy::sim::{Kind, Outcome};
use serde::{Deserialize, Serialize};

use super::args::Setting;

/// One simulation and its outcome.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The trace's name.
    pub(crate) trace: String,
    pub(crate) setting: Setting,
    pub(crate) outcome: Outcome,
}

impl Row {
    pub(crate) fn small_share(&self) -> f64 {
        let scm = &self.outcome.scm;
        as_f64(scm.writes_up_to_512_bytes) / as_f64(scm.writes.max(1))
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.outcome.elapsed_ns / 1e9
    }

    /// With the write-back of dirty pages at the end.
    pub(crate) fn seconds_with_drain(&self) -> f64 {
        self.outcome.elapsed_with_drain_ns / 1e9
    }

    /// The same, but a policy of one tier is charged the memory time of the two tiers of `everbyte`, if the run has
    /// it. The rest of the difference is residency.
    pub(crate) fn seconds_with_same_memory(&self, rows: &[Self]) -> Option<f64> {
        // Such a policy has paid for its memory already.
        if self.setting.policy.has_two_tiers() {
            return Some(self.seconds_with_drain());
        }
        let wanted = Setting { policy: Kind::Everbyte, ..self.setting.clone() };
        // Without `everbyte` at the same setting there is no memory time to charge.
        let ours = rows.iter().find(|row| row.trace == self.trace && row.setting == wanted)?;
        let memory_ns = ours.outcome.elapsed_with_drain_ns - ours.outcome.backing_with_drain_ns;
        Some((self.outcome.backing_with_drain_ns + memory_ns) / 1e9)
    }
}

/// A count as a fraction's part; exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of one simulation stay below 2^53")]
pub(crate) fn as_f64(count: u64) -> f64 {
    count as f64
}

/// The row of the paper's baseline with the same trace, size and rest, if the run has it.
pub(crate) fn baseline_of<'a>(row: &Row, rows: &'a [Row]) -> Option<&'a Row> {
    let wanted = Setting { policy: Kind::ClockMigration, ..row.setting.clone() };
    rows.iter().find(|other| other.trace == row.trace && other.setting == wanted)
}
