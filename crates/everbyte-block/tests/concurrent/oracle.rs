//! Contents that a volume may hold after the requests of its threads: at any time, and after a crash.
//!
//! Requests are atomic and happen in some order that agrees with each thread's own order and with time: if
//! one was answered before another began, it comes first. A read sees the outcome of such an order. A crash
//! leaves the outcome of exactly the requests of the epochs up to the completed one found by recovery, and on
//! top the requests with a durable answer. The completed epochs contain every request answered before the
//! start of an answered flush.

use crate::workload::{Step, Workload, pattern, seed_of};

/// Event reported by a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// The volume is open; the threads begin.
    Opened,
    /// A step begins, while this epoch takes writes.
    Begun { task: usize, step: usize, epoch: u64 },
    /// A step was answered, while this epoch takes writes; a read with these bytes.
    Ended { task: usize, step: usize, epoch: u64, bytes: Vec<u8> },
    /// A write was refused, because damage was found.
    Refused { task: usize, step: usize },
    /// All threads have ended; the watched blocks of each volume are this.
    Joined { contents: Vec<Vec<u8>> },
    /// Something went wrong without a crash.
    Trouble(String),
}

impl Event {
    fn trouble(&self) -> Option<&str> {
        match self {
            Self::Trouble(trouble) => Some(trouble),
            _ => None,
        }
    }
}

/// A begun step.
#[derive(Clone, Copy, Debug)]
struct Request {
    task: usize,
    index: usize,
    step: Step,
    /// The place of its events among all.
    begun: usize,
    ended: usize,
    /// Its epoch is one of these.
    epoch_min: u64,
    epoch_max: u64,
    /// It was refused, so nothing of it is anywhere.
    is_refused: bool,
}

impl Request {
    fn changes(&self) -> bool {
        !matches!(
            self.step,
            Step::Flush
                | Step::Read { .. }
                | Step::Grow { .. }
                | Step::Shrink { .. }
                | Step::Damage
                | Step::ComeAndGo
                | Step::RolledBack { .. }
        )
    }

    /// Returns true if it may become durable before its epoch does, by the FUA fast path.
    fn is_short(&self) -> bool {
        matches!(self.step, Step::Durable { .. } | Step::DurableBatch { .. })
    }
}

/// Membership of a request in an outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Yes,
    No,
    Maybe,
}

/// A request as a candidate for an outcome.
struct Change<'a> {
    request: &'a Request,
    part: Part,
    /// The resulting bytes, by their places among the watched ones.
    bytes: Vec<(usize, Vec<u8>)>,
}

/// An outcome in the making.
#[derive(Clone)]
struct Cut {
    contents: Vec<u8>,
    /// Requests begun after this event belong to a left out epoch.
    open_from: usize,
}

/// Begun requests, by thread, in order.
struct History<'a> {
    workload: &'a Workload,
    requests: Vec<Request>,
}

impl<'a> History<'a> {
    /// The requests of the threads on the volume at `place`.
    fn new(workload: &'a Workload, place: usize, events: &[&Event]) -> Self {
        let is_other = |task: usize| workload.volume_of[task] != place;
        let mut requests: Vec<Request> = Vec::new();
        for (place, event) in events.iter().enumerate() {
            match **event {
                Event::Begun { task, .. }
                | Event::Ended { task, .. }
                | Event::Refused { task, .. }
                    if is_other(task) => {}
                Event::Begun { task, step: index, epoch } => requests.push(Request {
                    task,
                    index,
                    step: workload.tasks[task][index],
                    begun: place,
                    ended: usize::MAX,
                    epoch_min: epoch,
                    epoch_max: u64::MAX,
                    is_refused: false,
                }),
                Event::Ended { task, step, epoch, .. } => {
                    let of_step = |r: &&mut Request| r.task == task && r.index == step;
                    let request = requests.iter_mut().find(of_step).unwrap();
                    (request.ended, request.epoch_max) = (place, epoch);
                }
                Event::Refused { task, step } => {
                    let of_step = |r: &&mut Request| r.task == task && r.index == step;
                    let request = requests.iter_mut().find(of_step).unwrap();
                    (request.ended, request.is_refused) = (place, true);
                }
                Event::Opened | Event::Joined { .. } | Event::Trouble(_) => {}
            }
        }
        Self { workload, requests }
    }

