//! Requests of one thread on all lanes in turn, as if each came from another thread.
//!
//! Invariant: the same workload takes the same lanes in every run, whatever other tests do.

use std::cell::Cell;

use everbyte_pool::sync::{Observer, observe};

thread_local! {
    static TURN: Cell<usize> = const { Cell::new(0) };
}

/// Tells the engine that another thread calls each time, and nothing else.
struct Turns;

impl Observer for Turns {
    fn before_lock(&self) {}
    fn wait(&self, _: usize) -> bool {
        false
    }
    fn released(&self, _: usize) {}
    fn thread_index(&self) -> usize {
        TURN.get()
    }
}

/// Lets this thread's next request take the first lane.
pub(crate) fn first() {
    observe(Some(&Turns));
    TURN.set(0);
}

/// Lets this thread's next request take the next lane.
pub(crate) fn next() {
    TURN.set(TURN.get() + 1);
}
