//! The explorer: crashes a workload at every operation, and recovers from every image possible
//! after a crash.
//!
//! The workload runs once and is recorded. The state at a crash point is computed from the record,
//! without another run. The explorer enumerates the images of one crash point depth first: it runs
//! recovery with a script that decides the contents of each line at recovery's first read, and then
//! raises the last decision that can be raised. (Deciding lines at their first read is the idea of
//! Jaaru, ASPLOS 2021.)
//!
//! A crash inside recovery needs no unwinding: recovery runs to its end, while the medium takes the
//! state that a crash before each wanted operation would leave. That state is explored like the
//! workload's. So recovery code may take locks, catch panics and start threads.
//!
//! Invariants: everything is deterministic given the scenario, the settings and the seed.
//! Knows nothing of how lines persist.

use std::collections::{BTreeSet, HashSet};

use everbyte_media::PoolOffset;

use crate::address::index;
use crate::decision_trace::{Choice, Plan, mix};
use crate::failure::{Failure, NestedCrash, Summary};
use crate::memory::{CrashState, Rules, SUBSETS_MAX, StoreOrder};
use crate::recovery_run::{Outcome, Recorded, capture, follow, recover_and_check};
use crate::replay::{Path, ReplayError};
use crate::scenario::{Crash, Scenario};
use crate::step::Step;
use crate::trace::{CrashAftermath, trace};
use crate::walk::Walk;

/// Settings of an exploration. The default suits a workload of some hundred operations. For an
/// exhaustive exploration set the limits to their types' greatest values.
#[derive(Clone, Debug)]
pub struct Explorer {
    /// Picks samples. The same seed gives the same exploration. The replay string of a failure
    /// begins with it, in hexadecimal.
    pub seed: u64,
    /// The order within one ordinary store.
    pub stores: StoreOrder,
    /// Largest number of words of one line, persisting in any order, with a try of every subset, 0
    /// to 10. Of more words, only some subsets are tried. A line has 8 words unless it is stored to
    /// twice.
    pub subsets_max: u32,
    /// Limit of the crash points of the workload. Of more operations, the seed picks one of each of
    /// as many equal parts, and of the last part the workload's end.
    pub points_max: usize,
    /// True if the workload is crashed only after it has noted its first event.
    pub from_first_event: bool,
    /// Images tried depth first at each crash point, at least 1. In the first, nothing persisted.
    /// If there are more, these follow: everything persisted, each line alone, each line missing,
    /// and `samples` random ones. The single lines are limited to this many images, but at least
    /// one; of more lines, the seed picks one of each of as many equal parts.
    pub runs_max: usize,
    /// Random images tried where there are too many.
    pub samples: u64,
    /// Largest number of consecutive crashing recoveries. 0 crashes only the workload.
    pub nested_depth: u32,
    /// Images of one crash with crashing recoveries, evenly spread.
    pub nested_images_max: usize,
    /// Limit of the operations of one recovery at which it is crashed. Of more operations, the seed
    /// picks one of each of as many equal parts, and of the last part the moment after recovery.
    pub nested_points_max: usize,
    /// Like `runs_max`, for crashes of recoveries.
    pub nested_runs_max: usize,
    /// Most calls of the medium by recovery and check of one image. More calls count as an endless
    /// loop, which is a failure. A loop without calls of the medium is not detected.
    pub calls_max: u64,
    /// Images tried to make a failure smaller: with fewer lines lost or kept, without crashes of
    /// recoveries, at an earlier operation. 0 reports it as it was found.
    pub shrink_runs_max: usize,
    /// Explorations run to drop steps of a failing workload. See [`Explorer::explore_steps`].
    pub cuts_max: usize,
    /// Operations that a failure lists before each crash. In addition, at most as many earlier ones
    /// with an undecided, relevant outcome.
    pub recent_max: usize,
}

impl Default for Explorer {
    fn default() -> Self {
        Self {
            seed: 0,
            stores: StoreOrder::Any,
            subsets_max: SUBSETS_MAX,
            points_max: usize::MAX,
            from_first_event: false,
            runs_max: 1000,
            samples: 32,
            nested_depth: 1,
            nested_images_max: 8,
            nested_points_max: 256,
            nested_runs_max: 64,
            calls_max: 100_000_000,
            shrink_runs_max: 1000,
            cuts_max: 100,
            recent_max: 12,
        }
    }
}

