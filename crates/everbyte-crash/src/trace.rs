//! Outcome of each operation before a crash, for the report.
//!
//! Invariants: this explains operations by the bytes of the failing image and decides nothing.
//! Bytes of a store that no crash could have left otherwise explain nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use everbyte_media::LINE_U64;

use crate::address::{index, lines_of};
use crate::decision_trace::Learned;
use crate::labels::Labels;
use crate::medium::{Op, OpKind};
use crate::memory::ThreadNo;
use crate::recovery_run::RecoveryRun;
use crate::step::Step;

/// Operations shown from the time after the crash.
const AFTER_MAX: u64 = 3;

/// State of a store or a stream in the failing image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// It is present in every image: fenced, or without a change.
    Durable,
    /// It could have been lost, and is present.
    Kept,
    /// It is lost.
    Lost,
    /// A part of it is present, and a part is lost.
    Torn,
    /// A later store to the same bytes is present.
    Overwritten,
    /// The lines in doubt were never read.
    Unread,
}

/// Operation that a store or a flush still waited for when the power failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// A flush of its line or lines.
    Flush,
    /// A fence of the thread that flushed or streamed.
    Fence,
}

/// An operation, explained.
#[derive(Clone, Debug)]
pub struct Traced {
    /// Its number among the operations of its run.
    pub number: u64,
    /// The operation.
    pub op: Op,
    /// Name of its bytes, if the scenario has one.
    pub label: Option<String>,
    /// Its state in the image. `None` for flushes, fences, and operations after the crash.
    pub mark: Option<Mark>,
    /// Operation that it waited for. `None` if it waited for none, or is after the crash.
    pub missing: Option<Missing>,
}

/// A crash and the recoveries that followed it.
pub(crate) struct CrashAftermath<'a> {
    /// The recoveries that followed, at least one; the first one booted from the crash's state.
    pub(crate) recoveries: &'a [RecoveryRun],
    /// Crashes of all but the last of them.
    pub(crate) steps: &'a [Step],
}

impl CrashAftermath<'_> {
    /// Returns true if the crash could leave more than one value in the byte at `at`.
    fn in_doubt(&self, at: u64) -> bool {
        self.recoveries[0].state.in_doubt(at)
    }

    /// Returns the byte at `at`, which was in doubt, if it was decided. A later recovery may be the
    /// first to read it; then its value counts, unless an earlier one could have stored it.
    fn byte(&self, at: u64) -> Option<u8> {
        let learned = self.recoveries.iter().map(|run| learned(&run.learned, at));
        let (reader, byte) = learned.enumerate().find_map(|(i, byte)| Some((i, byte?)))?;
        let mut between = self.recoveries[..reader].iter().zip(self.steps);
        let stored = between.any(|(run, step)| {
            // Operations after the crash of a recovery left nothing.
            let mut before = run.ops.iter().zip(0..step.at);
            before.any(|(op, _)| byte_of(op, at) == Some(byte))
        });
        (!stored).then_some(byte)
    }
}

/// Returns the decided value of the byte at `at`.
fn learned(learned: &[Learned], at: u64) -> Option<u8> {
    let (line, bit) = (at / LINE_U64, at % LINE_U64);
    let found = learned.iter().rev().find(|l| l.line == line && l.mask >> bit & 1 != 0)?;
    found.image.get(usize::try_from(bit).ok()?).copied()
}

