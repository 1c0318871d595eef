//! The choice tape: who decides what each line held after the crash, and what was decided.
//!
//! Invariants: a tape's answers depend only on its plan and on the questions, so the same plan
//! and the same recovery give the same image. Knows nothing of how contents come about.

use std::fmt;
use std::str::FromStr;

use everbyte_media::{LINE_U64, PoolOffset};

/// Who decides which possible content a line turns out to hold.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Plan {
    /// These answers in order, then always the first: the content in which least persisted.
    Script(Vec<u32>),
    /// No pending store persisted.
    Nothing,
    /// Every pending store persisted.
    Everything,
    /// Everything persisted in the line that starts here, nothing elsewhere.
    Only(PoolOffset),
    /// Nothing persisted in the line that starts here, everything elsewhere.
    Missing(PoolOffset),
    /// A random content for every line, from this seed.
    Seeded(u64),
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Script(answers) => {
                let needed = answers.iter().rposition(|&answer| answer != 0).map_or(0, |i| i + 1);
                f.write_str("c")?;
                for (i, answer) in answers[..needed].iter().enumerate() {
                    write!(f, "{}{answer}", if i == 0 { "" } else { "." })?;
                }
                Ok(())
            }
            Self::Nothing => f.write_str("n"),
            Self::Everything => f.write_str("a"),
            Self::Only(at) => write!(f, "o{:x}", at.0),
            Self::Missing(at) => write!(f, "m{:x}", at.0),
            Self::Seeded(seed) => write!(f, "r{seed:x}"),
        }
    }
}

/// The text is not a plan.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0:?} is not a plan: c0.1.2, n, a, o40, m40 or r2a was expected")]
pub struct BadPlan(String);

impl FromStr for Plan {
    type Err = BadPlan;

    fn from_str(text: &str) -> Result<Self, BadPlan> {
        let bad = || BadPlan(text.to_owned());
        let kind = text.chars().next().ok_or_else(bad)?;
        let rest = &text[kind.len_utf8()..];
        let hex = || u64::from_str_radix(rest, 16).map_err(|_| bad());
        match kind {
            'c' if rest.is_empty() => Ok(Self::Script(Vec::new())),
            'c' => rest
                .split('.')
                .map(|answer| answer.parse().map_err(|_| bad()))
                .collect::<Result<_, _>>()
                .map(Self::Script),
            'n' if rest.is_empty() => Ok(Self::Nothing),
            'a' if rest.is_empty() => Ok(Self::Everything),
            'o' => hex().map(|at| Self::Only(PoolOffset(at))),
            'm' => hex().map(|at| Self::Missing(PoolOffset(at))),
            'r' => hex().map(Self::Seeded),
            _ => Err(bad()),
        }
    }
}

/// One decision: which of several distinguishable contents the bytes first read had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Start of the line.
    pub at: PoolOffset,
    /// The content taken: `0..of`, 0 being the one in which least persisted.
    pub taken: u32,
    /// How many there were.
    pub of: u32,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: content {} of {}", self.at, self.taken, self.of)
    }
}

/// A plan being followed, and what came of it.
#[derive(Debug)]
pub(crate) struct Tape {
    plan: Plan,
    made: Vec<Choice>,
    strayed: bool,
    thinned: bool,
}

impl Default for Tape {
    fn default() -> Self {
        Self::new(Plan::Nothing)
    }
}

impl Tape {
    pub(crate) fn new(plan: Plan) -> Self {
        Self { plan, made: Vec::new(), strayed: false, thinned: false }
    }

    /// Everything decided so far.
    pub(crate) fn made(&self) -> &[Choice] {
        &self.made
    }

    /// Whether a script's answer did not fit its question, or had none.
    pub(crate) fn strayed(&self) -> bool {
        self.strayed || matches!(&self.plan, Plan::Script(a) if a.len() > self.made.len())
    }

    /// Whether a decision was about a line whose contents were not all enumerated.
    pub(crate) fn thinned(&self) -> bool {
        self.thinned
    }

    /// Decides among `of` contents of `line`, `all` being the most persisted one.
    pub(crate) fn choose(&mut self, line: u64, of: usize, all: usize, thinned: bool) -> usize {
        let at = PoolOffset(line * LINE_U64);
        let wanted = match &self.plan {
            Plan::Script(answers) => {
                answers.get(self.made.len()).map_or(0, |&answer| answer as usize)
            }
            Plan::Nothing => 0,
            Plan::Everything => all,
            Plan::Only(only) => all * usize::from(*only == at),
            Plan::Missing(missing) => all * usize::from(*missing != at),
            Plan::Seeded(seed) => seeded(*seed, line, of, all),
        };
        self.strayed |= wanted >= of;
        self.thinned |= thinned;
        let taken = wanted.min(of - 1);
        self.made.push(Choice { at, taken: narrow(taken), of: narrow(of) });
        taken
    }
}

/// A quarter nothing, a quarter everything, otherwise any content.
fn seeded(seed: u64, line: u64, of: usize, all: usize) -> usize {
    let random = mix(&[seed, line, of as u64]);
    match random % 4 {
        0 => 0,
        1 => all,
        _ => usize::try_from((random >> 2) % of as u64).unwrap_or(0),
    }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A well-spread 64-bit hash of `words`; the same in every version, so that replays last.
/// The finalizer is that of SplitMix64 (Steele, Lea, Flood, 2014).
pub(crate) fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |hash, word| {
        let mut z = hash ^ word.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_survive_printing() {
        let line = PoolOffset(0x1c0);
        for plan in [
            Plan::Script(vec![]),
            Plan::Script(vec![0, 3, 12]),
            Plan::Nothing,
            Plan::Everything,
            Plan::Only(line),
            Plan::Missing(line),
            Plan::Seeded(u64::MAX),
        ] {
            assert_eq!(plan.to_string().parse::<Plan>().unwrap(), plan);
        }
        assert_eq!(Plan::Script(vec![1, 0, 0]).to_string(), "c1");
        for bad in ["", "x", "c1.", "n1", "oz", "é"] {
            assert!(bad.parse::<Plan>().is_err(), "{bad}");
        }
    }

    #[test]
    fn scripts_that_do_not_fit_stray() {
        let mut tape = Tape::new(Plan::Script(vec![1, 2]));
        assert_eq!(tape.choose(0, 2, 1, false), 1);
        assert!(tape.strayed(), "one answer is left over");
        assert_eq!(tape.choose(1, 2, 1, false), 1);
        assert!(tape.strayed(), "2 is not below 2");
        let mut tape = Tape::new(Plan::Script(vec![1]));
        tape.choose(0, 2, 1, false);
        tape.choose(1, 5, 4, false);
        assert!(!tape.strayed());
    }

    #[test]
    fn seeds_reach_every_content() {
        let mut seen = [false; 5];
        for seed in 0..100 {
            seen[seeded(seed, 3, 5, 4)] = true;
        }
        assert_eq!(seen, [true; 5]);
    }
}
