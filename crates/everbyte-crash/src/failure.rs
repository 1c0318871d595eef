//! What an exploration reports: sums of what was tried, or the crash that broke the code.
//!
//! Owns the replay string. Invariants: a replay string holds everything that the choice of an
//! image depended on, besides the scenario itself. Its form is
//! `SEED[up]:POINT/POINTS[:PLAN@OP]...:PLAN`: `up` stands for ascending stores, and every
//! `PLAN@OP` is a recovery that crashed.

use std::fmt;
use std::str::FromStr;

use crate::medium::Op;
use crate::memory::{Rules, StoreOrder};
use crate::tape::{BadPlan, Choice, Plan};

/// What an exploration that found nothing has tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Moments at which the workload was crashed: its operations and one.
    pub points: u64,
    /// Of those, the ones that could leave nothing else than the one before, with no event
    /// between; they were not tried again.
    pub points_alike: u64,
    /// Of those, the ones that were left out because there were too many.
    pub points_left_out: u64,
    /// Images recovered and checked after a crash of the workload.
    pub images: u64,
    /// Crashes of recoveries, distinct within one crash of the workload.
    pub nested_crashes: u64,
    /// Images recovered and checked after those.
    pub nested_images: u64,
    /// Crashes, of either kind, whose images were too many and were sampled.
    pub sampled: u64,
    /// Images for which a line was read whose possible contents were not all tried.
    pub thinned: u64,
    /// Recoveries that were not crashed at each of their operations.
    pub left_out: u64,
}

impl Summary {
    /// Whether every image that the rules allow and the code could tell apart was checked, down
    /// to the explorer's nesting depth.
    #[must_use]
    pub fn is_exhaustive(&self) -> bool {
        self.points_left_out == 0 && self.sampled == 0 && self.thinned == 0 && self.left_out == 0
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} crash points ({} alike), {} images; {} crashes in recovery, {} images; ",
            self.points, self.points_alike, self.images, self.nested_crashes, self.nested_images
        )?;
        if self.is_exhaustive() {
            return f.write_str("exhaustive");
        }
        write!(
            f,
            "{} points left out, {} crashes sampled, {} images thinned, {} recoveries left out",
            self.points_left_out, self.sampled, self.thinned, self.left_out
        )
    }
}

/// A recovery that crashed on the way to a failure.
#[derive(Clone, Debug)]
pub struct NestedCrash {
    /// Which image it started from.
    pub plan: Plan,
    /// Its operation just before which the power failed again.
    pub at: u64,
    /// Its last operations before that.
    pub recent: Vec<Op>,
}

/// A crash after which the code does not recover, or recovers wrongly.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Re-runs exactly this, given to `Explorer::replay` with the same scenario.
    pub replay: String,
    /// The workload's operation just before which the power failed.
    pub point: u64,
    /// Operations of the whole workload.
    pub points: u64,
    /// The last operations before that.
    pub recent: Vec<Op>,
    /// Recoveries that crashed in turn, outermost first.
    pub nested: Vec<NestedCrash>,
    /// What the image that failed held, line by line, in the order of first reads.
    pub choices: Vec<Choice>,
    /// What the scenario said was wrong.
    pub message: String,
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "crash before operation {} of {}: {}", self.point, self.points, self.message)?;
        writeln!(f, "  replay: {}", self.replay)?;
        writeln!(f, "  last operations of the workload:")?;
        write_ops(f, self.point, &self.recent)?;
        for nested in &self.nested {
            let NestedCrash { plan, at, recent } = nested;
            writeln!(f, "  recovery of image {plan} crashed before its operation {at}, after:")?;
            write_ops(f, *at, recent)?;
        }
        writeln!(f, "  the image that failed:")?;
        for choice in &self.choices {
            writeln!(f, "    {choice}")?;
        }
        if self.choices.is_empty() {
            writeln!(f, "    no line that was read was in doubt")?;
        }
        Ok(())
    }
}

