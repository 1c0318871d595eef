//! The explorer: crashes a workload everywhere, and recovers from every image that could be left.
//!
//! The workload runs once and is recorded; each crash point is then a walk over the record, not
//! another run. Images of one crash point are found by running recovery with a script of answers
//! to "what did this line hold?" and raising the last answer that can be raised, depth first.
//! (Deciding lines only when recovery first reads them is the idea of Jaaru, ASPLOS 2021.)
//!
//! A crash inside recovery needs no unwinding: recovery runs on undisturbed while the medium
//! takes, before the wanted operations, the state that a crash there would leave. That state is
//! explored like the workload's. So recovery code may take locks, catch panics and start threads
//! without noticing.
//!
//! Invariants: everything is deterministic given the scenario, the settings and the seed.
//! Knows nothing of how lines persist.

use std::collections::{BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use everbyte_media::PoolOffset;

use crate::failure::{Failure, NestedCrash, Path, ReplayError, Step, Summary};
use crate::medium::{Op, OpKind, SimMedium};
use crate::memory::{CrashState, Memory, Rules, StoreOrder};
use crate::scenario::{Crash, Log, Scenario, Stamped};
use crate::tape::{Choice, Plan, mix};

/// Settings of an exploration. The default suits a workload of some hundred operations; set the
/// limits to their types' greatest values for one that must be exhaustive.
#[derive(Clone, Debug)]
pub struct Explorer {
    /// Picks samples. The same seed gives the same exploration.
    pub seed: u64,
    /// The order within one ordinary store.
    pub stores: StoreOrder,
    /// Operations of the workload before which it is crashed, if there are more: one of each of so
    /// many equal parts, as the seed says, and of the last part the workload's end.
    pub points_max: usize,
    /// Whether to crash the workload only once it has noted its first event.
    pub from_first_event: bool,
    /// Images tried depth first at each crash point, at least 1. If there are more, these follow:
    /// nothing persisted, everything, each line alone, each line missing (lines evenly spread,
    /// at most this many images), and `samples` random ones.
    pub runs_max: usize,
    /// Random images tried where there are too many.
    pub samples: u64,
    /// How often in a row a recovery may crash, too. 0 crashes only the workload.
    pub nested_depth: u32,
    /// Images of one crash whose recovery is crashed in turn, evenly spread.
    pub nested_images_max: usize,
    /// Operations of one recovery at which it is crashed, evenly spread. The last is always the
    /// moment at which recovery has ended.
    pub nested_points_max: usize,
    /// Like `runs_max`, for crashes of recoveries.
    pub nested_runs_max: usize,
    /// Operations that a failure lists before each crash.
    pub recent_max: usize,
}

impl Default for Explorer {
    fn default() -> Self {
        Self {
            seed: 0,
            stores: StoreOrder::Any,
            points_max: usize::MAX,
            from_first_event: false,
            runs_max: 1000,
            samples: 32,
            nested_depth: 1,
            nested_images_max: 8,
            nested_points_max: 256,
            nested_runs_max: 64,
            recent_max: 12,
        }
    }
}

/// A workload that was run.
struct Recorded<E> {
    image: Vec<u8>,
    ops: Vec<Op>,
    events: Vec<Stamped<E>>,
}

impl<E> Recorded<E> {
    fn crash(&self, point: u64) -> Crash<'_, E> {
        let happened = self.events.partition_point(|event| event.op <= point);
        let points = self.ops.len() as u64;
        Crash { point, points, events: &self.events[..happened], nested: 0 }
    }
}

fn record<S: Scenario>(scenario: &S) -> Recorded<S::Event> {
    let image = scenario.image();
    let medium = Arc::new(SimMedium::from_image(image.clone()));
    medium.start_trace();
    let log = Log::new(Arc::clone(&medium));
    scenario.run(&medium, &log);
    Recorded { image, ops: medium.take_trace(), events: log.take() }
}

impl Explorer {
    /// Crashes the scenario's workload before each of its operations and after the last, and
    /// recovers and checks every image within the limits.
    ///
    /// # Errors
    /// The first crash that the code does not survive, or that shows it not to be deterministic.
    ///
    /// # Panics
    /// If the scenario panics while preparing or running.
    pub fn explore<S: Scenario>(&self, scenario: &S) -> Result<Summary, Box<Failure>> {
        let recorded = record(scenario);
        let mut memory = Memory::new(recorded.image.clone(), self.rules());
        let mut summary = Summary::default();
        let (mut changed, mut happened) = (true, 0);
        let mut wanted = self.points(&recorded).into_iter().peekable();
        for point in 0..=recorded.ops.len() {
            let crash = recorded.crash(point as u64);
            if wanted.next_if_eq(&point).is_none() {
                summary.points_left_out += 1;
            } else if changed || crash.events.len() != happened {
                (changed, happened) = (false, crash.events.len());
                let state = memory.crash_state();
                let mut search = Search::new(self, scenario, crash, &mut summary);
                if let Err(found) = search.crash_state(&state, self.nested_depth) {
                    return Err(Box::new(self.failure(scenario, &recorded, &state, found)));
                }
            } else {
                summary.points_alike += 1;
            }
            summary.points += 1;
            if let Some(op) = recorded.ops.get(point) {
                changed |= op.apply(&mut memory);
                if op.kind == OpKind::Fence {
                    memory.fold();
                }
            }
        }
        Ok(summary)
    }

