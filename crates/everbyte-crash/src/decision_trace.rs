//! The decision trace: a plan for the content of each line after the crash, and the decisions made.
//!
//! Invariants: a decision depends only on the plan and on the decisions asked for before, so the
//! same plan and the same recovery give the same image. Knows nothing of the persistence rules.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;

use everbyte_media::{LINE, LINE_U64, PoolOffset};

/// The bytes of one line.
pub(crate) type Image = [u8; LINE];

/// Rule that chooses one of the possible contents of each line.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Plan {
    /// These answers in order, then always the first: the content with the least persisted.
    Script(Vec<u32>),
    /// The same for every line, but for some.
    Lines(Lines),
    /// A random content for every line, from this seed.
    Seeded(u64),
}

/// An image, line by line: everything persisted or nothing did, with exceptions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lines {
    /// True if every pending store persisted in the lines without an exception, false if none did.
    pub persisted: bool,
    /// Starts of the exceptional lines, with their answers in order. After these, and without
    /// answers from the first on, the line is the opposite of the others.
    pub but: BTreeMap<PoolOffset, Vec<u32>>,
}

impl Plan {
    /// No pending store persisted.
    #[must_use]
    pub fn nothing() -> Self {
        Self::Lines(Lines { persisted: false, but: BTreeMap::new() })
    }

    /// Every pending store persisted.
    #[must_use]
    pub fn everything() -> Self {
        Self::Lines(Lines { persisted: true, but: BTreeMap::new() })
    }

    /// Everything persisted in the line at `at`, nothing elsewhere.
    #[must_use]
    pub fn only(at: PoolOffset) -> Self {
        Self::Lines(Lines { persisted: false, but: BTreeMap::from([(at, Vec::new())]) })
    }

    /// Nothing persisted in the line at `at`, everything elsewhere.
    #[must_use]
    pub fn missing(at: PoolOffset) -> Self {
        Self::Lines(Lines { persisted: true, but: BTreeMap::from([(at, Vec::new())]) })
    }
}

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.persisted { "a" } else { "n" })?;
        for (at, answers) in &self.but {
            write!(f, "+{:x}", at.0)?;
            answers.iter().try_for_each(|answer| write!(f, ".{answer}"))?;
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Script(answers) => {
                // A missing answer means content 0, so zeroes at the end carry no decision.
                let needed = answers.iter().rposition(|&answer| answer != 0).map_or(0, |i| i + 1);
                f.write_str("c")?;
                for (i, answer) in answers[..needed].iter().enumerate() {
                    write!(f, "{}{answer}", if i == 0 { "" } else { "." })?;
                }
                Ok(())
            }
            Self::Lines(lines) => write!(f, "{lines}"),
            Self::Seeded(seed) => write!(f, "r{seed:x}"),
        }
    }
}

/// The text is not a plan.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0:?} is not a plan: c0.1.2, n, a, n+40, a+40.1+80 or r2a was expected")]
pub struct BadPlan(String);

impl FromStr for Plan {
    type Err = BadPlan;

    fn from_str(text: &str) -> Result<Self, BadPlan> {
        let bad = || BadPlan(text.to_owned());
        let kind = text.chars().next().ok_or_else(bad)?;
        let rest = &text[kind.len_utf8()..];
        let hex = |text: &str| u64::from_str_radix(text, 16).map_err(|_| bad());
        let answers = |text: &str| -> Result<Vec<u32>, BadPlan> {
            text.split('.').map(|answer| answer.parse().map_err(|_| bad())).collect()
        };
        let exception = |text: &str| {
            let (at, rest) =
                text.split_once('.').map_or((text, None), |(at, rest)| (at, Some(rest)));
            Ok((PoolOffset(hex(at)?), rest.map_or(Ok(Vec::new()), answers)?))
        };
        match kind {
            'c' if rest.is_empty() => Ok(Self::Script(Vec::new())),
            'c' => answers(rest).map(Self::Script),
            'n' | 'a' => {
                let mut parts = rest.split('+');
                if parts.next() != Some("") {
                    return Err(bad());
                }
                let but = parts.map(exception).collect::<Result<_, _>>()?;
                Ok(Self::Lines(Lines { persisted: kind == 'a', but }))
            }
            'r' => hex(rest).map(Self::Seeded),
            _ => Err(bad()),
        }
    }
}

/// One decision among the contents that a first read of a line can distinguish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Start of the line.
    pub at: PoolOffset,
    /// The content taken: `0..of`; in content 0 the least persisted.
    pub taken: u32,
    /// Number of contents.
    pub of: u32,
    /// The fully persisted content.
    pub all: u32,
}

/// A line after the crash, with decided bytes in `mask`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Learned {
    pub(crate) line: u64,
    pub(crate) mask: u64,
    pub(crate) image: Image,
}

/// A plan in execution, and the decisions made.
#[derive(Debug)]
pub(crate) struct DecisionTrace {
    plan: Plan,
    made: Vec<Choice>,
    /// Of a seeded plan: for each line its first random number, and how many it has had.
    drawn: HashMap<u64, (u64, u64)>,
    learned: Vec<Learned>,
    diverged: bool,
    thinned: bool,
}

impl Default for DecisionTrace {
    fn default() -> Self {
        Self::new(Plan::nothing())
    }
}

impl DecisionTrace {
    pub(crate) fn new(plan: Plan) -> Self {
        let (made, drawn, learned) = (Vec::new(), HashMap::new(), Vec::new());
        Self { plan, made, drawn, learned, diverged: false, thinned: false }
    }

