//! Reports of an exploration: the summary of a success, or the crash that broke the code.
//!
//! Owns the text of the report. Invariants: the text depends on the failure alone, so the same
//! failure reads the same.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use everbyte_media::PoolOffset;

use crate::decision_trace::{Choice, Plan};
use crate::labels::Labels;
use crate::medium::OpKind;
use crate::trace::{Mark, Missing, Traced};

/// Counts of an exploration without a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Crash points of the workload: its operations and one.
    pub points: u64,
    /// Of those, points with exactly the possible images of the previous one, without an event or a
    /// change [beside](crate::Scenario::beside) in between. They were not tried again.
    pub points_alike: u64,
    /// Of those, omitted points of too many.
    pub points_left_out: u64,
    /// Images recovered and checked after a crash of the workload.
    pub images: u64,
    /// Crashes of recoveries, distinct within one crash of the workload.
    pub nested_crashes: u64,
    /// Images recovered and checked after those.
    pub nested_images: u64,
    /// Crashes, of either kind, with too many images, which were sampled.
    pub sampled: u64,
    /// Images with a read of a line whose possible contents were not all tried.
    pub thinned: u64,
    /// Recoveries without a crash at each of their operations.
    pub left_out: u64,
}

impl Summary {
    /// Returns true if every image allowed by the rules and distinguishable by the code was
    /// checked, down to the explorer's nesting depth.
    #[must_use]
    pub fn is_exhaustive(&self) -> bool {
        self.points_left_out == 0 && self.sampled == 0 && self.thinned == 0 && self.left_out == 0
    }
}

/// Several explorations counted as one. The sum is exhaustive if each of them is.
impl AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        // Without `..`, a new count cannot be forgotten in the sum.
        let Self {
            points,
            points_alike,
            points_left_out,
            images,
            nested_crashes,
            nested_images,
            sampled,
            thinned,
            left_out,
        } = other;
        self.points += points;
        self.points_alike += points_alike;
        self.points_left_out += points_left_out;
        self.images += images;
        self.nested_crashes += nested_crashes;
        self.nested_images += nested_images;
        self.sampled += sampled;
        self.thinned += thinned;
        self.left_out += left_out;
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

/// A crashed recovery on the way to a failure.
#[derive(Clone, Debug)]
pub struct NestedCrash {
    /// Plan of its initial image.
    pub plan: Plan,
    /// Contents of that image, line by line, in the order of first reads.
    pub choices: Vec<Choice>,
    /// The power failed again just before this operation.
    pub at: u64,
    /// Its operations around this one.
    pub trace: Vec<Traced>,
}

/// A crash without recovery, or with a wrong one. Its text is a report.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Re-runs exactly this, given to `Explorer::replay` with the same scenario.
    pub replay: String,
    /// The power failed just before this operation of the workload.
    pub point: u64,
    /// Operations of the whole workload.
    pub points: u64,
    /// The remaining steps of a reduced workload. See [`Steps`](crate::Steps).
    pub kept: Option<Vec<usize>>,
    /// The workload's operations around the crash.
    pub trace: Vec<Traced>,
    /// Crashed recoveries, outermost first.
    pub nested: Vec<NestedCrash>,
    /// Plan of the failed image.
    pub plan: Plan,
    /// Its contents, line by line, in the order of first reads.
    pub choices: Vec<Choice>,
    /// The scenario's error.
    pub message: String,
    pub(crate) labels: Labels,
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "crash before operation {} of {}: {}", self.point, self.points, self.message)?;
        if let Some(kept) = &self.kept {
            writeln!(f, "  the workload was cut down to its steps {kept:?}, counted from 0")?;
        }
        writeln!(f, "  the workload, and what the crash left of it:")?;
        write_trace(f, &self.trace, self.point)?;
        for nested in &self.nested {
            let NestedCrash { plan, choices, at, trace } = nested;
            self.write_image(f, "the image it left", plan, choices)?;
            writeln!(f, "  recovery from it crashed before its operation {at}:")?;
            write_trace(f, trace, *at)?;
        }
        self.write_image(f, "the image that failed", &self.plan, &self.choices)?;
        let with = if self.kept.is_some() { "replay_steps" } else { "replay" };
        writeln!(
            f,
            "  to see it again: Explorer::{with} with the same scenario and {:?}",
            self.replay
        )
    }
}

