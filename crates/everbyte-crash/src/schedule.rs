//! A deterministic scheduler: threads run one at a time, in the order of a schedule.
//!
//! Every thread is one of the system, but only the one whose turn it is runs. The others wait
//! until it comes to a *point*: a call of [`point`], which a [`SimMedium`](crate::SimMedium)
//! makes before each of its calls, or a wait for a lock. Locks take part by asking [`wait`]
//! instead of blocking, and telling [`released`].
//!
//! Schedules that list delays (Emmi, Qadeer, Rakamarić: "Delay-bounded scheduling", POPL 2011) try
//! all orders that differ little from running one thread after the other: most mistakes need one or
//! two switches at the right place. Seeded ones switch anywhere.
//!
//! Invariants: exactly one thread runs. The next thread depends only on the schedule and on earlier
//! points, so the same schedule gives the same run. Knows neither media nor locks.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::decision_trace::mix;

/// Limits of a run.
#[derive(Clone, Copy)]
struct Limits {
    /// Turns after which threads count as looping.
    turns_max: u64,
    /// Time without a point after which a thread is assumed to wait for a foreign lock.
    stuck_after: Duration,
}

const LIMITS: Limits = Limits { turns_max: 1_000_000, stuck_after: Duration::from_secs(60) };

/// Rule for the thread that continues at each point.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Schedule {
    /// A thread runs until it ends or waits; then the next does, in a circle.
    Delays {
        /// The first thread.
        first: usize,
        /// Points at which the next thread continues instead, ascending. Only points at which the
        /// running thread could continue are counted, from 0.
        at: Vec<u64>,
    },
    /// Switches at random, from this seed.
    Seeded(u64),
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delays { first, at } => write!(f, "thread {first} first, delays at {at:?}"),
            Self::Seeded(seed) => write!(f, "seed {seed:#x}"),
        }
    }
}

/// Outcome of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Points at which the running thread could have continued.
    pub points: u64,
    /// Switches to another thread at these points.
    pub switches: u64,
    /// A deadlock, a thread's panic, or a thread without a point for a minute: it waits for a
    /// foreign lock.
    pub trouble: Option<String>,
}

/// A thread's work.
pub type Task<'a> = Box<dyn FnOnce() + Send + 'a>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Ready,
    Waiting { lock: usize },
    Done,
}

struct State {
    running: usize,
    status: Vec<Status>,
    run: Run,
    /// Number of permissions for a thread to continue.
    turns: u64,
    /// Everything is to end, because it cannot go on.
    aborted: bool,
}

struct Turns {
    schedule: Schedule,
    state: Mutex<State>,
    wake: Vec<Condvar>,
    limits: Limits,
}

/// Panic payload that unwinds threads that cannot continue.
struct Aborted;

thread_local! {
    static SEAT: RefCell<Option<(Arc<Turns>, usize)>> = const { RefCell::new(None) };
}

fn seat() -> Option<(Arc<Turns>, usize)> {
    SEAT.with_borrow(Clone::clone)
}

/// Lets another thread go on, if the schedule says so. Nothing outside a run.
pub fn point() {
    if let Some((turns, me)) = seat() {
        turns.pass(me, Status::Ready);
    }
}

/// Waits until `lock` has been released. Outside a run, returns false immediately.
#[must_use]
pub fn wait(lock: usize) -> bool {
    seat().is_some_and(|(turns, me)| turns.pass(me, Status::Waiting { lock }))
}

/// Notes that `lock` may be free.
pub fn released(lock: usize) {
    if let Some((turns, _)) = seat() {
        // Ready, not running: the releasing thread keeps its turn until its next point.
        let mut state = turns.state.lock();
        for status in state.status.iter_mut().filter(|s| **s == Status::Waiting { lock }) {
            *status = Status::Ready;
        }
    }
}

/// The calling thread's place in the list of tasks. `None` outside a run.
#[must_use]
pub fn thread_index() -> Option<usize> {
    seat().map(|(_, me)| me)
}

/// Runs the tasks, each as a thread, as `schedule` says, until all have ended.
#[must_use]
pub fn run(schedule: &Schedule, tasks: Vec<Task<'_>>) -> Run {
    run_within(LIMITS, schedule, tasks)
}

fn run_within(limits: Limits, schedule: &Schedule, tasks: Vec<Task<'_>>) -> Run {
    let count = tasks.len();
    let first = match schedule {
        Schedule::Delays { first, .. } => *first,
        Schedule::Seeded(seed) => below(*seed, count),
    };
    let state = State {
        // A schedule made for more tasks stays valid, and a run without tasks must not divide by
        // zero.
        running: first % count.max(1),
        status: vec![Status::Ready; count],
        run: Run { points: 0, switches: 0, trouble: None },
        turns: 0,
        aborted: false,
    };
    let turns = Arc::new(Turns {
        schedule: schedule.clone(),
        state: Mutex::new(state),
        wake: (0..count).map(|_| Condvar::new()).collect(),
        limits,
    });
    // The scope joins all threads, so the state is final after it.
    std::thread::scope(|scope| {
        for (me, task) in tasks.into_iter().enumerate() {
            let turns = Arc::clone(&turns);
            scope.spawn(move || turns.work(me, task));
        }
    });
    let state = turns.state.lock();
    state.run.clone()
}

