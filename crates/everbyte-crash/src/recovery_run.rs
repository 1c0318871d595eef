//! Recovery of one image and its check, after any number of crashed recoveries.
//!
//! Knows nothing of the choice of images.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::decision_trace::{Choice, Learned, Plan};
use crate::medium::{Op, SimMedium};
use crate::memory::CrashState;
use crate::omission::{LabelledOmission, Part};
use crate::scenario::{Crash, Log, Scenario, Stamped};
use crate::step::Step;

/// A recorded workload.
pub(crate) struct Recorded<E> {
    pub(crate) image: Vec<u8>,
    pub(crate) ops: Vec<Op>,
    pub(crate) events: Vec<Stamped<E>>,
    omitted: Option<Arc<LabelledOmission>>,
    /// Most calls of a recovery and its check.
    calls_max: u64,
}

impl<E> Recorded<E> {
    pub(crate) fn new<S: Scenario<Event = E>>(scenario: &S, calls_max: u64) -> Self {
        let image = scenario.image();
        // Another object than the prepared medium: its contents are durable, as after a restart.
        let medium = Arc::new(SimMedium::from_image(image.clone()));
        let placed = |omission| Arc::new(LabelledOmission { omission, labels: scenario.labels() });
        let omitted = scenario.omission().map(placed);
        medium.omit_placed(made_by(Part::Workload, &omitted));
        medium.start_trace();
        let log = Log::new(Arc::clone(&medium));
        scenario.run(&medium, &log);
        Self { image, ops: medium.take_trace(), events: log.take(), omitted, calls_max }
    }

    /// A medium for recovery, with the image of `state` chosen by `plan`.
    pub(crate) fn boot(&self, state: &CrashState, plan: Plan) -> Arc<SimMedium> {
        let medium = state.boot(plan);
        medium.omit_placed(made_by(Part::Recovery, &self.omitted));
        // Recovery from a damaged image may loop without end. The limit makes this a failure.
        medium.limit_calls(self.calls_max);
        Arc::new(medium)
    }

    /// The workload's operations, as a crash point counts them.
    pub(crate) fn points(&self) -> u64 {
        self.ops.len() as u64
    }

    /// The crash before operation `point`, after `nested` crashed recoveries.
    pub(crate) fn crash(&self, point: u64, nested: usize) -> Crash<'_, E> {
        // An event between two operations counts for a crash before the second one.
        let happened = self.events.partition_point(|event| event.op <= point);
        Crash { point, points: self.points(), events: &self.events[..happened], nested }
    }
}

/// Returns the omission, if it concerns `part`.
fn made_by(part: Part, omitted: &Option<Arc<LabelledOmission>>) -> Option<Arc<LabelledOmission>> {
    omitted.clone().filter(|placed| placed.omission.is_made_by(part))
}

/// Recovers and checks the image on `medium`. Returns the number of recovery's operations.
pub(crate) fn recover_and_check<S: Scenario>(
    scenario: &S,
    medium: &Arc<SimMedium>,
    crash: &Crash<'_, S::Event>,
) -> Result<u64, String> {
    quietly(|| {
        let recovered = scenario.recover(Arc::clone(medium))?;
        // Before the check, whose operations are no crash points.
        let ops = medium.ops();
        // The check must see the mistake of the code and add none.
        medium.omit_placed(None);
        scenario.check(recovered, crash)?;
        Ok(ops)
    })
}

/// Runs recovery and returns the states after crashes before its operations `at`: fewer if recovery
/// did not reach them all.
pub(crate) fn capture<S: Scenario>(
    scenario: &S,
    medium: &Arc<SimMedium>,
    at: Vec<u64>,
) -> Vec<CrashState> {
    medium.start_capture(at);
    let taken = quietly(|| {
        let recovered = scenario.recover(Arc::clone(medium))?;
        let taken = medium.take_captured();
        // Operations of the drop, such as a clean shutdown, come after the end of recovery.
        drop(recovered);
        Ok(taken)
    });
    // A recovery that fails after the wanted operations has left their states. `image` reports the
    // failure itself.
    taken.unwrap_or_else(|_| medium.take_captured())
}

/// Makes a panic of `run` an error.
pub(crate) fn quietly<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        // A panic with a literal has a `&str`, one with a format a `String`.
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(format!("panicked: {}", text.as_deref().unwrap_or("with something else than text")))
    })
}

/// A crash and the recovery after it.
pub(crate) struct RecoveryRun {
    pub(crate) state: CrashState,
    /// Bytes of the state decided by recovery before it ended or crashed.
    pub(crate) learned: Vec<Learned>,
    pub(crate) choices: Vec<Choice>,
    /// Operations of recovery, also those beyond its crash; empty for the last one.
    pub(crate) ops: Vec<Op>,
}

/// Outcome of a series of recoveries.
pub(crate) enum Outcome {
    Fine,
    Failed(String),
    /// A script did not fit the questions.
    Diverged,
    /// A recovery made fewer operations than this.
    Unreached(u64),
}

/// Starts from the crash state `origin` of the workload at `point`, crashes recovery at each of
/// `steps`, and recovers and checks the image that `plan` picks from the last state. Returns one
/// recovery run for each crash; the first is of the workload's crash.
pub(crate) fn follow<S: Scenario>(
    scenario: &S,
    recorded: &Recorded<S::Event>,
    point: u64,
    origin: &CrashState,
    steps: &[Step],
    plan: &Plan,
) -> (Vec<RecoveryRun>, Outcome) {
    let mut state = origin.clone();
    let mut recoveries = Vec::new();
    let booted = |state, medium: &SimMedium| {
        let (learned, choices) = (medium.learned(), medium.choices());
        RecoveryRun { state, learned, choices, ops: medium.take_trace() }
    };
    for step in steps {
        let medium = recorded.boot(&state, step.plan.clone());
        medium.start_trace();
        let next = capture(scenario, &medium, vec![step.at]).pop();
        recoveries.push(booted(state, &medium));
        // Pushed before: the report shows the recovery that ended too early.
        let Some(next) = next else { return (recoveries, Outcome::Unreached(step.at)) };
        state = next;
    }
    let medium = recorded.boot(&state, plan.clone());
    let crash = recorded.crash(point, steps.len());
    let result = recover_and_check(scenario, &medium, &crash);
    recoveries.push(booted(state, &medium));
    let outcome = match result {
        Err(message) => Outcome::Failed(message),
        Ok(_) if medium.diverged() => Outcome::Diverged,
        Ok(_) => Outcome::Fine,
    };
    (recoveries, outcome)
}