impl Failure {
    fn write_image(
        &self,
        f: &mut fmt::Formatter<'_>,
        what: &str,
        plan: &Plan,
        choices: &[Choice],
    ) -> fmt::Result {
        if choices.is_empty() {
            return writeln!(f, "  {what}: no line in doubt was read");
        }
        let mut found: BTreeMap<PoolOffset, Vec<Choice>> = BTreeMap::new();
        choices.iter().for_each(|choice| found.entry(choice.at).or_default().push(*choice));
        if let Plan::Lines(lines) = plan {
            // The other lines follow the rule of the plan, so the report names the exceptions
            // alone.
            found.retain(|at, _| lines.but.contains_key(at));
            let rest = if lines.persisted { "everything" } else { "nothing" };
            let comma = if found.is_empty() { "" } else { ", but" };
            writeln!(f, "  {what}: {rest} that was in doubt persisted{comma}")?;
        } else {
            writeln!(f, "  {what}:")?;
        }
        for (at, choices) in found {
            let name = self.labels.name(at).map(|name| format!(" ({name})")).unwrap_or_default();
            writeln!(f, "    of line {at}{name} {}", told(&choices))?;
        }
        Ok(())
    }
}

/// Describes all decisions about one line.
fn told(choices: &[Choice]) -> String {
    if choices.iter().all(|choice| choice.taken == 0) {
        return "nothing".to_owned();
    }
    if choices.iter().all(|choice| choice.taken == choice.all) {
        return "everything".to_owned();
    }
    let content = |choice: &Choice| format!("{} of {}", choice.taken, choice.of);
    let contents: Vec<String> = choices.iter().map(content).collect();
    format!("a part: content {}", contents.join(", then "))
}

/// Shown bytes of a store.
const BYTES_SHOWN: usize = 8;

/// Returns the first word of an operation's row.
fn word(mark: Option<Mark>) -> &'static str {
    match mark {
        None => "",
        Some(Mark::Durable) => "durable",
        Some(Mark::Kept) => "kept",
        Some(Mark::Lost) => "LOST",
        Some(Mark::Torn) => "TORN",
        Some(Mark::Overwritten) => "overwritten",
        Some(Mark::Unread) => "unread",
    }
}

/// Writes operations, one a line, with a rule where the power failed, before operation `end`.
fn write_trace(f: &mut fmt::Formatter<'_>, trace: &[Traced], end: u64) -> fmt::Result {
    let columns = Columns {
        // A workload of one thread has no column of threads.
        threads: trace.iter().any(|traced| traced.op.thread != trace[0].op.thread),
        place: trace.iter().map(|traced| place(traced).len()).max().unwrap_or(0),
    };
    let rule =
        |f: &mut fmt::Formatter<'_>| writeln!(f, "    ------------ power fails ------------");
    let mut next = trace.first().map_or(end, |traced| traced.number);
    if next > 0 && next <= end {
        writeln!(f, "    ... {next} operations")?;
    }
    for traced in trace {
        // The trace omits durable and unread operations, so gaps can occur anywhere before the
        // recent ones.
        if traced.number > next {
            writeln!(f, "    ... {} operations", traced.number - next)?;
        }
        if traced.number == end {
            rule(f)?;
        }
        next = traced.number + 1;
        writeln!(f, "    {}", row(traced, &columns).trim_end())?;
    }
    // Without operations after the crash, no row has drawn the rule.
    if trace.last().is_none_or(|traced| traced.number < end) {
        rule(f)?;
    }
    Ok(())
}

/// Layout of one listing of operations.
struct Columns {
    /// True if the operations are of several threads.
    threads: bool,
    /// Characters of the longest place.
    place: usize,
}

/// Describes the range of an operation.
fn place(traced: &Traced) -> String {
    let Traced { op, label, .. } = traced;
    match label {
        // A fence concerns its whole thread and has no range.
        _ if op.kind == OpKind::Fence => String::new(),
        Some(label) => format!("{} bytes at {} ({label})", op.len, op.at),
        None => format!("{} bytes at {}", op.len, op.at),
    }
}

/// The first stored bytes of an operation.
fn bytes(traced: &Traced) -> String {
    let bytes = traced.op.bytes();
    let shown = bytes.iter().take(BYTES_SHOWN).map(|byte| format!("{byte:02x}"));
    let more = (bytes.len() > BYTES_SHOWN).then(|| "..".to_owned());
    shown.chain(more).collect::<Vec<_>>().join(" ")
}

fn row(traced: &Traced, columns: &Columns) -> String {
    let Traced { number, op, mark, missing, .. } = traced;
    let thread = if columns.threads { format!("thread {} ", op.thread.0) } else { String::new() };
    let missing = match missing {
        None => "",
        Some(Missing::Flush) => "not flushed",
        Some(Missing::Fence) => "not fenced",
    };
    let (word, kind, width) = (word(*mark), op.kind, columns.place);
    let (place, bytes) = (place(traced), bytes(traced));
    format!("{word:<11} {number:>5}  {thread}{kind:<6} {place:<width$}  {bytes:<26} {missing}")
}