    /// The operations before which the workload is crashed, ascending.
    fn points<E>(&self, recorded: &Recorded<E>) -> Vec<usize> {
        let first = recorded.events.first().filter(|_| self.from_first_event);
        let start = first.map_or(0, |event| usize::try_from(event.op).unwrap_or(0));
        let count = recorded.ops.len() + 1 - start;
        let parts = count.min(self.points_max);
        let bound = |part: usize| start + part * count / parts;
        let point = |part: usize| {
            let (from, to) = (bound(part), bound(part + 1));
            let random = mix(&[self.seed, part as u64]) % (to - from) as u64;
            if part + 1 == parts { to - 1 } else { from + usize::try_from(random).unwrap_or(0) }
        };
        (0..parts).map(point).collect()
    }

    /// Runs the one image that `replay`, from a [`Failure`], stands for. Of the settings, only
    /// `recent_max` matters.
    ///
    /// # Errors
    /// The failure, if it is still there; or that the string does not fit the scenario.
    ///
    /// # Panics
    /// If the scenario panics while preparing or running.
    pub fn replay<S: Scenario>(&self, scenario: &S, replay: &str) -> Result<(), ReplayError> {
        let Path { rules, point, points, steps, plan } = replay.parse()?;
        let explorer = Self { seed: rules.seed, stores: rules.stores, ..self.clone() };
        let recorded = record(scenario);
        let found = recorded.ops.len() as u64;
        if found != points {
            let text = format!("the workload made {found} operations, not {points}");
            return Err(ReplayError::Stale(text));
        }
        let mut memory = Memory::new(recorded.image.clone(), rules);
        for op in recorded.ops.iter().zip(0..point).map(|(op, _)| op) {
            op.apply(&mut memory);
        }
        let origin = memory.crash_state();
        let mut state = origin.clone();
        for step in &steps {
            (state, _) = explorer.step(scenario, &state, step).ok_or_else(|| {
                ReplayError::Stale(format!("recovery did not reach its operation {}", step.at))
            })?;
        }
        let mut summary = Summary::default();
        let mut search = Search::new(&explorer, scenario, recorded.crash(point), &mut summary);
        search.trail = steps;
        match search.image(&state, plan) {
            Ok(_) => Ok(()),
            Err(found) => {
                let failure = explorer.failure(scenario, &recorded, &origin, found);
                Err(ReplayError::Failed(Box::new(failure)))
            }
        }
    }

    /// The state that a crash of recovery at `step` leaves, and the last operations before it.
    fn step<S: Scenario>(
        &self,
        scenario: &S,
        state: &CrashState,
        step: &Step,
    ) -> Option<(CrashState, Vec<Op>)> {
        let medium = Arc::new(state.boot(step.plan.clone()));
        medium.start_trace();
        let mut taken = capture(scenario, &medium, vec![step.at]);
        let mut ops = medium.take_trace();
        ops.truncate(usize::try_from(step.at).unwrap_or(usize::MAX));
        taken.pop().map(|state| (state, self.recent(&ops)))
    }

    fn rules(&self) -> Rules {
        Rules { stores: self.stores, seed: self.seed }
    }

    fn recent(&self, ops: &[Op]) -> Vec<Op> {
        ops[ops.len().saturating_sub(self.recent_max)..].to_vec()
    }

    fn failure<S: Scenario>(
        &self,
        scenario: &S,
        recorded: &Recorded<S::Event>,
        state: &CrashState,
        found: Found,
    ) -> Failure {
        let points = recorded.ops.len() as u64;
        let before = usize::try_from(found.point).unwrap_or(usize::MAX).min(recorded.ops.len());
        let mut state = state.clone();
        let mut nested = Vec::new();
        for step in &found.steps {
            let Some((next, recent)) = self.step(scenario, &state, step) else { break };
            nested.push(NestedCrash { plan: step.plan.clone(), at: step.at, recent });
            state = next;
        }
        let Found { point, steps, plan, choices, message } = found;
        let replay = Path { rules: self.rules(), point, points, steps, plan }.to_string();
        let recent = self.recent(&recorded.ops[..before]);
        Failure { replay, point, points, recent, nested, choices, message }
    }
}