impl Explorer {
    /// Crashes the scenario's workload before each of its operations and after the last, and
    /// recovers and checks every image within the limits.
    ///
    /// The failure found is shrunk: see `shrink_runs_max`.
    ///
    /// # Errors
    /// A crash that the code does not survive, or that shows nondeterminism.
    ///
    /// # Panics
    /// If the scenario panics while preparing or running.
    pub fn explore<S: Scenario>(&self, scenario: &S) -> Result<Summary, Box<Failure>> {
        let recorded = Recorded::new(scenario, self.calls_max);
        self.search(scenario, &recorded)
            // Reduced after the search: the search must stay in the order that the seed determines.
            .map_err(|found| Box::new(self.shrunk(scenario, &recorded, *found, None)))
    }

    /// Explores until an image fails.
    pub(crate) fn search<S: Scenario>(
        &self,
        scenario: &S,
        recorded: &Recorded<S::Event>,
    ) -> Result<Summary, Box<Found>> {
        let mut summary = Summary::default();
        let mut wanted = self.points(recorded).into_iter().peekable();
        let mut walk = Walk::new(recorded, self.rules());
        while let Some(point) = walk.point() {
            // The walk advances past omitted points as well, because each state needs all earlier
            // operations.
            if wanted.next_if_eq(&point).is_none() {
                summary.points_left_out += 1;
            } else if walk.is_new(scenario, recorded) {
                let state = walk.crash_state();
                let crash = recorded.crash(point, 0);
                let mut search = Search::new(self, scenario, recorded, crash, &mut summary);
                if let Err(found) = search.crash_state(&state, self.nested_depth) {
                    // The reduction tries no earlier point if the search before this one was
                    // complete.
                    let complete = summary.is_exhaustive();
                    return Err(Box::new(Found { complete, ..found }));
                }
            } else {
                summary.points_alike += 1;
            }
            // Counted for each point, so the counts of alike and omitted points are parts of this
            // one.
            summary.points += 1;
            walk.advance();
        }
        Ok(summary)
    }

    /// Returns the first operation with a crash before it.
    pub(crate) fn first_point<E>(&self, recorded: &Recorded<E>) -> u64 {
        let first = recorded.events.first().filter(|_| self.from_first_event);
        first.map_or(0, |event| event.op)
    }

    /// Returns the operations with a crash before them, ascending.
    fn points<E>(&self, recorded: &Recorded<E>) -> Vec<u64> {
        let start = self.first_point(recorded);
        // One more point than operations: the crash after the last one.
        let count = recorded.points() + 1 - start;
        let points = with_end(count, self.points_max, &[self.seed]);
        points.into_iter().map(|point| start + point).collect()
    }

    /// Runs the one image of `replay`, from a [`Failure`]. Of the settings, only `recent_max` and
    /// `calls_max` matter.
    ///
    /// # Errors
    /// The failure, if it occurs again; or that the string does not fit the scenario.
    ///
    /// # Panics
    /// If the scenario panics while preparing or running.
    pub fn replay<S: Scenario>(&self, scenario: &S, replay: &str) -> Result<(), ReplayError> {
        let path: Path = replay.parse()?;
        match path.kept {
            Some(kept) => {
                let text = format!("the steps {kept:?} of a workload; replay_steps takes it");
                Err(ReplayError::Stale(text))
            }
            None => self.replay_path(scenario, path),
        }
    }

    /// Runs one image of a workload that was reduced to the steps of the path.
    pub(crate) fn replay_path<S: Scenario>(
        &self,
        scenario: &S,
        path: Path,
    ) -> Result<(), ReplayError> {
        let Path { kept, rules, point, points, steps, plan } = path;
        let explorer = Self {
            seed: rules.seed,
            stores: rules.stores,
            subsets_max: rules.subsets_max,
            ..self.clone()
        };
        let recorded = Recorded::new(scenario, self.calls_max);
        // A different number of operations proves that the workload differs. An equal number does
        // not prove that it is the same, so the recoveries check their answers as well.
        if recorded.points() != points {
            let found = recorded.points();
            let text = format!("the workload made {found} operations, not {points}");
            return Err(ReplayError::Stale(text));
        }
        let origin = Walk::new(&recorded, rules).state_at(point);
        let (_, outcome) = follow(scenario, &recorded, point, &origin, &steps, &plan);
        let message = match outcome {
            Outcome::Fine => return Ok(()),
            Outcome::Unreached(at) => {
                let text = format!("recovery did not reach its operation {at}");
                return Err(ReplayError::Stale(text));
            }
            Outcome::Failed(message) => message,
            // A string of a nondeterminism failure reproduces by another divergence.
            Outcome::Diverged => NOT_DETERMINISTIC.to_owned(),
        };
        let found = Found { point, steps, plan, message, complete: false };
        Err(ReplayError::Failed(Box::new(explorer.failure(scenario, &recorded, found, kept))))
    }