    /// Everything decided so far.
    pub(crate) fn made(&self) -> &[Choice] {
        &self.made
    }

    /// Returns the bytes decided so far.
    pub(crate) fn learned(&self) -> &[Learned] {
        &self.learned
    }

    /// Notes decided bytes.
    pub(crate) fn learn(&mut self, learned: Learned) {
        self.learned.push(learned);
    }

    /// Returns true if a script's answer did not fit its decision, or was left over.
    pub(crate) fn diverged(&self) -> bool {
        self.diverged || matches!(&self.plan, Plan::Script(a) if a.len() > self.made.len())
    }

    /// Notes that bytes of a line were read. `thinned` is true if only some of its contents were
    /// enumerated.
    pub(crate) fn note_thinned(&mut self, thinned: bool) {
        self.thinned |= thinned;
    }

    /// Returns true after a read of a line without a full enumeration.
    pub(crate) fn thinned(&self) -> bool {
        self.thinned
    }

    /// Decides among `of` contents of `line`, `all` being the most persisted one.
    pub(crate) fn choose(&mut self, line: u64, of: usize, all: usize, thinned: bool) -> usize {
        let at = PoolOffset(line * LINE_U64);
        let wanted = match &self.plan {
            // Answers are in the order of questions: the same recovery asks in the same order.
            Plan::Script(answers) => {
                answers.get(self.made.len()).map_or(0, |&answer| answer as usize)
            }
            Plan::Lines(lines) => match lines.but.get(&at) {
                None => all * usize::from(lines.persisted),
                Some(answers) => {
                    // Recovery may read a line in parts, and each part asks again about the
                    // remaining contents.
                    let asked = self.made.iter().filter(|choice| choice.at == at).count();
                    let opposite = all * usize::from(!lines.persisted);
                    answers.get(asked).map_or(opposite, |&answer| answer as usize)
                }
            },
            Plan::Seeded(seed) => {
                // Drawn by line, not by question: a line's content then does not depend on the
                // order of reads.
                let first = || (mix(&[*seed, line, of as u64]), 0);
                let (first, asked) = self.drawn.entry(line).or_insert_with(first);
                // Another number for each question, or a line read in parts would never be torn between them.
                let random = if *asked == 0 { *first } else { mix(&[*first, *asked]) };
                *asked += 1;
                seeded(*first, random, of, all)
            }
        };
        // A replay of changed code asks about other contents. The run continues with a valid one,
        // and the caller reports the divergence.
        self.diverged |= wanted >= of;
        self.thinned |= thinned;
        let taken = wanted.min(of - 1);
        self.made.push(Choice { at, taken: narrow(taken), of: narrow(of), all: narrow(all) });
        taken
    }
}

/// For a quarter of the lines nothing, for a quarter everything, otherwise any content. `first`
/// identifies the line.
fn seeded(first: u64, random: u64, of: usize, all: usize) -> usize {
    match first % 4 {
        0 => 0,
        // Many mistakes need most lines lost or most kept. A uniform choice would rarely give
        // either.
        1 => all,
        _ => usize::try_from((random >> 2) % of as u64).unwrap_or(0),
    }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("few contents of a line are tried")
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
            Plan::nothing(),
            Plan::everything(),
            Plan::only(line),
            Plan::missing(line),
            Plan::Lines(Lines { persisted: true, but: [(line, vec![1, 0])].into() }),
            Plan::Seeded(u64::MAX),
        ] {
            assert_eq!(plan.to_string().parse::<Plan>().unwrap(), plan);
        }
        assert_eq!(Plan::Script(vec![1, 0, 0]).to_string(), "c1");
        for bad in ["", "x", "c1.", "n1", "n+", "a+z", "a+40.", "é"] {
            assert!(bad.parse::<Plan>().is_err(), "{bad}");
        }
    }

    #[test]
    fn scripts_that_do_not_fit_stray() {
        let mut decisions = DecisionTrace::new(Plan::Script(vec![1, 2]));
        assert_eq!(decisions.choose(0, 2, 1, false), 1);
        assert!(decisions.diverged(), "one answer is left over");
        assert_eq!(decisions.choose(1, 2, 1, false), 1);
        assert!(decisions.diverged(), "2 is not below 2");
        let mut decisions = DecisionTrace::new(Plan::Script(vec![1]));
        decisions.choose(0, 2, 1, false);
        decisions.choose(1, 5, 4, false);
        assert!(!decisions.diverged());
    }

    #[test]
    fn exceptions_answer_for_their_line_only() {
        let plan = "a+40.2".parse().unwrap();
        let mut decisions = DecisionTrace::new(plan);
        assert_eq!(decisions.choose(0, 4, 3, false), 3);
        assert_eq!(decisions.choose(1, 4, 3, false), 2);
        assert_eq!(decisions.choose(1, 4, 3, false), 0, "then the opposite");
        assert!(!decisions.diverged());
    }

    #[test]
    fn seeds_reach_every_content() {
        let mut seen = [false; 5];
        for seed in 0..100 {
            seen[DecisionTrace::new(Plan::Seeded(seed)).choose(3, 5, 4, false)] = true;
        }
        assert_eq!(seen, [true; 5]);
    }

    #[test]
    fn seeds_answer_each_question_about_a_line_by_itself() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let mut decisions = DecisionTrace::new(Plan::Seeded(seed));
            seen.insert([0; 3].map(|line| decisions.choose(line, 2, 1, false)));
        }
        assert_eq!(seen.len(), 8, "{seen:?}");
    }
}
