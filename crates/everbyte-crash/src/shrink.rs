//! Reduction of a failure to its relevant parts.
//!
//! Any message of the check or recovery counts as the failure: a smaller one may have another text.
//! Invariants: the result was run and failed. The same failure is always reduced in the same way.
//! At most `Explorer::shrink_runs_max` images are tried.

use std::collections::BTreeMap;

use everbyte_media::PoolOffset;

use crate::decision_trace::{Choice, Lines, Plan};
use crate::explorer::{Explorer, Found};
use crate::failure::{Failure, Summary};
use crate::memory::CrashState;
use crate::recovery_run::{Outcome, Recorded, follow, quietly};
use crate::replay::{Path, ReplayError};
use crate::scenario::{Scenario, Steps};
use crate::step::Step;
use crate::walk::Walk;

impl Explorer {
    /// Reduces the found failure and reports it.
    pub(crate) fn shrunk<S: Scenario>(
        &self,
        scenario: &S,
        recorded: &Recorded<S::Event>,
        found: Found,
        kept: Option<Vec<usize>>,
    ) -> Failure {
        // A nondeterministic failure need not occur again, so no reduced image could be trusted.
        let found = if found.is_nondeterministic() || self.shrink_runs_max == 0 {
            found
        } else {
            Shrink::new(self, scenario, recorded, found).run()
        };
        self.failure(scenario, recorded, found, kept)
    }

    /// Like `explore`, and drops the steps of the workload that a failure does not need.
    ///
    /// # Errors
    /// A crash that the code does not survive, of a reduced workload. `cuts_max` limits the
    /// reduction.
    ///
    /// # Panics
    /// If the whole scenario panics while preparing or running.
    pub fn explore_steps<S: Steps>(&self, scenario: &S) -> Result<Summary, Box<Failure>> {
        let mut smallest = (None, Recorded::new(scenario, self.calls_max));
        let mut found = match self.search(scenario, &smallest.1) {
            Ok(summary) => return Ok(summary),
            Err(found) => found,
        };
        let mut cuts_left = self.cuts_max;
        let kept = reduce((0..scenario.steps()).collect(), |kept| {
            // Each cut costs a whole exploration, unlike the images of the later reduction.
            if cuts_left == 0 {
                return false;
            }
            cuts_left -= 1;
            let cut = scenario.only(kept);
            // A step that needs a dropped one panics. The code under test has not failed then.
            let recorded = quietly(|| Ok(Recorded::new(&cut, self.calls_max)));
            let Ok(recorded) = recorded else { return false };
            let Err(again) = self.search(&cut, &recorded) else { return false };
            // The failure of the last accepted cut is kept with its recording, because its points
            // count that one.
            (smallest, found) = ((Some(cut), recorded), again);
            true
        });
        let (cut, recorded) = smallest;
        let failure = match cut {
            Some(cut) => self.shrunk(&cut, &recorded, *found, Some(kept)),
            None => self.shrunk(scenario, &recorded, *found, None),
        };
        Err(Box::new(failure))
    }

    /// Like `replay`, for failures of [`Explorer::explore_steps`]: `scenario` is the whole one.
    ///
    /// # Errors
    /// The failure, if it occurs again; or that the string does not fit the scenario.
    ///
    /// # Panics
    /// If the scenario panics while preparing or running.
    pub fn replay_steps<S: Steps>(&self, scenario: &S, replay: &str) -> Result<(), ReplayError> {
        let path: Path = replay.parse()?;
        let Some(kept) = &path.kept else { return self.replay_path(scenario, path) };
        // The string is foreign input, and `only` may index by it.
        let steps = scenario.steps();
        if kept.iter().any(|&step| step >= steps) {
            let text = format!("the workload has {steps} steps, not all of {kept:?}");
            return Err(ReplayError::Stale(text));
        }
        self.replay_path(&scenario.only(kept), path)
    }
}

/// Drops items while the rest still fails: all, then halves, then smaller runs, then single ones
/// until none can be dropped. (A plain form of delta debugging: Zeller, Hildebrandt, TSE 2002.)
fn reduce<T: Clone>(mut items: Vec<T>, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut run = items.len();
    while run > 0 {
        let (before, mut from) = (items.len(), 0);
        while from < items.len() {
            let mut fewer = items.clone();
            fewer.drain(from..items.len().min(from + run));
            if fails(&fewer) {
                items = fewer;
            } else {
                from += run;
            }
        }
        // Single items are retried until none can be dropped: a drop can make an earlier item
        // unnecessary.
        if run > 1 || items.len() == before {
            run /= 2;
        }
    }
    items
}

