//! Turns of threads that a scheduler runs one at a time, for tests: every step is a point at which another
//! thread may go on.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use everbyte_crash::schedule;

/// The lock that stands for "something has changed".
const CHANGE: usize = 0;

/// The steps of `THREADS` threads.
pub(crate) struct Turns<const THREADS: usize> {
    /// Steps of all threads.
    steps: AtomicU64,
    own_steps: [AtomicU64; THREADS],
    /// Steps that the others had made when a thread paused last.
    last_pause: [AtomicU64; THREADS],
}

impl<const THREADS: usize> Turns<THREADS> {
    pub(crate) fn new() -> Self {
        Self {
            steps: AtomicU64::new(0),
            own_steps: [const { AtomicU64::new(0) }; THREADS],
            last_pause: [const { AtomicU64::new(0) }; THREADS],
        }
    }

    /// Steps that were made.
    pub(crate) fn count(&self) -> u64 {
        self.steps.load(SeqCst)
    }

    /// Waits for another thread.
    pub(crate) fn pause(&self, tries: u32) {
        assert!(tries < 100_000, "a thread waits for ever");
        let me = schedule::thread_index().expect("nobody waits alone");
        let others = self.steps.load(SeqCst) - self.own_steps[me].load(SeqCst);
        // If others came in between, what was in the way may be gone, with nobody left to say so.
        if self.last_pause[me].swap(others, SeqCst) == others {
            let _is_run = schedule::wait(CHANGE);
        } else {
            self.step();
        }
    }

    /// Lets another thread come in between.
    pub(crate) fn step(&self) {
        self.steps.fetch_add(1, SeqCst);
        if let Some(me) = schedule::thread_index() {
            self.own_steps[me].fetch_add(1, SeqCst);
        }
        schedule::released(CHANGE);
        schedule::point();
    }
}