    pub(crate) fn rules(&self) -> Rules {
        Rules { stores: self.stores, subsets_max: self.subsets_max, seed: self.seed }
    }

    /// Returns the report of a failing image.
    pub(crate) fn failure<S: Scenario>(
        &self,
        scenario: &S,
        recorded: &Recorded<S::Event>,
        found: Found,
        kept: Option<Vec<usize>>,
    ) -> Failure {
        let Found { point, steps, plan, message, .. } = found;
        let origin = Walk::new(recorded, self.rules()).state_at(point);
        // Run again with traces: the search records none, because it makes thousands of runs.
        let (recoveries, _) = follow(scenario, recorded, point, &origin, &steps, &plan);
        let labels = scenario.labels();
        let runs = std::iter::once(&recorded.ops).chain(recoveries.iter().map(|run| &run.ops));
        // Each run ends at the next crash, so the workload ends at the point and a recovery at its
        // step.
        let ends = std::iter::once(point).chain(steps.iter().map(|step| step.at));
        let mut traces =
            // Each trace is explained by the recovery that followed its crash.
            runs.zip(ends).enumerate().take(recoveries.len()).map(|(i, (ops, end))| {
                let left = CrashAftermath { recoveries: &recoveries[i..], steps: &steps[i..] };
                trace(ops, end, &left, &labels, self.recent_max)
            });
        let workload = traces.next().unwrap_or_default();
        let nested = steps.iter().zip(traces).zip(&recoveries).map(|((step, trace), run)| {
            let (plan, choices) = (step.plan.clone(), run.choices.clone());
            NestedCrash { plan, choices, at: step.at, trace }
        });
        let nested = nested.collect();
        let choices = recoveries.last().map(|run| run.choices.clone()).unwrap_or_default();
        let points = recorded.points();
        let rules = self.rules();
        let path = Path { kept: kept.clone(), rules, point, points, steps, plan: plan.clone() };
        let replay = path.to_string();
        let trace = workload;
        Failure { replay, point, points, kept, trace, nested, plan, choices, message, labels }
    }
}

/// Message about code that depends on more than the image.
const NOT_DETERMINISTIC: &str =
    "recovery or check is not deterministic: the same image made it read or store differently";

/// A failing image.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) point: u64,
    pub(crate) steps: Vec<Step>,
    pub(crate) plan: Plan,
    pub(crate) message: String,
    /// True if nothing was left out before it.
    pub(crate) complete: bool,
}

impl Found {
    /// Returns true if the explored code is not deterministic, rather than the image wrong.
    pub(crate) fn is_nondeterministic(&self) -> bool {
        self.message == NOT_DETERMINISTIC
    }
}

/// A sound image.
struct Ran {
    choices: Vec<Choice>,
    /// Operations of recovery.
    ops: u64,
}

/// The exploration of one crash point.
struct Search<'a, S: Scenario> {
    explorer: &'a Explorer,
    scenario: &'a S,
    recorded: &'a Recorded<S::Event>,
    crash: Crash<'a, S::Event>,
    summary: &'a mut Summary,
    /// Crashed recoveries before the explored state.
    trail: Vec<Step>,
    /// Crashes of recoveries already explored, by fingerprint and depth left.
    seen: HashSet<(u64, u32)>,
}

impl<'a, S: Scenario> Search<'a, S> {
    fn new(
        explorer: &'a Explorer,
        scenario: &'a S,
        recorded: &'a Recorded<S::Event>,
        crash: Crash<'a, S::Event>,
        summary: &'a mut Summary,
    ) -> Self {
        let (trail, seen) = (Vec::new(), HashSet::new());
        Self { explorer, scenario, recorded, crash, summary, trail, seen }
    }

    /// Explores the images of `state`, and crashes of recovery while `depth` is left.
    fn crash_state(&mut self, state: &CrashState, depth: u32) -> Result<(), Found> {
        let runs_max = match self.trail.len() {
            // A crash of a recovery has separate limits: there is one for each operation of each
            // kept image.
            0 => self.explorer.runs_max,
            _ => self.explorer.nested_runs_max,
        };
        let ran = self.images(state, runs_max, depth > 0)?;
        // Without another crash of recovery the plans are not needed, and there can be millions.
        if depth > 0 {
            // Evenly spread: neighbours in depth-first order differ in the last lines read only.
            let kept = spread(ran.len(), self.explorer.nested_images_max);
            // A skipped image makes the result a sample, so the summary must not call it
            // exhaustive.
            self.summary.left_out += (ran.len() - kept.len()) as u64;
            for i in kept {
                let (plan, ops) = &ran[i];
                self.crash_recovery(state, plan, *ops, depth)?;
            }
        }
        Ok(())
    }