/// A number below `count`, or 0, from a random one.
fn below(random: u64, count: usize) -> usize {
    usize::try_from(random % (count.max(1) as u64)).unwrap_or(0)
}

impl Turns {
    /// A thread's life.
    fn work(self: &Arc<Self>, me: usize, task: Task<'_>) {
        SEAT.set(Some((Arc::clone(self), me)));
        // A panic must not skip the hand-over, because the other threads wait for it.
        let ended = catch_unwind(AssertUnwindSafe(|| {
            self.await_turn(self.state.lock(), me);
            task();
        }));
        // Before the hand-over: a destructor of the thread's locals must not come to a point.
        SEAT.set(None);
        let mut state = self.state.lock();
        if let Err(panic) = ended
            && !panic.is::<Aborted>()
        {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            // The first trouble is the cause. The later ones are often its consequences.
            state.run.trouble.get_or_insert(format!("thread {me} panicked: {text}"));
        }
        state.status[me] = Status::Done;
        self.hand_over(&mut state, me);
    }

    /// Comes to a point. False if the thread is to go on without the others.
    fn pass(&self, me: usize, status: Status) -> bool {
        let mut state = self.state.lock();
        if state.aborted {
            // A second panic during unwinding would abort the process. A destructor passes without
            // a turn.
            if !std::thread::panicking() {
                drop(state);
                resume_unwind(Box::new(Aborted));
            }
            return false;
        }
        state.status[me] = status;
        self.hand_over(&mut state, me);
        self.await_turn(state, me);
        true
    }

    fn await_turn(&self, mut state: MutexGuard<'_, State>, me: usize) {
        while state.running != me && !state.aborted {
            let before = state.turns;
            // The waiting threads detect a stuck one, because the running thread cannot report it.
            let waited = self.wake[me].wait_for(&mut state, self.limits.stuck_after);
            // Unchanged turns: a long run with many short turns is not stuck.
            if waited.timed_out() && state.turns == before && !state.aborted {
                let text = format!(
                    "thread {} came to no point for {:?}: does it wait for a lock that does not take part?",
                    state.running, self.limits.stuck_after
                );
                self.abort(&mut state, text);
            }
        }
        // Read before the drop: the unwinding must not hold the lock.
        let aborted = state.aborted && !std::thread::panicking();
        drop(state);
        if aborted {
            resume_unwind(Box::new(Aborted));
        }
    }

    /// Passes the turn to the schedule's next thread.
    fn hand_over(&self, state: &mut State, me: usize) {
        let count = state.status.len();
        // In a circle from the running thread, so a delay always means the same next thread.
        let others = (1..count).map(|step| (me + step) % count);
        let ready: Vec<usize> = others.filter(|&i| state.status[i] == Status::Ready).collect();
        // An ended or waiting thread must hand over, so no decision of the schedule is counted.
        let goes_on = state.status[me] == Status::Ready;
        if state.aborted || (ready.is_empty() && !goes_on) {
            // Without a waiting thread all have ended, and the run is over.
            let stuck = state.status.iter().any(|status| matches!(status, Status::Waiting { .. }));
            if stuck && !state.aborted {
                let text = format!("deadlock: {:?}", state.status);
                self.abort(state, text);
            }
            return;
        }
        state.turns += 1;
        // Threads that poll each other's state would pass turns without end.
        if state.turns > self.limits.turns_max {
            return self.abort(state, "the threads run in circles".to_owned());
        }
        let next = self.choose(state.run.points, goes_on, &ready).unwrap_or(me);
        // Counted after the choice, which numbers points from 0.
        state.run.points += u64::from(goes_on);
        state.run.switches += u64::from(goes_on && next != me);
        state.running = next;
        if next != me {
            self.wake[next].notify_one();
        }
    }

    /// Returns the one of the other `ready` threads that continues; `None` for the running one.
    fn choose(&self, point: u64, goes_on: bool, ready: &[usize]) -> Option<usize> {
        match &self.schedule {
            Schedule::Delays { at, .. } => {
                let delayed = at.binary_search(&point).is_ok();
                // The list of delays is ascending, as the binary search requires.
                (!goes_on || delayed).then(|| ready.first().copied()).flatten()
            }
            Schedule::Seeded(seed) => {
                // Some seeds switch often, some seldom.
                let stay = [2, 6, 20, 60][below(mix(&[*seed]), 4)];
                let random = mix(&[*seed, point, ready.len() as u64]);
                let switches = !goes_on || random.is_multiple_of(stay);
                let picked = ready.get(below(random >> 32, ready.len())).copied();
                switches.then_some(picked).flatten()
            }
        }
    }