/// Exceptions of a plan by lines.
type But = Vec<(PoolOffset, Vec<u32>)>;

fn lines(persisted: bool, but: &[(PoolOffset, Vec<u32>)]) -> Plan {
    Plan::Lines(Lines { persisted, but: but.iter().cloned().collect() })
}

/// Returns the lines with other `choices` than a plan without exceptions.
fn exceptions(persisted: bool, choices: &[Choice]) -> But {
    let mut answers: BTreeMap<PoolOffset, (Vec<u32>, bool)> = BTreeMap::new();
    for choice in choices {
        let (answers, differs) = answers.entry(choice.at).or_default();
        answers.push(choice.taken);
        // A line with one differing answer needs all its answers: the plan repeats them by number.
        *differs |= choice.taken != if persisted { choice.all } else { 0 };
    }
    let differing = answers.into_iter().filter(|(_, (_, differs))| *differs);
    differing.map(|(at, (answers, _))| (at, answers)).collect()
}

struct Shrink<'a, S: Scenario> {
    explorer: &'a Explorer,
    scenario: &'a S,
    recorded: &'a Recorded<S::Event>,
    runs_left: usize,
    best: Found,
    /// State after the crash of the workload in `best`.
    origin: CrashState,
}

impl<'a, S: Scenario> Shrink<'a, S> {
    fn new(
        explorer: &'a Explorer,
        scenario: &'a S,
        recorded: &'a Recorded<S::Event>,
        best: Found,
    ) -> Self {
        let origin = Walk::new(recorded, explorer.rules()).state_at(best.point);
        let runs_left = explorer.shrink_runs_max;
        Self { explorer, scenario, recorded, runs_left, best, origin }
    }

    fn run(mut self) -> Found {
        self.simplify_images();
        // Images first: a simple plan fits more crash points than a script of answers.
        let before = (self.best.point, self.best.steps.len());
        self.drop_nested();
        self.crash_recoveries_earlier();
        // A complete search has tried all earlier points already.
        if !self.best.complete {
            self.crash_earlier();
        }
        // Another crash reads other lines, so its image can be simplified again.
        if (self.best.point, self.best.steps.len()) != before {
            self.simplify_images();
        }
        self.best
    }

    /// Returns true if this fails, too, and makes it the best.
    fn fails(&mut self, origin: &CrashState, point: u64, steps: Vec<Step>, plan: Plan) -> bool {
        if self.runs_left == 0 {
            return false;
        }
        self.runs_left -= 1;
        let (_, outcome) = follow(self.scenario, self.recorded, point, origin, &steps, &plan);
        // A divergence is not the failure: the plan does not fit this crash.
        let Outcome::Failed(message) = outcome else { return false };
        self.best = Found { point, steps, plan, message, complete: self.best.complete };
        self.origin = origin.clone();
        true
    }

    /// Returns true if the same crash fails with these steps and this plan.
    fn fails_here(&mut self, steps: Vec<Step>, plan: Plan) -> bool {
        self.fails(&self.origin.clone(), self.best.point, steps, plan)
    }

    /// Looks for the failure at other crashes of the workload, in order: those of `points`.
    fn fails_at(&mut self, points: std::ops::Range<u64>, steps: &[Step], plans: &[Plan]) -> bool {
        let mut walk = Walk::new(self.recorded, self.explorer.rules());
        let mut done = false;
        while let Some(point) = walk.point().filter(|&point| point < points.end && !done) {
            // Alike points have the same images, so they would only use up runs.
            if point >= points.start && walk.is_new(self.scenario, self.recorded) {
                let state = walk.crash_state();
                let mut plans = plans.iter();
                done = plans.any(|plan| self.fails(&state, point, steps.to_vec(), plan.clone()));
            }
            walk.advance();
        }
        done
    }

