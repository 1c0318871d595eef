//! The replay string: the decisions for one image.
//!
//! Invariants: it holds everything that determined the choice of an image, except the scenario. Its
//! form is `[sSTEPS:]SEED[up][~SETS]:POINT/POINTS[:PLAN@OP]...:PLAN`. `STEPS` are the remaining
//! steps of a reduced workload, as in `s0.4`; `up` stands for ascending stores, `SETS` is the
//! explorer's `subsets_max` if it is not the default, and every `PLAN@OP` is a crashed recovery.

use std::fmt;
use std::str::FromStr;

use crate::decision_trace::{BadPlan, Plan};
use crate::failure::Failure;
use crate::memory::{Rules, SUBSETS_MAX, StoreOrder};
use crate::step::Step;

/// Errors of a replay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The string is not a replay string.
    #[error("{text:?} is not a replay string: {reason}")]
    Unreadable {
        /// The string.
        text: String,
        /// Description of the mistake in it.
        reason: String,
    },
    /// The workload or the recovery differs from the one of the string.
    #[error("the replay string is for other code: {0}")]
    Stale(String),
    /// The replay failed as well.
    #[error(transparent)]
    Failed(Box<Failure>),
}

/// The decisions for one image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Path {
    /// The kept steps of a reduced workload.
    pub(crate) kept: Option<Vec<usize>>,
    pub(crate) rules: Rules,
    pub(crate) point: u64,
    pub(crate) points: u64,
    pub(crate) steps: Vec<Step>,
    pub(crate) plan: Plan,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(kept) = &self.kept {
            let kept: Vec<String> = kept.iter().map(usize::to_string).collect();
            write!(f, "s{}:", kept.join("."))?;
        }
        let stores = match self.rules.stores {
            StoreOrder::Any => "",
            StoreOrder::Ascending => "up",
        };
        write!(f, "{:x}{stores}", self.rules.seed)?;
        // Defaults are omitted, so strings of older versions keep their meaning.
        if self.rules.subsets_max != SUBSETS_MAX {
            write!(f, "~{}", self.rules.subsets_max)?;
        }
        write!(f, ":{}/{}", self.point, self.points)?;
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
        let mut parts: Vec<&str> = text.trim().split(':').collect();
        // A seed is hexadecimal and begins with no `s`, so the prefix is unambiguous.
        let kept = parts[0].strip_prefix('s').map(|kept| {
            // A workload can fail without any step, so the list may be empty.
            let kept = kept.split('.').filter(|part| !part.is_empty());
            kept.map(|part| part.parse().map_err(|_| bad(format!("{part:?} is not a step"))))
                .collect::<Result<Vec<usize>, _>>()
        });
        let kept = kept.transpose()?;
        parts.drain(..usize::from(kept.is_some()));
        let [seed, place, steps @ .., last] = parts.as_slice() else {
            return Err(bad("a seed, a crash point and a plan were expected".to_owned()));
        };
        let rules = rules_of(seed).map_err(bad)?;
        let (point, points) =
            place.split_once('/').ok_or_else(|| bad(format!("{place:?} is not a crash point")))?;
        let (point, points) = (number(point)?, number(points)?);
        // The point after the last operation equals the number of operations.
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
        Ok(Self { kept, rules, point, points, steps, plan: plan(last)? })
    }
}

/// Reads `SEED[up][~SETS]`.
fn rules_of(text: &str) -> Result<Rules, String> {
    // From the end to the start: the digits of the seed have no fixed length.
    let (rest, subsets_max) = match text.split_once('~') {
        Some((rest, sets)) => {
            (rest, sets.parse().map_err(|_| format!("{sets:?} is not a number of pieces"))?)
        }
        None => (text, SUBSETS_MAX),
    };
    let (seed, stores) = match rest.strip_suffix("up") {
        Some(seed) => (seed, StoreOrder::Ascending),
        None => (rest, StoreOrder::Any),
    };
    let seed =
        u64::from_str_radix(seed, 16).map_err(|_| format!("{seed:?} is not a hexadecimal seed"))?;
    Ok(Rules { stores, subsets_max, seed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_strings_survive_printing() {
        let mut path = Path {
            kept: None,
            rules: Rules { seed: 0xab, ..Rules::default() },
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
        path.rules.subsets_max = 8;
        assert_eq!(path.to_string(), "abup~8:3/9:c0.2@5:r11");
        assert_eq!(path.to_string().parse::<Path>().unwrap(), path);
        path.rules.subsets_max = SUBSETS_MAX;
        for (kept, text) in [(vec![], "s:"), (vec![0, 4], "s0.4:")] {
            path.kept = Some(kept);
            assert_eq!(path.to_string(), format!("{text}abup:3/9:c0.2@5:r11"));
            assert_eq!(path.to_string().parse::<Path>().unwrap(), path);
        }
        for bad in [
            "",
            "0:1/2",
            "0:3/2:n",
            "0:1/2:n:n",
            "0:1/2:n@x:n",
            "g:1/2:n",
            "0:12:n",
            "0~:1/2:n",
            "0~8up:1/2:n",
            "sx:0:1/2:n",
            "s1",
        ] {
            assert!(bad.parse::<Path>().is_err(), "{bad}");
        }
    }
}