    /// The changing requests of each thread, the first one last.
    fn changes(&self, part: &dyn Fn(&Request) -> Part) -> Vec<Vec<Change<'_>>> {
        let of = |task| {
            let theirs = self.requests.iter().rev().filter(move |r| r.task == task);
            let changes = theirs.filter(|r| r.changes() && !r.is_refused);
            changes.flat_map(|request| {
                let ranges = request.step.ranges();
                let parts: Vec<_> = match request.step {
                    // Each is durable separately.
                    Step::DurableBatch { .. } => {
                        ranges.into_iter().rev().map(|r| vec![r]).collect()
                    }
                    _ => vec![ranges],
                };
                parts.into_iter().map(|ranges| Change {
                    request,
                    part: part(request),
                    bytes: self.bytes(request, &ranges),
                })
            })
        };
        (0..self.workload.tasks.len()).map(|task| of(task).collect()).collect()
    }

    /// The resulting bytes of `request` in `ranges`, by their places among the watched ones.
    fn bytes(&self, request: &Request, ranges: &[(u64, u64)]) -> Vec<(usize, Vec<u8>)> {
        let places = ranges.iter().flat_map(|&(at, len)| self.workload.places(at, len));
        let bytes = places.map(|(start, from, len)| match request.step {
            Step::Discard { .. } | Step::Reserve { .. } => (start, vec![0; len]),
            _ => (start, pattern(seed_of(request.task, request.index), from, len)),
        });
        bytes.collect()
    }

    /// Returns true if some order of the requests in `part` has an outcome that `fits`.
    fn explains(&self, part: &dyn Fn(&Request) -> Part, fits: &dyn Fn(&[u8]) -> bool) -> bool {
        let changes = self.changes(part);
        let mut rest: Vec<&[Change<'_>]> = changes.iter().map(Vec::as_slice).collect();
        let contents = self.workload.initial();
        Self::explains_from(&mut rest, Cut { contents, open_from: usize::MAX }, fits)
    }

    /// `rest` holds each thread's remaining requests, the next one last.
    fn explains_from(rest: &mut [&[Change<'_>]], cut: Cut, fits: &dyn Fn(&[u8]) -> bool) -> bool {
        if rest.iter().all(|changes| changes.is_empty()) {
            return fits(&cut.contents);
        }
        for task in 0..rest.len() {
            let remaining = rest[task];
            let Some((next, later)) = remaining.split_last() else { continue };
            let mut others = rest.iter().filter_map(|changes| changes.last());
            if others.any(|other| other.request.ended < next.request.begun) {
                continue;
            }
            rest[task] = later;
            let cuts = [Self::with(next, &cut), Self::without(next, &cut)];
            let found = cuts.into_iter().flatten().any(|cut| Self::explains_from(rest, cut, fits));
            rest[task] = remaining;
            if found {
                return true;
            }
        }
        false
    }

    /// The outcome with `change` in it, if that is possible.
    fn with(change: &Change<'_>, cut: &Cut) -> Option<Cut> {
        let beyond = !change.request.is_short() && change.request.begun > cut.open_from;
        (change.part != Part::No && !beyond).then(|| {
            let mut cut = cut.clone();
            for (start, bytes) in &change.bytes {
                cut.contents[*start..start + bytes.len()].copy_from_slice(bytes);
            }
            cut
        })
    }

    /// The outcome without `change`, if that is possible.
    fn without(change: &Change<'_>, cut: &Cut) -> Option<Cut> {
        (change.part != Part::Yes).then(|| {
            let mut cut = cut.clone();
            if !change.request.is_short() {
                cut.open_from = cut.open_from.min(change.request.ended);
            }
            cut
        })
    }

    /// Returns true if the request survives a crash with `completed` found by recovery.
    fn survives(&self, request: &Request, completed: u64) -> Part {
        let durable =
            request.is_short() || matches!(request.step, Step::Group { .. } | Step::Atomic { .. });
        let answered = durable && request.ended != usize::MAX;
        if request.epoch_max <= completed || self.is_flushed(request) || answered {
            Part::Yes
        } else if request.is_short() {
            Part::Maybe
        } else if request.epoch_min > completed {
            Part::No
        } else {
            Part::Maybe
        }
    }

    /// Returns true if an answered flush began after the request's answer.
    fn is_flushed(&self, request: &Request) -> bool {
        let flushes = self.requests.iter().filter(|r| r.step == Step::Flush);
        flushes.filter(|f| f.ended != usize::MAX).any(|flush| request.ended < flush.begun)
    }

    /// Checks the result of the read with the end event `ended`.
    fn check_read(&self, read: &Request, bytes: &[u8]) -> Result<(), String> {
        let Step::Read { at, .. } = read.step else { return Ok(()) };
        let part = |request: &Request| match request {
            r if r.ended < read.begun => Part::Yes,
            r if r.begun > read.ended => Part::No,
            _ => Part::Maybe,
        };
        let fits = |contents: &[u8]| {
            self.workload.places(at, bytes.len() as u64).into_iter().all(|(start, from, len)| {
                let offset = usize::try_from(from - at).unwrap();
                contents[start..start + len] == bytes[offset..offset + len]
            })
        };
        match self.explains(&part, &fits) {
            true => Ok(()),
            false => Err(format!("{:?} of thread {} saw what never was", read.step, read.task)),
        }
    }
}

/// Checks the contents `found` of the volume at `place` after a crash after `events`, with `completed` found
/// by recovery.
pub(crate) fn check(
    workload: &Workload,
    place: usize,
    events: &[&Event],
    completed: u64,
    found: &[u8],
) -> Result<(), String> {
    let history = History::new(workload, place, events);
    // One may follow from another: after a thread panicked, the requests of others fail.
    let troubles: Vec<&str> = events.iter().filter_map(|event| event.trouble()).collect();
    if !troubles.is_empty() {
        return Err(troubles.join("; "));
    }
    for event in events {
        match event {
            Event::Joined { contents }
                if !history.explains(&|_| Part::Yes, &|outcome| outcome == contents[place]) =>
            {
                return Err("the threads left what no order of their requests does".into());
            }
            Event::Ended { task, step, bytes, .. } if !bytes.is_empty() => {
                let is_it = |r: &&Request| r.task == *task && r.index == *step;
                if let Some(read) = history.requests.iter().find(is_it) {
                    history.check_read(read, bytes)?;
                }
            }
            _ => {}
        }
    }
    let part = |request: &Request| history.survives(request, completed);
    if history.explains(&part, &|outcome| outcome == found) {
        return Ok(());
    }
    let requests: Vec<String> = history
        .requests
        .iter()
        .filter(|request| request.changes())
        .map(|r| format!("{:?} of thread {}, survives: {:?}", r.step, r.task, part(r)))
        .collect();
    let all_maybe = history.explains(&|_| Part::Maybe, &|outcome| outcome == found);
    let what = if all_maybe { "a wrong cut" } else { "no cut at all" };
    Err(format!("epoch {completed} was completed, but this is {what} of {requests:#?}"))
}