    /// Tries the images of `state`. Returns their plans and how many operations recovery took, if they are kept.
    fn images(
        &mut self,
        state: &CrashState,
        runs_max: usize,
        are_kept: bool,
    ) -> Result<Vec<(Plan, u64)>, Found> {
        let (mut ran, mut tried) = (Vec::new(), 0);
        let mut keep = |plan, ops| {
            if are_kept {
                ran.push((plan, ops));
            }
        };
        let mut lines = BTreeSet::new();
        let mut script: Vec<u32> = Vec::new();
        let mut previous: Vec<Choice> = Vec::new();
        loop {
            let plan = Plan::Script(script.clone());
            let run = self.image(state, plan.clone())?;
            // The script repeats the previous answers but its last one, so recovery must ask the
            // same questions up to there.
            let asked_alike = previous.iter().zip(&run.choices).take(script.len());
            if asked_alike.into_iter().any(|(a, b)| (a.at, a.of) != (b.at, b.of)) {
                return Err(self.not_deterministic(plan));
            }
            lines.extend(run.choices.iter().map(|choice| choice.at.0));
            keep(plan, run.ops);
            tried += 1;
            // Before the limit: a search that ends exactly at the limit is complete.
            let Some(next) = next_script(&run.choices) else { return Ok(ran) };
            if tried >= runs_max {
                break;
            }
            script = next;
            previous = run.choices;
        }
        // Too many images remain. The first ones differ only in the last lines read, so samples of
        // the others follow.
        self.summary.sampled += 1;
        let everything = self.image(state, Plan::everything())?;
        // With everything persisted, recovery may read lines that the first images did not reach.
        lines.extend(everything.choices.iter().map(|choice| choice.at.0));
        keep(Plan::everything(), everything.ops);
        for plan in self.samples(&lines, runs_max) {
            let run = self.image(state, plan.clone())?;
            keep(plan, run.ops);
        }
        Ok(ran)
    }

    /// Returns the plans to try of too many images, in addition to nothing and everything.
    fn samples(&self, lines: &BTreeSet<u64>, runs_max: usize) -> Vec<Plan> {
        let lines: Vec<u64> = lines.iter().copied().collect();
        let seed = self.seed();
        let kept = one_of_each_part(lines.len() as u64, (runs_max / 2).max(1), &[seed]);
        let kept: Vec<_> = kept.into_iter().map(|i| PoolOffset(lines[index(i)])).collect();
        let mut plans: Vec<Plan> = Vec::new();
        plans.extend(kept.iter().map(|&line| Plan::only(line)));
        // Many mistakes show with a single line that persisted too early or too late.
        plans.extend(kept.iter().map(|&line| Plan::missing(line)));
        plans.extend((0..self.explorer.samples).map(|i| Plan::Seeded(mix(&[seed, i]))));
        plans
    }

    /// Picks samples of the state being explored.
    fn seed(&self) -> u64 {
        // The whole trail counts: otherwise the recoveries of all images would sample the same
        // operations.
        let workload = mix(&[self.explorer.seed, self.crash.point, self.trail.len() as u64]);
        self.trail.iter().fold(workload, |seed, step| {
            let plan: Vec<u64> = step.plan.to_string().bytes().map(u64::from).collect();
            mix(&[seed, step.at, mix(&plan)])
        })
    }

    /// Recovers and checks one image.
    fn image(&mut self, state: &CrashState, plan: Plan) -> Result<Ran, Found> {
        self.crash.nested = self.trail.len();
        let medium = self.recorded.boot(state, plan.clone());
        let result = recover_and_check(self.scenario, &medium, &self.crash);
        match result {
            Err(message) => Err(self.found(plan, message)),
            // After an error of the check: a diverged run that also fails is a finding of the code.
            Ok(_) if medium.diverged() => Err(self.not_deterministic(plan)),
            Ok(ops) => {
                // After the check, because the check may be the first to read a line.
                let choices = medium.choices();
                let nested = !self.trail.is_empty();
                self.summary.images += u64::from(!nested);
                self.summary.nested_images += u64::from(nested);
                self.summary.thinned += u64::from(medium.thinned());
                Ok(Ran { choices, ops })
            }
        }
    }

