//! Crash-testing code of several threads: two threads append to a list. Each schedule of the
//! threads is a separate workload. The explorer crashes it at each of its operations.
//! `cargo run -p everbyte --example crash_threads`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use everbyte::crash::schedule::{self, Schedule, Task};
use everbyte::crash::{Crash, Explorer, Log, Medium, PoolOffset, Scenario, SimMedium};

/// Entries in the list.
const COUNT: PoolOffset = PoolOffset(0);

fn entry(index: u64) -> PoolOffset {
    PoolOffset(64 * (index + 1))
}

fn persist(medium: &SimMedium, at: PoolOffset, word: u64) {
    medium.store_word(at, word);
    medium.flush(at, 8);
    medium.fence().expect("a medium that has not failed");
}

/// A lock as part of the schedule: a waiter lets the thread with the lock continue.
#[derive(Default)]
struct Lock(AtomicBool);

impl Lock {
    /// Name of the lock, among those of the program.
    const NAME: usize = 1;

    fn with(&self, work: impl FnOnce()) {
        while self.0.swap(true, Ordering::Acquire) {
            assert!(schedule::wait(Self::NAME), "a wait outside of a schedule");
        }
        work();
        self.0.store(false, Ordering::Release);
        schedule::released(Self::NAME);
    }
}

/// Two threads append 7 and 8: under a lock, or without it to show a mistake.
struct Appends {
    schedule: Schedule,
    locks: bool,
}

impl Scenario for Appends {
    type Event = u64;
    type Recovered = Vec<u64>;

    fn medium_len(&self) -> u64 {
        4096
    }

    fn prepare(&self, _: &Arc<SimMedium>) {}

    fn run(&self, medium: &Arc<SimMedium>, log: &Log<u64>) {
        let lock = Lock::default();
        let append = |value| {
            let count = medium.load_word(COUNT);
            persist(medium, entry(count), value);
            persist(medium, COUNT, count + 1);
        };
        let (append, lock) = (&append, &lock);
        let tasks = [7, 8].map(|value| -> Task<'_> {
            Box::new(move || {
                if self.locks {
                    lock.with(|| append(value))
                } else {
                    append(value)
                }
                log.note(value);
            })
        });
        let run = schedule::run(&self.schedule, tasks.into());
        assert_eq!(run.trouble, None);
    }

    fn recover(&self, medium: Arc<SimMedium>) -> Result<Self::Recovered, String> {
        Ok((0..medium.load_word(COUNT)).map(|index| medium.load_word(entry(index))).collect())
    }

    /// Finds in the list everything answered before the crash.
    fn check(&self, list: Self::Recovered, crash: &Crash<'_, u64>) -> Result<(), String> {
        match crash.events.iter().find(|answered| !list.contains(&answered.event)) {
            Some(lost) => Err(format!("{} is lost, the list has {list:?}", lost.event)),
            None => Ok(()),
        }
    }
}

/// The schedules with at most one switch before a thread ends or waits.
fn schedules() -> impl Iterator<Item = Schedule> {
    let delays = std::iter::once(vec![]).chain((0..20).map(|point| vec![point]));
    delays.flat_map(|at| (0..2).map(move |first| Schedule::Delays { first, at: at.clone() }))
}

fn main() {
    let explorer = Explorer::default();
    for schedule in schedules() {
        let explored = explorer.explore(&Appends { schedule, locks: true });
        explored.expect("a list that its threads lock");
    }
    println!("with a lock: {} schedules, no failure", schedules().count());
    let found = schedules().find_map(|schedule| {
        let without = Appends { schedule, locks: false };
        explorer.explore(&without).err().map(|failure| (without.schedule, failure))
    });
    let (schedule, failure) = found.expect("a schedule in which an entry is lost");
    println!("without, {schedule}: {failure}");
}