    /// Does without crashes of recoveries, or with fewer.
    fn drop_nested(&mut self) {
        if self.best.steps.is_empty() {
            return;
        }
        let points = self.explorer.first_point(self.recorded)..self.recorded.points() + 1;
        let plans = [Plan::everything(), Plan::nothing(), self.best.plan.clone()];
        // Half of the runs are reserved for the next step, if this one fails.
        let reserved = self.runs_left / 2;
        self.runs_left -= reserved;
        let found = self.fails_at(points, &[], &plans);
        self.runs_left += reserved;
        let mut i = 0;
        while !found && i < self.best.steps.len() {
            let mut fewer = self.best.steps.clone();
            fewer.remove(i);
            // After a removal the next step has this index.
            if !plans.iter().any(|plan| self.fails_here(fewer.clone(), plan.clone())) {
                i += 1;
            }
        }
    }

    /// Crashes recoveries as early as possible, but after their first operation.
    fn crash_recoveries_earlier(&mut self) {
        for i in 0..self.best.steps.len() {
            // A crash before operation 0 is the same as no crash of this recovery.
            for at in 1..self.best.steps[i].at {
                let mut steps = self.best.steps.clone();
                steps[i].at = at;
                if self.fails_here(steps, self.best.plan.clone()) {
                    break;
                }
            }
        }
    }

    /// Crashes the workload as early as possible.
    fn crash_earlier(&mut self) {
        let points = self.explorer.first_point(self.recorded)..self.best.point;
        let (steps, plan) = (self.best.steps.clone(), self.best.plan.clone());
        self.fails_at(points, &steps, &[plan]);
    }

    /// Simplifies the image of each recovery run to one with few exceptions.
    fn simplify_images(&mut self) {
        for i in 0..=self.best.steps.len() {
            self.simplify_image(i);
        }
    }

    /// Returns true if it fails with another plan for the initial image of recovery run `i`.
    fn fails_with(&mut self, i: usize, plan: Plan) -> bool {
        let (mut steps, mut last) = (self.best.steps.clone(), self.best.plan.clone());
        match steps.get_mut(i) {
            Some(step) => step.plan = plan,
            None => last = plan,
        }
        self.fails_here(steps, last)
    }

    fn simplify_image(&mut self, i: usize) {
        if self.runs_left == 0 {
            return;
        }
        self.runs_left -= 1;
        let Found { point, steps, plan, .. } = &self.best;
        let (recoveries, _) =
            follow(self.scenario, self.recorded, *point, &self.origin, steps, plan);
        let Some(choices) = recoveries.get(i).map(|run| run.choices.clone()) else { return };
        // Both directions start from the same failure. The one with fewer exceptions is the report.
        let before = self.best.clone();
        let mut smallest: Option<(usize, Found)> = None;
        for persisted in [true, false] {
            self.best = before.clone();
            let all = exceptions(persisted, &choices);
            if !self.fails_with(i, lines(persisted, &all)) {
                continue;
            }
            let but = self.fewer_exceptions(i, persisted, all);
            if smallest.as_ref().is_none_or(|(count, _)| but.len() < *count) {
                smallest = Some((but.len(), self.best.clone()));
            }
        }
        self.best = smallest.map_or(before, |(_, found)| found);
    }

    /// Drops exceptions, then simplifies the others: a line kept or lost as a whole.
    fn fewer_exceptions(&mut self, i: usize, persisted: bool, all: But) -> But {
        let mut but = reduce(all, |but| self.fails_with(i, lines(persisted, but)));
        for line in 0..but.len() {
            let mut plain = but.clone();
            // Without answers the line is the opposite of the others, which reads more simply.
            plain[line].1.clear();
            if self.fails_with(i, lines(persisted, &plain)) {
                but = plain;
            }
        }
        but
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reduction_leaves_what_is_needed() {
        for needed in [vec![], vec![0], vec![19], vec![3, 4], vec![0, 7, 19]] {
            let mut tries = 0;
            let fails = |kept: &[i32]| {
                tries += 1;
                needed.iter().all(|item| kept.contains(item))
            };
            assert_eq!(reduce((0..20).collect(), fails), needed);
            assert!(tries < 120, "{tries}");
        }
    }

    #[test]
    fn exceptions_are_whole_lines() {
        let choice = |at, taken| Choice { at: PoolOffset(at), taken, of: 3, all: 2 };
        let choices = [choice(0, 2), choice(64, 0), choice(128, 2), choice(128, 1)];
        let but = |persisted| exceptions(persisted, &choices);
        assert_eq!(but(true), [(PoolOffset(64), vec![0]), (PoolOffset(128), vec![2, 1])]);
        assert_eq!(but(false), [(PoolOffset(0), vec![2]), (PoolOffset(128), vec![2, 1])]);
    }
}