    /// Crashes the recovery of one image at each of its `ops` operations.
    fn crash_recovery(
        &mut self,
        state: &CrashState,
        plan: &Plan,
        ops: u64,
        depth: u32,
    ) -> Result<(), Found> {
        // A crash before the first operation leaves nothing that was not there before.
        let kept = with_end(ops, self.explorer.nested_points_max, &[self.seed(), ops]);
        self.summary.left_out += u64::from((kept.len() as u64) < ops);
        let points: Vec<u64> = kept.into_iter().map(|i| i + 1).collect();
        let medium = self.recorded.boot(state, plan.clone());
        // One recovery gives the states of all its crashes, because a crash needs no unwinding.
        let taken = capture(self.scenario, &medium, points.clone());
        // The same image gave more operations before.
        if taken.len() != points.len() {
            return Err(self.not_deterministic(plan.clone()));
        }
        for (at, crashed) in points.into_iter().zip(taken) {
            // With more depth left, the same state leads to more crashes, so depth is part of the
            // key.
            if self.seen.insert((crashed.fingerprint(), depth)) {
                self.summary.nested_crashes += 1;
                self.trail.push(Step { plan: plan.clone(), at });
                self.crash_state(&crashed, depth - 1)?;
                self.trail.pop();
            }
        }
        Ok(())
    }

    fn found(&self, plan: Plan, message: String) -> Found {
        let (point, steps) = (self.crash.point, self.trail.clone());
        Found { point, steps, plan, message, complete: false }
    }

    fn not_deterministic(&self, plan: Plan) -> Found {
        self.found(plan, NOT_DETERMINISTIC.to_owned())
    }
}

/// Returns the script after the one of `choices`, depth first; `None` after the last.
fn next_script(choices: &[Choice]) -> Option<Vec<u32>> {
    // Later choices are dropped: another content here can change the later questions.
    let last = choices.iter().rposition(|choice| choice.taken + 1 < choice.of)?;
    let mut script: Vec<u32> = choices[..=last].iter().map(|choice| choice.taken).collect();
    script[last] += 1;
    Some(script)
}

/// Returns at most `max` of the numbers `0..count`, ascending: one of each of so many equal parts, as `seed` says.
fn one_of_each_part(count: u64, max: usize, seed: &[u64]) -> Vec<u64> {
    let parts = count.min(max as u64);
    let bound = |part: u64| {
        // The product of two counts can exceed 64 bits.
        let scaled = u128::from(part) * u128::from(count) / u128::from(parts);
        u64::try_from(scaled).unwrap_or(count)
    };
    let one = |part: u64| {
        let (from, to) = (bound(part), bound(part + 1));
        from + mix(&[seed, &[part]].concat()) % (to - from)
    };
    (0..parts).map(one).collect()
}

/// The same, but of the last part the last.
fn with_end(count: u64, max: usize, seed: &[u64]) -> Vec<u64> {
    let mut kept = one_of_each_part(count, max, seed);
    if let Some(last) = kept.last_mut() {
        // The state after the last operation has all promises, so it is never left out.
        *last = count - 1;
    }
    kept
}

/// Returns at most `max` of the indexes `0..count`, evenly spread. The last is kept before any
/// other.
fn spread(count: usize, max: usize) -> Vec<usize> {
    match max {
        _ if count <= max => (0..count).collect(),
        // A limit of 0 switches crashes of recoveries off.
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
    fn parts_have_one_each_and_seeds_differ() {
        assert_eq!(one_of_each_part(3, 5, &[1]), [0, 1, 2]);
        assert!(one_of_each_part(10, 0, &[1]).is_empty() && with_end(0, 3, &[1]).is_empty());
        let (mut first, mut all) = (BTreeSet::new(), BTreeSet::new());
        for seed in 0..100 {
            let kept = one_of_each_part(10, 3, &[seed]);
            let [a, b, c] = kept[..] else { panic!("{kept:?}") };
            assert!(a < 3 && (3..6).contains(&b) && (6..10).contains(&c), "{kept:?}");
            assert_eq!(with_end(10, 3, &[seed]), [a, b, 9]);
            first.extend(one_of_each_part(10, 1, &[seed]));
            all.extend(kept);
        }
        assert!(first.len() == 10 && all.len() == 10, "{first:?}, {all:?}");
    }

    #[test]
    fn scripts_count_up_from_the_end() {
        let choice = |taken, of| Choice { at: PoolOffset(0), taken, of, all: of - 1 };
        assert_eq!(next_script(&[choice(0, 2), choice(0, 3)]), Some(vec![0, 1]));
        assert_eq!(next_script(&[choice(0, 2), choice(2, 3)]), Some(vec![1]));
        assert_eq!(next_script(&[choice(1, 2), choice(2, 3)]), None);
        assert_eq!(next_script(&[]), None);
    }
}
