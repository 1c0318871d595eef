//! The crash state before each operation of a recorded workload.

use crate::medium::{Op, OpKind};
use crate::memory::{CrashState, Memory, Rules};
use crate::recovery_run::Recorded;
use crate::scenario::Scenario;

/// Stands before an operation of the workload, or at its end.
pub(crate) struct Walk<'a> {
    ops: &'a [Op],
    memory: Memory,
    done: usize,
    changed: bool,
    /// The remaining state for the oracle at the last new point.
    told: Option<(usize, u64)>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new<E>(recorded: &'a Recorded<E>, rules: Rules) -> Self {
        let memory = Memory::new(recorded.image.clone(), rules);
        Self { ops: &recorded.ops, memory, done: 0, changed: true, told: None }
    }

    /// The number of the operation to come. `None` once the walk is beyond the end.
    pub(crate) fn point(&self) -> Option<u64> {
        (self.done <= self.ops.len()).then_some(self.done as u64)
    }

    /// Returns true if a crash here differs for the oracle of `scenario` from the last new one: it
    /// could leave an image that the last state taken could not, or another event happened. The end
    /// of the workload is always new.
    pub(crate) fn is_new<S: Scenario>(
        &mut self,
        scenario: &S,
        recorded: &Recorded<S::Event>,
    ) -> bool {
        let point = self.done as u64;
        // A promise made without an operation changes the oracle, although the images are the same.
        let told = Some((recorded.crash(point, 0).events.len(), scenario.beside(point)));
        let is_new = self.changed || told != self.told || point == recorded.points();
        if is_new {
            self.told = told;
        }
        is_new
    }

    /// Returns the state after a crash here.
    pub(crate) fn crash_state(&mut self) -> CrashState {
        self.changed = false;
        self.memory.crash_state()
    }

    /// Makes the operation to come.
    pub(crate) fn advance(&mut self) {
        if let Some(op) = self.ops.get(self.done) {
            // Collected over skipped points as well, until the next state is taken.
            self.changed |= op.apply(&mut self.memory);
            if op.kind == OpKind::Fence {
                // A fence is the only operation that can make stores durable, so folding earlier
                // would find nothing.
                self.memory.fold();
            }
        }
        self.done += 1;
    }

    /// Returns the state after a crash before operation `point`.
    pub(crate) fn state_at(mut self, point: u64) -> CrashState {
        while self.point().is_some_and(|here| here < point) {
            self.advance();
        }
        self.crash_state()
    }
}
