//! Requests of one thread on all lanes in turn, as if each came from another thread.
//!
//! These workloads have one thread, so a lock held at its request is held forever: that fails the test.
//! Invariant: the same workload takes the same lanes in every run, independently of other tests.

use std::cell::Cell;

use everbyte_pool::sync::{Observer, observe};

use crate::explore;
use crate::steps::{Case, HOLE, Step, b, w};

thread_local! {
    static TURN: Cell<usize> = const { Cell::new(0) };
}

/// Reports another thread to the engine for each call, and nothing else.
struct Turns;

impl Observer for Turns {
    fn before_lock(&self) {}
    fn wait(&self, _: usize) -> bool {
        assert!(std::thread::panicking(), "the only thread waits for a lock that it holds itself");
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

/// A flush during a checkpoint waits for its end, and here no other thread can end it.
#[test]
#[should_panic(expected = "waits for a lock that it holds itself")]
fn endless_wait_is_a_failure() {
    let steps = vec![Step::Write(w(b(HOLE), 9)), Step::Split(vec![Step::Flush])];
    explore::all(&explore::broad(), [Case::new("a flush in a checkpoint", steps)]);
}