/// A failing image.
struct Found {
    point: u64,
    steps: Vec<Step>,
    plan: Plan,
    choices: Vec<Choice>,
    message: String,
}

/// An image that was fine.
struct Ran {
    choices: Vec<Choice>,
    /// Operations that recovery made.
    ops: u64,
}

/// The exploration of one crash point.
struct Search<'a, S: Scenario> {
    explorer: &'a Explorer,
    scenario: &'a S,
    crash: Crash<'a, S::Event>,
    summary: &'a mut Summary,
    /// Recoveries that crashed before the state being explored.
    trail: Vec<Step>,
    /// Crashes of recoveries already explored, by fingerprint and depth left.
    seen: HashSet<(u64, u32)>,
}

impl<'a, S: Scenario> Search<'a, S> {
    fn new(
        explorer: &'a Explorer,
        scenario: &'a S,
        crash: Crash<'a, S::Event>,
        summary: &'a mut Summary,
    ) -> Self {
        Self { explorer, scenario, crash, summary, trail: Vec::new(), seen: HashSet::new() }
    }

    /// Explores the images of `state`, and crashes of recovery while `depth` is left.
    fn crash_state(&mut self, state: &CrashState, depth: u32) -> Result<(), Found> {
        let runs_max = match self.trail.len() {
            0 => self.explorer.runs_max,
            _ => self.explorer.nested_runs_max,
        };
        let ran = self.images(state, runs_max)?;
        if depth > 0 {
            let kept = spread(ran.len(), self.explorer.nested_images_max);
            self.summary.left_out += (ran.len() - kept.len()) as u64;
            for i in kept {
                let (plan, ops) = &ran[i];
                self.crash_recovery(state, plan, *ops, depth)?;
            }
        }
        Ok(())
    }

    /// Tries the images of `state`. Returns their plans and how many operations recovery took.
    fn images(&mut self, state: &CrashState, runs_max: usize) -> Result<Vec<(Plan, u64)>, Found> {
        let mut ran = Vec::new();
        let mut lines = BTreeSet::new();
        let mut script: Vec<u32> = Vec::new();
        let mut previous: Vec<Choice> = Vec::new();
        loop {
            let plan = Plan::Script(script.clone());
            let run = self.image(state, plan.clone())?;
            let asked_alike = previous.iter().zip(&run.choices).take(script.len());
            if asked_alike.into_iter().any(|(a, b)| (a.at, a.of) != (b.at, b.of)) {
                return Err(self.not_deterministic(plan, run.choices));
            }
            lines.extend(run.choices.iter().map(|choice| choice.at.0));
            ran.push((plan, run.ops));
            let Some(next) = next_script(&run.choices) else { return Ok(ran) };
            if ran.len() >= runs_max {
                break;
            }
            script = next;
            previous = run.choices;
        }
        self.summary.sampled += 1;
        for plan in [Plan::Nothing, Plan::Everything] {
            let run = self.image(state, plan.clone())?;
            lines.extend(run.choices.iter().map(|choice| choice.at.0));
            ran.push((plan, run.ops));
        }
        for plan in self.samples(&lines, runs_max) {
            let run = self.image(state, plan.clone())?;
            ran.push((plan, run.ops));
        }
        Ok(ran)
    }

    /// What to try of too many images, besides nothing and everything.
    fn samples(&self, lines: &BTreeSet<u64>, runs_max: usize) -> Vec<Plan> {
        let lines: Vec<u64> = lines.iter().copied().collect();
        let kept = spread(lines.len(), (runs_max / 2).max(1));
        let mut plans: Vec<Plan> = Vec::new();
        plans.extend(kept.iter().map(|&i| Plan::Only(PoolOffset(lines[i]))));
        plans.extend(kept.iter().map(|&i| Plan::Missing(PoolOffset(lines[i]))));
        let seed = mix(&[self.explorer.seed, self.crash.point, self.trail.len() as u64]);
        plans.extend((0..self.explorer.samples).map(|i| Plan::Seeded(mix(&[seed, i]))));
        plans
    }

