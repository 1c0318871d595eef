//! The trees that there may be after the operations of several threads: at the end, and after a crash.
//!
//! Operations are atomic and happen in some order that agrees with each thread's own and with time: one
//! that was answered before another began comes first. What was answered is what the model answers in
//! that order. A crash leaves a beginning of that order: all of the epochs up to the one that recovery
//! found completed and nothing of later ones, among them all that was answered before a sync began that
//! was answered, too. Over that lie writes that are durable by themselves: all that were answered.

use crate::model::Model;
use crate::operations::{Op, Path, Subject, Tree};

const ENOENT: i32 = 2;
const EINVAL: i32 = 22;

/// One step of a thread.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Make(Op),
    /// Lists a directory, in which these names are all the time.
    List {
        path: Path,
        always: Vec<String>,
    },
    /// Reads a file.
    Look(Path),
    /// Reads a file that stays open, the same each time.
    LookAtOpened(Path),
    /// Takes a view of a file.
    View(Path),
    /// Looks whether the view is of the same bytes still.
    LookAtView,
}

/// Event that a thread reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// The file system is open; the threads begin.
    Opened,
    /// A step begins, while this epoch takes writes.
    Begun { task: usize, step: usize, epoch: u64 },
    /// A step was answered, while this epoch takes writes: with bytes that were read, or an error number.
    Ended { task: usize, step: usize, epoch: u64, answer: Result<Vec<u8>, i32> },
    /// All threads have ended, and this is there.
    Joined { tree: Tree },
    /// Something went wrong without a crash.
    Trouble(String),
}

/// A step that has begun.
#[derive(Clone, Debug)]
struct Request<'a> {
    step: &'a Step,
    /// The place of its events among all; `usize::MAX` if it was not answered.
    begun: usize,
    ended: usize,
    /// Its epoch is one of these.
    epoch_min: u64,
    epoch_max: u64,
    answer: Option<&'a Result<Vec<u8>, i32>>,
}

impl Request<'_> {
    /// Makes it on the model. False if the model gives another answer.
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
            // Paths are walked first: a directory that was found at its old place may be within the
            // other when it is its turn.
            *given == answer || (is_rename && *given == Err(EINVAL) && answer == Err(ENOENT))
        })
    }

    /// Returns true if it may be left by a crash that takes earlier ones back.
    fn is_durable_itself(&self) -> bool {
        matches!(self.step, Step::Make(Op::WriteDurably { .. }))
    }

    /// The trees that a crash may leave of it over `left`, where it is not one of those that come first.
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
        // One that makes a file larger waits for a checkpoint.
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

    /// Returns true if this makes `other` durable, which was answered before it began.
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

/// The aim of a search: the tree of a beginning of an order, or of all of it.
struct Goal<'t> {
    tree: &'t Tree,
    /// The epoch that is found completed; `None` if nothing has crashed.
    completed: Option<u64>,
}

/// A search for an order.
struct Search<'a> {
    /// By thread, in its order.
    requests: Vec<Vec<Request<'a>>>,
    /// True if any of them is durable by itself.
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

    /// True if it may be, and false if it must not be, that the request is not part of what is left.
    fn may_be_lost(&self, request: &Request<'_>) -> bool {
        let Some(completed) = self.wanted.completed else { return !request.changes() };
        let is_synced = || self.requests.iter().flatten().any(|other| other.syncs(request));
        !request.changes() || (request.epoch_max > completed && !is_synced())
    }

    fn may_be_kept(&self, request: &Request<'_>) -> bool {
        !request.changes()
            || self.wanted.completed.is_none_or(|completed| request.epoch_min <= completed)
    }

    /// Looks for an order. `next` says how many requests of each thread are made, on `model`; `left` is what
    /// a crash left, once all that comes first was found.
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

/// Checks what a crash after `events` left: recovery found `completed`, and now there is `found`.
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

    /// Outcomes of two writes at once in epochs 5 and 6 that may be when epoch `completed` is found completed:
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
