//! The allowed trees after operations of several threads, at the end and after a crash.
//!
//! Operations are atomic. Their order agrees with each thread and with time: an operation answered before the
//! start of another comes first. The model gives the same answers in this order. A crash leaves a prefix of
//! the order: all epochs up to the completed one, and no later ones. A sync that was answered includes all
//! operations answered before its start. Durable writes that were answered lie over the prefix.

use crate::model::Model;
use crate::operations::{Op, Path, Subject, Tree};

const ENOENT: i32 = 2;
const EINVAL: i32 = 22;

/// One step of a thread.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Make(Op),
    /// Lists a directory. It has these names during the whole run.
    List {
        path: Path,
        always: Vec<String>,
    },
    /// Reads a file.
    Look(Path),
    /// Reads a file that stays open.
    LookAtOpened(Path),
    /// Takes a view of a file.
    View(Path),
    /// Compares the view with its first bytes.
    LookAtView,
}

/// Event that a thread reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// The file system is open, and the threads start.
    Opened,
    /// A step starts in this open epoch.
    Begun { task: usize, step: usize, epoch: u64 },
    /// A step was answered in this open epoch, with the read bytes or an error number.
    Ended { task: usize, step: usize, epoch: u64, answer: Result<Vec<u8>, i32> },
    /// All threads have ended, with this tree.
    Joined { tree: Tree },
    /// A failure without a crash.
    Trouble(String),
}

/// A started step.
#[derive(Clone, Debug)]
struct Request<'a> {
    step: &'a Step,
    /// The index of its start among all events.
    begun: usize,
    ended: usize,
    /// Bounds of its epoch.
    epoch_min: u64,
    epoch_max: u64,
    answer: Option<&'a Result<Vec<u8>, i32>>,
}

impl Request<'_> {
    /// Performs it on the model. Returns false if the model's answer differs.
    fn agrees(&self, model: &mut Model) -> bool {
        let answer = match self.step {
            Step::Make(op) => model.make(op).map(|()| Vec::new()),
            Step::Look(path) | Step::LookAtOpened(path) | Step::View(path) => {
                model.bytes(path).map(|bytes| bytes.clone())
            }
            Step::List { .. } | Step::LookAtView => return true,
        };
        let is_rename = matches!(self.step, Step::Make(Op::Rename(..)));
        self.answer.is_none_or(|given| {
            // Path walks come first: a directory found at its old place can be below the other one by the
            // time of its step.
            *given == answer || (is_rename && *given == Err(EINVAL) && answer == Err(ENOENT))
        })
    }

    /// Returns true if it survives a crash that undoes earlier operations.
    fn is_durable_itself(&self) -> bool {
        matches!(self.step, Step::Make(Op::WriteDurably { .. }))
    }

    /// The allowed trees after a crash with it over `left`, if it is not part of the prefix.
    fn over(&self, left: &Model) -> Vec<Model> {
        let Step::Make(Op::WriteDurably { path, offset, len, .. }) = self.step else {
            return vec![left.clone()];
        };
        let mut all = Vec::new();
        if self.answer.is_none() || self.answer.is_some_and(Result::is_err) {
            all.push(left.clone());
        }
        let mut written = left.clone();
        let end = usize::try_from(*offset).expect("files are small") + len;
        // An extending write waits for a checkpoint.
        if written.bytes(path).is_ok_and(|bytes| end <= bytes.len()) && self.agrees(&mut written) {
            all.push(written);
        }
        all
    }

    fn changes(&self) -> bool {
        if self.answer.is_some_and(Result::is_err) {
            return false;
        }
        match self.step {
            Step::Make(op) => {
                !matches!(op, Op::Sync | Op::SyncFile(_) | Op::Open(..) | Op::Close(_))
            }
            Step::List { .. } | Step::Look(_) | Step::LookAtOpened(_) => false,
            Step::View(_) | Step::LookAtView => false,
        }
    }

    /// Returns true if it makes `other`, answered before its start, durable.
    fn syncs(&self, other: &Request<'_>) -> bool {
        if self.answer != Some(&Ok(Vec::new())) || other.ended > self.begun {
            return false;
        }
        match (self.step, other.step) {
            (Step::Make(Op::Sync), _) => true,
            (Step::Make(Op::SyncFile(path)), Step::Make(op)) => op.paths().contains(path),
            _ => false,
        }
    }
}

/// The target of a search: the tree of a prefix, or of all operations.
struct Goal<'t> {
    tree: &'t Tree,
    /// The completed epoch; `None` without a crash.
    completed: Option<u64>,
}

/// A search for an order.
struct Search<'a> {
    /// By thread, in its order.
    requests: Vec<Vec<Request<'a>>>,
    /// True if any request is a durable write.
    has_durable: bool,
    wanted: Goal<'a>,
}

