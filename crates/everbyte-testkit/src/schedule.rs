//! Searches the interleavings of threads for a failure, under the scheduler of `everbyte-crash`.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use everbyte_crash::schedule::{self, Schedule, Task};

/// Number of seeds. A planted bug must cause a failure with one of them.
const PLANTED_SEEDS: u64 = 5000;

/// Lock number for waits for any change.
const CHANGE: usize = 0;

/// Counts the steps of `THREADS` threads. Every step is a point at which another thread may run.
pub struct Turns<const THREADS: usize> {
    /// Steps of all threads.
    steps: AtomicU64,
    own_steps: [AtomicU64; THREADS],
    /// Steps that the others had made when a thread paused last.
    last_pause: [AtomicU64; THREADS],
}

impl<const THREADS: usize> Turns<THREADS> {
    /// Creates counters at zero.
    #[must_use]
    pub fn new() -> Self {
        Self {
            steps: AtomicU64::new(0),
            own_steps: [const { AtomicU64::new(0) }; THREADS],
            last_pause: [const { AtomicU64::new(0) }; THREADS],
        }
    }

    /// Returns the number of steps of all threads.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.steps.load(SeqCst)
    }

    /// Waits for another thread, for the `tries`th time.
    ///
    /// # Panics
    /// If a thread waits without end, or no scheduler runs the thread.
    pub fn pause(&self, tries: u32) {
        // A livelock makes points without end, so the scheduler alone would notice it late.
        assert!(tries < 100_000, "a thread waits without end");
        let me = schedule::thread_index().expect("only scheduled threads wait");
        // Own steps remove no obstacle of the own thread.
        let others = self.steps.load(SeqCst) - self.own_steps[me].load(SeqCst);
        // Steps of others may have removed the obstacle, and no later step would report that.
        if self.last_pause[me].swap(others, SeqCst) == others {
            // The result is true here: the assertion above has found a scheduler.
            let _is_run = schedule::wait(CHANGE);
        } else {
            self.step();
        }
    }

    /// Lets the scheduler switch to another thread.
    pub fn step(&self) {
        self.steps.fetch_add(1, SeqCst);
        if let Some(me) = schedule::thread_index() {
            self.own_steps[me].fetch_add(1, SeqCst);
        }
        // Before the point, so that a waiting thread is among the candidates at it.
        schedule::released(CHANGE);
        schedule::point();
    }
}

impl<const THREADS: usize> Default for Turns<THREADS> {
    fn default() -> Self {
        Self::new()
    }
}

/// A failed run. The seed and the schedule reproduce it.
#[derive(PartialEq, Debug)]
pub struct Failure {
    /// The seed of the programs.
    pub seed: u64,
    /// The order of the threads.
    pub schedule: Schedule,
    /// The message of the first failed check.
    pub message: String,
}

/// Runs of one set of programs, with or without a planted bug of type `B`.
pub struct Search<B> {
    /// Threads of a run.
    pub threads: usize,
    /// Bounds of the steps at which the two delays of a schedule lie: the second delay follows the first bound.
    pub delays_max: [u64; 2],
    /// Runs the programs of a seed in the order of a schedule. The error is the message of a failed check.
    pub run: fn(u64, &Schedule, Option<B>) -> Result<(), String>,
}

impl<B: Copy + Debug> Search<B> {
    /// Returns the first failure of seeds `0..seeds`.
    #[must_use]
    pub fn find(&self, seeds: u64, bug: Option<B>) -> Option<Failure> {
        // The lowest failing seed is reported, so the result does not depend on the number of
        // seeds.
        (0..seeds).find_map(|seed| {
            self.schedules(seed).into_iter().find_map(|schedule| {
                let message = (self.run)(seed, &schedule, bug).err()?;
                Some(Failure { seed, schedule, message })
            })
        })
    }

    /// Checks that `bug` causes a failure with `words` in its message, and that the same run passes without the bug.
    ///
    /// # Panics
    /// If no seed fails, the message lacks `words`, or the sound run fails.
    pub fn assert_caught(&self, bug: B, words: &str) {
        let Some(Failure { seed, schedule, message }) = self.find(PLANTED_SEEDS, Some(bug)) else {
            panic!("{bug:?} was not caught");
        };
        // Another message would mean that another check has failed by accident.
        assert!(message.contains(words), "{bug:?} is caught by seed {seed}: {message}");
        // Without the bug the same run must pass. Otherwise the failure has another cause.
        let sound = (self.run)(seed, &schedule, None);
        assert_eq!(sound, Ok(()), "without {bug:?}, seed {seed}, {schedule}");
    }

    fn schedules(&self, seed: u64) -> [Schedule; 2] {
        let first = (0..self.threads).cycle().nth(usize::try_from(seed).unwrap_or(0)).unwrap_or(0);
        let [near, far] = self.delays_max;
        // Ascending, as the scheduler requires: the second delay lies beyond the bound of the first
        // one.
        let at = vec![seed * 7 % near, near + seed * 13 % far];
        [Schedule::Seeded(seed), Schedule::Delays { first, at }]
    }
}

/// Runs `tasks`, then `check`. The error is a failed schedule with `state`, or the message of a panic in `check`.
///
/// # Errors
/// As above.
pub fn run_and_check(
    schedule: &Schedule,
    tasks: Vec<Task<'_>>,
    state: impl FnOnce() -> String,
    check: impl FnOnce(),
) -> Result<(), String> {
    // After a deadlock or a panic the state is unfinished, and `check` would report a consequence.
    if let Some(trouble) = schedule::run(schedule, tasks).trouble {
        return Err(format!("{trouble}; {}", state()));
    }
    let checked = catch_unwind(AssertUnwindSafe(check));
    checked.map_err(|panic| format!("{:?}", panic.downcast_ref::<String>()))
}