    fn abort(&self, state: &mut State, trouble: String) {
        state.run.trouble.get_or_insert(trouble);
        state.aborted = true;
        self.wake.iter().for_each(|wake| {
            wake.notify_one();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads that note their points.
    fn noted(schedule: &Schedule) -> (Vec<usize>, Run) {
        let notes = Mutex::new(Vec::new());
        let task = |me: usize| -> Task<'_> {
            let notes = &notes;
            Box::new(move || {
                for _ in 0..3 {
                    point();
                    notes.lock().push(me);
                }
            })
        };
        let done = run(schedule, vec![task(0), task(1)]);
        (notes.into_inner(), done)
    }

    fn delays(first: usize, at: &[u64]) -> Schedule {
        Schedule::Delays { first, at: at.to_vec() }
    }

    #[test]
    fn delays_say_who_runs() {
        assert_eq!(noted(&delays(0, &[])).0, [0, 0, 0, 1, 1, 1]);
        assert_eq!(noted(&delays(1, &[])).0, [1, 1, 1, 0, 0, 0]);
        let (notes, run) = noted(&delays(0, &[1, 3]));
        assert_eq!(notes, [0, 1, 0, 0, 1, 1]);
        assert_eq!(run, Run { points: 6, switches: 2, trouble: None });
    }

    #[test]
    fn seeds_give_the_same_run_again_and_differ() {
        let runs: Vec<_> = (0..50).map(|seed| noted(&Schedule::Seeded(seed))).collect();
        let again: Vec<_> = (0..50).map(|seed| noted(&Schedule::Seeded(seed))).collect();
        assert_eq!(runs, again);
        let distinct: std::collections::HashSet<_> = runs.into_iter().map(|run| run.0).collect();
        assert!(distinct.len() > 8, "{distinct:?}");
    }

    /// Takes two flags as locks, in the given order.
    fn take_both(flags: &[Mutex<bool>; 2], order: [usize; 2]) {
        for lock in order {
            point();
            while std::mem::replace(&mut *flags[lock].lock(), true) {
                assert!(wait(lock));
            }
        }
        for lock in order {
            *flags[lock].lock() = false;
            released(lock);
        }
    }

    #[test]
    fn waiting_threads_go_on_and_deadlocks_are_found() {
        let troubles = |second: [usize; 2]| -> Vec<String> {
            let run_one = |at: u64| {
                let flags = [Mutex::new(false), Mutex::new(false)];
                let tasks: Vec<Task<'_>> = vec![
                    Box::new(|| take_both(&flags, [0, 1])),
                    Box::new(|| take_both(&flags, second)),
                ];
                run(&delays(0, &[at]), tasks).trouble
            };
            (0..4).filter_map(run_one).collect()
        };
        assert_eq!(troubles([0, 1]), Vec::<String>::new());
        let found = troubles([1, 0]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("deadlock"), "{found:?}");
    }

    #[test]
    fn foreign_lock_is_reported_as_stuck() {
        let lock = std::sync::Mutex::new(());
        let task = || -> Task<'_> {
            Box::new(|| {
                let _held = lock.lock();
                point();
            })
        };
        let limits = Limits { stuck_after: Duration::from_millis(50), ..LIMITS };
        let run = run_within(limits, &delays(0, &[0]), vec![task(), task()]);
        let trouble = run.trouble.unwrap();
        assert!(trouble.starts_with("thread 1 came to no point"), "{trouble}");
    }

    #[test]
    fn waits_that_wake_each_other_for_ever_are_circles() {
        let task = || -> Task<'_> {
            Box::new(|| {
                released(7);
                while wait(7) {
                    released(7);
                }
            })
        };
        let limits = Limits { turns_max: 1000, ..LIMITS };
        let run = run_within(limits, &delays(0, &[]), vec![task(), task()]);
        assert!(run.trouble.as_deref() == Some("the threads run in circles"), "{run:?}");
    }

    #[test]
    fn panics_are_reported_and_the_others_go_on() {
        let ended = Mutex::new(false);
        let tasks: Vec<Task<'_>> = vec![
            Box::new(|| panic!("on purpose")),
            Box::new(|| {
                point();
                *ended.lock() = true;
            }),
        ];
        let run = run(&delays(0, &[]), tasks);
        assert_eq!(run.trouble.as_deref(), Some("thread 0 panicked: on purpose"));
        assert!(ended.into_inner());
        point();
        assert!(!wait(0), "outside a run nothing is waited for");
    }
}