impl<'a> Search<'a> {
    fn new(tasks: &'a [Vec<Step>], events: &[&'a Event], wanted: Goal<'a>) -> Self {
        let mut requests: Vec<Vec<Request<'_>>> = vec![Vec::new(); tasks.len()];
        for (place, event) in events.iter().enumerate() {
            match event {
                Event::Begun { task, step, epoch } => requests[*task].push(Request {
                    step: &tasks[*task][*step],
                    begun: place,
                    ended: usize::MAX,
                    epoch_min: *epoch,
                    epoch_max: u64::MAX,
                    answer: None,
                }),
                Event::Ended { task, step, epoch, answer } => {
                    let request = &mut requests[*task][*step];
                    (request.ended, request.epoch_max) = (place, *epoch);
                    request.answer = Some(answer);
                }
                Event::Opened | Event::Joined { .. } | Event::Trouble(_) => {}
            }
        }
        let has_durable = requests.iter().flatten().any(Request::is_durable_itself);
        Self { requests, has_durable, wanted }
    }

    /// Returns true if the request may be missing from the state, false if the state must include it.
    fn may_be_lost(&self, request: &Request<'_>) -> bool {
        let Some(completed) = self.wanted.completed else { return !request.changes() };
        let is_synced = || self.requests.iter().flatten().any(|other| other.syncs(request));
        !request.changes() || (request.epoch_max > completed && !is_synced())
    }

    fn may_be_kept(&self, request: &Request<'_>) -> bool {
        !request.changes()
            || self.wanted.completed.is_none_or(|completed| request.epoch_min <= completed)
    }

    /// Searches an order. `next` has the number of performed requests of each thread on `model`. `left` is
    /// the state after the crash, once the prefix is found.
    fn finds(&self, next: &mut [usize], model: &Model, left: Option<&Model>) -> bool {
        let may_be_cut = || self.has_durable || model.tree() == *self.wanted.tree;
        if left.is_none() && may_be_cut() && self.finds(next, model, Some(model)) {
            return true;
        }
        let rest = |next: &[usize]| -> Vec<&Request<'_>> {
            let rest = self.requests.iter().zip(next);
            rest.filter_map(|(requests, &at)| requests.get(at)).collect()
        };
        let first = rest(next);
        if let Some(left) = left
            && first.iter().all(|request| request.answer.is_none())
            && left.tree() == *self.wanted.tree
        {
            return true;
        }
        for task in 0..next.len() {
            let Some(request) = self.requests[task].get(next[task]) else { continue };
            let is_late = first.iter().any(|other| other.ended < request.begun);
            let fits = match left {
                Some(_) => self.may_be_lost(request),
                None => self.may_be_kept(request),
            };
            let mut after = model.clone();
            if is_late || !fits || !request.agrees(&mut after) {
                continue;
            }
            next[task] += 1;
            let found = match left {
                None => self.finds(next, &after, None),
                Some(left) => {
                    request.over(left).iter().any(|left| self.finds(next, &after, Some(left)))
                }
            };
            next[task] -= 1;
            if found {
                return true;
            }
        }
        false
    }

    fn succeeds(&self, model: &Model) -> bool {
        self.finds(&mut vec![0; self.requests.len()], model, None)
    }
}

/// Checks the state `found` after a crash that follows `events`, with the epoch `completed`.
pub(crate) fn check(
    tasks: &[Vec<Step>],
    before: &Model,
    events: &[&Event],
    completed: u64,
    found: &Tree,
) -> Result<(), String> {
    let troubles: Vec<&str> = events
        .iter()
        .filter_map(|event| match event {
            Event::Trouble(trouble) => Some(trouble.as_str()),
            _ => None,
        })
        .collect();
    if !troubles.is_empty() {
        return Err(troubles.join("; "));
    }
    for event in events {
        if let Event::Joined { tree } = event
            && !Search::new(tasks, events, Goal { tree, completed: None }).succeeds(before)
        {
            return Err(format!("the threads left what no order of theirs does: {tree:?}"));
        }
    }
    let wanted = Goal { tree: found, completed: Some(completed) };
    let search = Search::new(tasks, events, wanted);
    if search.succeeds(before) {
        return Ok(());
    }
    let requests: Vec<String> = search
        .requests
        .iter()
        .flatten()
        .map(|r| {
            let (kept, lost) = (search.may_be_kept(r), search.may_be_lost(r));
            format!("{:?}: {:?}, may be kept: {kept}, lost: {lost}", r.step, r.answer)
        })
        .collect();
    Err(format!("epoch {completed} was completed, but no order of {requests:#?} leaves {found:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64) -> Step {
        Step::Make(Op::Write { path: vec!["a"], offset, len: 3, byte: 1 })
    }

    fn ended(task: usize, epoch: u64) -> Event {
        Event::Ended { task, step: 0, epoch, answer: Ok(Vec::new()) }
    }

    /// Allowed outcomes of two concurrent writes in epochs 5 and 6 if `completed` is the completed epoch:
    /// neither, the first, the second, both.
    fn allowed(completed: u64) -> [bool; 4] {
        let tasks = [vec![write(0)], vec![write(3)]];
        let mut before = Model::new();
        before.make(&Op::Create(vec!["a"], 0o644)).unwrap();
        let begun = |task, epoch| Event::Begun { task, step: 0, epoch };
        let events = [begun(0, 5), begun(1, 5), ended(0, 5), ended(1, 6)];
        let events: Vec<&Event> = events.iter().collect();
        [[].as_slice(), &[0], &[1], &[0, 1]].map(|order| {
            let mut model = before.clone();
            for &task in order {
                let Step::Make(op) = &tasks[task][0] else { unreachable!("both write") };
                model.make(op).unwrap();
            }
            check(&tasks, &before, &events, completed, &model.tree()).is_ok()
        })
    }

    #[test]
    fn crash_leaves_a_prefix_of_an_order() {
        assert_eq!(allowed(4), [true, false, false, false]);
        assert_eq!(allowed(5), [false, true, false, true]);
        assert_eq!(allowed(6), [false, false, false, true]);
    }
}