    /// Recovers and checks one image.
    fn image(&mut self, state: &CrashState, plan: Plan) -> Result<Ran, Found> {
        self.crash.nested = self.trail.len();
        let medium = Arc::new(state.boot(plan.clone()));
        let result = quietly(|| {
            let recovered = self.scenario.recover(Arc::clone(&medium))?;
            let ops = medium.ops();
            self.scenario.check(recovered, &self.crash)?;
            Ok(ops)
        });
        let choices = medium.choices();
        match result {
            Err(message) => Err(self.found(plan, choices, message)),
            Ok(_) if medium.strayed() => Err(self.not_deterministic(plan, choices)),
            Ok(ops) => {
                let nested = !self.trail.is_empty();
                self.summary.images += u64::from(!nested);
                self.summary.nested_images += u64::from(nested);
                self.summary.thinned += u64::from(medium.thinned());
                Ok(Ran { choices, ops })
            }
        }
    }

    /// Crashes the recovery of one image, which makes `ops` operations, at each of them.
    fn crash_recovery(
        &mut self,
        state: &CrashState,
        plan: &Plan,
        ops: u64,
        depth: u32,
    ) -> Result<(), Found> {
        // A crash before the first operation leaves nothing that was not there before.
        let count = usize::try_from(ops).unwrap_or(usize::MAX);
        let kept = spread(count, self.explorer.nested_points_max);
        self.summary.left_out += u64::from(kept.len() < count);
        let points: Vec<u64> = kept.into_iter().map(|i| i as u64 + 1).collect();
        let medium = Arc::new(state.boot(plan.clone()));
        let taken = capture(self.scenario, &medium, points.clone());
        if taken.len() != points.len() {
            return Err(self.not_deterministic(plan.clone(), medium.choices()));
        }
        for (at, crashed) in points.into_iter().zip(taken) {
            if self.seen.insert((crashed.fingerprint(), depth)) {
                self.summary.nested_crashes += 1;
                self.trail.push(Step { plan: plan.clone(), at });
                self.crash_state(&crashed, depth - 1)?;
                self.trail.pop();
            }
        }
        Ok(())
    }

    fn found(&self, plan: Plan, choices: Vec<Choice>, message: String) -> Found {
        Found { point: self.crash.point, steps: self.trail.clone(), plan, choices, message }
    }

    fn not_deterministic(&self, plan: Plan, choices: Vec<Choice>) -> Found {
        let message = "recovery or check is not deterministic: the same image made it read or \
                       store differently";
        self.found(plan, choices, message.to_owned())
    }
}

/// Runs recovery, taking the states that crashes before its operations `at` would leave. There
/// are fewer if it did not reach them all.
fn capture<S: Scenario>(scenario: &S, medium: &Arc<SimMedium>, at: Vec<u64>) -> Vec<CrashState> {
    medium.start_capture(at);
    let taken = quietly(|| {
        let recovered = scenario.recover(Arc::clone(medium))?;
        let taken = medium.take_captured();
        drop(recovered);
        Ok(taken)
    });
    taken.unwrap_or_else(|_| medium.take_captured())
}

/// Makes a panic of `run` an error.
fn quietly<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(format!("panicked: {}", text.as_deref().unwrap_or("with something else than text")))
    })
}

/// The script after the one that led to `choices`, depth first; none after the last.
fn next_script(choices: &[Choice]) -> Option<Vec<u32>> {
    let last = choices.iter().rposition(|choice| choice.taken + 1 < choice.of)?;
    let mut script: Vec<u32> = choices[..=last].iter().map(|choice| choice.taken).collect();
    script[last] += 1;
    Some(script)
}

/// At most `max` of the indexes `0..count`, evenly spread. The last is kept before any other.
fn spread(count: usize, max: usize) -> Vec<usize> {
    match max {
        _ if count <= max => (0..count).collect(),
        0 => Vec::new(),
        1 => vec![count - 1],
        _ => (0..max)
            .map(|i| {
                let scaled = i as u128 * (count as u128 - 1) / (max as u128 - 1);
                usize::try_from(scaled).unwrap_or(count - 1)
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreading_keeps_both_ends() {
        assert_eq!(spread(3, 5), [0, 1, 2]);
        assert_eq!(spread(5, 5), [0, 1, 2, 3, 4]);
        assert_eq!(spread(10, 4), [0, 3, 6, 9]);
        assert_eq!(spread(10, 1), [9]);
        assert!(spread(10, 0).is_empty());
        assert!(spread(0, 3).is_empty());
    }

    #[test]
    fn scripts_count_up_from_the_end() {
        let choice = |taken, of| Choice { at: PoolOffset(0), taken, of };
        assert_eq!(next_script(&[choice(0, 2), choice(0, 3)]), Some(vec![0, 1]));
        assert_eq!(next_script(&[choice(0, 2), choice(2, 3)]), Some(vec![1]));
        assert_eq!(next_script(&[choice(1, 2), choice(2, 3)]), None);
        assert_eq!(next_script(&[]), None);
    }
}