/// Explains the operations around a crash before operation `end`: the last `recent_max` and the
/// next few, and at most as many earlier ones whose outcome was in doubt and was decided.
pub(crate) fn trace(
    ops: &[Op],
    end: u64,
    left: &CrashAftermath<'_>,
    labels: &Labels,
    recent_max: usize,
) -> Vec<Traced> {
    // A replay can name a crash after the last operation.
    let end = index(end).min(ops.len());
    let missing = all_missing(&ops[..end]);
    let explain = |i: usize| {
        let op = ops[i].clone();
        let stored = matches!(op.kind, OpKind::Store | OpKind::Stream);
        let label = (op.kind != OpKind::Fence).then(|| labels.name(op.at)).flatten();
        let mark = (stored && i < end).then(|| mark(ops, i, end, left, missing[i]));
        let missing = missing.get(i).copied().flatten();
        // A store without a change is durable in every image, so its missing flush explains
        // nothing.
        let missing = missing.filter(|_| mark != Some(Mark::Durable));
        Traced { number: i as u64, op, label, mark, missing }
    };
    let recent = end.saturating_sub(recent_max)..end;
    let telling =
        |traced: &Traced| matches!(traced.mark, Some(Mark::Kept | Mark::Lost | Mark::Torn));
    let mut shown: Vec<Traced> =
        (0..recent.start).rev().map(explain).filter(telling).take(recent_max).collect();
    // The search for telling operations went back from the crash.
    shown.reverse();
    shown.extend(recent.map(explain));
    let after = (ops.len() - end).min(usize::try_from(AFTER_MAX).unwrap_or(0));
    shown.extend((end..end + after).map(explain));
    shown
}

/// Returns the operation that each operation waits for at the end of `ops`.
fn all_missing(ops: &[Op]) -> Vec<Option<Missing>> {
    let mut fencing: BTreeSet<ThreadNo> = BTreeSet::new();
    // Lines flushed later on, and whether a fence of the same thread followed.
    let mut flushed: BTreeMap<u64, bool> = BTreeMap::new();
    let mut missing = vec![None; ops.len()];
    // Backwards: an operation waits for a later flush and a still later fence.
    for (op, missing) in ops.iter().zip(&mut missing).rev() {
        let fenced = fencing.contains(&op.thread);
        *missing = match op.kind {
            OpKind::Fence => {
                fencing.insert(op.thread);
                None
            }
            OpKind::Flush => {
                for line in lines_of(op.at.0, op.len) {
                    // One fenced flush after the store suffices, even if a later flush is not
                    // fenced.
                    *flushed.entry(line).or_default() |= fenced;
                }
                (!fenced).then_some(Missing::Fence)
            }
            OpKind::Stream => (!fenced).then_some(Missing::Fence),
            OpKind::Store => {
                let lines = lines_of(op.at.0, op.len);
                let flushes: Vec<_> = lines.map(|line| flushed.get(&line).copied()).collect();
                // A missing flush first: a fence without it changes nothing.
                if flushes.contains(&None) {
                    Some(Missing::Flush)
                } else {
                    flushes.contains(&Some(false)).then_some(Missing::Fence)
                }
            }
        };
    }
    missing
}

fn bytes_of(op: &Op) -> Range<u64> {
    op.at.0..op.at.0 + op.bytes().len() as u64
}

/// The byte that `op` put at `at`, if any.
fn byte_of(op: &Op, at: u64) -> Option<u8> {
    bytes_of(op).contains(&at).then(|| op.bytes()[usize::try_from(at - op.at.0).unwrap_or(0)])
}

/// Returns the state of store `i` after the crash before operation `end`.
fn mark(
    ops: &[Op],
    i: usize,
    end: usize,
    left: &CrashAftermath<'_>,
    missing: Option<Missing>,
) -> Mark {
    if missing.is_none() {
        return Mark::Durable;
    }
    let (mut doubtful, mut kept, mut lost, mut over) = (false, false, false, false);
    for at in bytes_of(&ops[i]).filter(|&at| left.in_doubt(at)) {
        doubtful = true;
        // An unread byte could have had any value, so it shows neither loss nor presence.
        let Some(byte) = left.byte(at) else { continue };
        if byte_of(&ops[i], at) == Some(byte) {
            kept = true;
        // The bytes cannot show whether the store was lost before it was overwritten.
        } else if ops[i + 1..end].iter().any(|later| byte_of(later, at) == Some(byte)) {
            over = true;
        } else {
            lost = true;
        }
    }
    match (kept, lost) {
        (true, true) => Mark::Torn,
        (true, false) => Mark::Kept,
        (false, true) => Mark::Lost,
        (false, false) if over => Mark::Overwritten,
        (false, false) if doubtful => Mark::Unread,
        // No byte was in doubt: the store changed nothing, or a later durable store covers it.
        (false, false) => Mark::Durable,
    }
}