fn write_ops(f: &mut fmt::Formatter<'_>, end: u64, ops: &[Op]) -> fmt::Result {
    let first = end - ops.len() as u64;
    for (number, op) in (first..).zip(ops) {
        writeln!(f, "    {number:>5}  {op}")?;
    }
    if ops.is_empty() {
        writeln!(f, "    none")?;
    }
    Ok(())
}

/// Why a replay did not come out clean.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The string is not a replay string.
    #[error("{text:?} is not a replay string: {reason}")]
    Unreadable {
        /// The string.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The workload or the recovery is not the one that the string was made for.
    #[error("the replay string is for other code: {0}")]
    Stale(String),
    /// The failure is there.
    #[error(transparent)]
    Failed(Box<Failure>),
}

/// A recovery to crash: the image it starts from, and the operation it must not make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) plan: Plan,
    pub(crate) at: u64,
}

/// The way to one image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Path {
    pub(crate) rules: Rules,
    pub(crate) point: u64,
    pub(crate) points: u64,
    pub(crate) steps: Vec<Step>,
    pub(crate) plan: Plan,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stores = match self.rules.stores {
            StoreOrder::Any => "",
            StoreOrder::Ascending => "up",
        };
        write!(f, "{:x}{stores}:{}/{}", self.rules.seed, self.point, self.points)?;
        for step in &self.steps {
            write!(f, ":{}@{}", step.plan, step.at)?;
        }
        write!(f, ":{}", self.plan)
    }
}

impl FromStr for Path {
    type Err = ReplayError;

    fn from_str(text: &str) -> Result<Self, ReplayError> {
        let bad = |reason: String| ReplayError::Unreadable { text: text.to_owned(), reason };
        let number =
            |part: &str| part.parse::<u64>().map_err(|_| bad(format!("{part:?} is not a number")));
        let plan =
            |part: &str| part.parse::<Plan>().map_err(|error: BadPlan| bad(error.to_string()));
        let parts: Vec<&str> = text.trim().split(':').collect();
        let [seed, place, steps @ .., last] = parts.as_slice() else {
            return Err(bad("a seed, a crash point and a plan were expected".to_owned()));
        };
        let (seed, stores) = match seed.strip_suffix("up") {
            Some(seed) => (seed, StoreOrder::Ascending),
            None => (*seed, StoreOrder::Any),
        };
        let seed = u64::from_str_radix(seed, 16)
            .map_err(|_| bad(format!("{seed:?} is not a hexadecimal seed")))?;
        let (point, points) =
            place.split_once('/').ok_or_else(|| bad(format!("{place:?} is not a crash point")))?;
        let (point, points) = (number(point)?, number(points)?);
        if point > points {
            return Err(bad(format!("there is no crash point {point} of {points}")));
        }
        let step = |part: &&str| {
            let (before, at) = part
                .split_once('@')
                .ok_or_else(|| bad(format!("{part:?} is not a crash of a recovery")))?;
            Ok(Step { plan: plan(before)?, at: number(at)? })
        };
        let steps = steps.iter().map(step).collect::<Result<_, ReplayError>>()?;
        Ok(Self { rules: Rules { stores, seed }, point, points, steps, plan: plan(last)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_strings_survive_printing() {
        let mut path = Path {
            rules: Rules { stores: StoreOrder::Any, seed: 0xab },
            point: 3,
            points: 9,
            steps: vec![Step { plan: Plan::Script(vec![0, 2]), at: 5 }],
            plan: Plan::Seeded(17),
        };
        assert_eq!(path.to_string(), "ab:3/9:c0.2@5:r11");
        assert_eq!(path.to_string().parse::<Path>().unwrap(), path);
        path.rules.stores = StoreOrder::Ascending;
        assert_eq!(path.to_string(), "abup:3/9:c0.2@5:r11");
        assert_eq!(path.to_string().parse::<Path>().unwrap(), path);
        for bad in ["", "0:1/2", "0:3/2:n", "0:1/2:n:n", "0:1/2:n@x:n", "g:1/2:n", "0:12:n"] {
            assert!(bad.parse::<Path>().is_err(), "{bad}");
        }
    }
}
