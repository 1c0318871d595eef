//! The user's part of an exploration: storage code, a workload, and an oracle.
//!
//! Owns the trait, the log of the workload's events, and the oracle's view of a crash. Knows
//! nothing of the choice of images.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::labels::Labels;
use crate::medium::SimMedium;
use crate::memory::ThreadNo;
use crate::omission::Omission;

/// Storage code under test, with a workload and an oracle.
///
/// Everything must be deterministic: the same image and the same calls give the same medium
/// operations in the same order. Nothing dependent on time, randomness or addresses may reach the
/// medium, and threads must hand over to each other in a fixed order.
///
/// A panic in `recover` or `check` is a finding, like an error. A panic in `prepare` or `run`
/// goes through to the caller.
pub trait Scenario {
    /// Event reported by the workload to the oracle, such as "write 3 begins" or "flush answered".
    type Event;
    /// Result of recovery for the check, such as an opened pool.
    type Recovered;

    /// Size of the medium in bytes, a multiple of 4096.
    fn medium_len(&self) -> u64;

    /// Fills a zeroed medium. All of it is durable before the workload, fenced or not.
    fn prepare(&self, medium: &Arc<SimMedium>);

    /// Returns the initial image of the workload: the result of `prepare`, unless the scenario has
    /// a finished one.
    fn image(&self) -> Vec<u8> {
        let fresh = Arc::new(SimMedium::new(self.medium_len()));
        self.prepare(&fresh);
        fresh.image()
    }

    /// Runs the workload, once. Power may fail before each of its operations. The medium holds the
    /// result of `prepare` but is another object, as after a restart.
    fn run(&self, medium: &Arc<SimMedium>, log: &Log<Self::Event>);

    /// Recovers after a crash. Runs once per image, and again on the results of its own crash.
    ///
    /// # Errors
    /// Any error is a finding: recovery must succeed after every crash.
    fn recover(&self, medium: Arc<SimMedium>) -> Result<Self::Recovered, String>;

    /// Compares the recovered content with the one allowed by the events before the crash. It may
    /// use the medium in any way: crashes are not explored here.
    ///
    /// # Errors
    /// A description of the mistake. It ends the exploration.
    fn check(
        &self,
        recovered: Self::Recovered,
        crash: &Crash<'_, Self::Event>,
    ) -> Result<(), String>;

    /// A number that changes between points if `check` allows another result for a reason other
    /// than the events, for example the state of a second device at that point. Points without a
    /// change of the image, the events and this number are not tried again, except the end of the
    /// workload.
    fn beside(&self, point: u64) -> u64 {
        let _ = point;
        0
    }

    /// Names for ranges of the medium, for reports.
    fn labels(&self) -> Labels {
        Labels::default()
    }

    /// Returns the operations omitted from the workload or recovery, to see the omission caught.
    /// `prepare` and `check` run fully.
    fn omission(&self) -> Option<Omission> {
        None
    }
}

/// A scenario whose workload is a list of steps. Steps can be omitted.
/// [`Explorer::explore_steps`](crate::Explorer::explore_steps) omits the steps that a failure does
/// not need.
pub trait Steps: Scenario + Sized {
    /// Returns the number of steps.
    fn steps(&self) -> usize;

    /// The same with only the steps of these indexes, ascending. If it then panics in `prepare` or
    /// `run`, because a step needs another, it counts as a success.
    #[must_use]
    fn only(&self, kept: &[usize]) -> Self;
}

/// An event and its moment.
#[derive(Clone, Debug)]
pub struct Stamped<E> {
    /// Operations made before the event.
    pub op: u64,
    /// The thread of the note.
    pub thread: ThreadNo,
    /// The event.
    pub event: E,
}

/// The log of a workload's events.
#[derive(Debug)]
pub struct Log<E> {
    medium: Arc<SimMedium>,
    events: Mutex<Vec<Stamped<E>>>,
}

impl<E> Log<E> {
    pub(crate) fn new(medium: Arc<SimMedium>) -> Self {
        Self { medium, events: Mutex::new(Vec::new()) }
    }

    /// Notes `event` now: after every operation made so far, and before the next.
    ///
    /// A crash just before the next operation counts as after the event. So note a beginning before
    /// its first store, and an answer after the last fence that it requires.
    pub fn note(&self, event: E) {
        let mut events = self.events.lock();
        // Under the lock, so the order of the list is the order of operations.
        let (op, thread) = (self.medium.ops(), self.medium.thread());
        events.push(Stamped { op, thread, event });
    }

    pub(crate) fn take(&self) -> Vec<Stamped<E>> {
        std::mem::take(&mut self.events.lock())
    }
}

/// The crash before a recovery, for the oracle.
#[derive(Debug)]
pub struct Crash<'a, E> {
    /// The power failed just before this operation of the workload: `0..=points`. Not all are
    /// tried: see [`Scenario::beside`].
    pub point: u64,
    /// Operations of the whole workload.
    pub points: u64,
    /// Events before the crash, in order.
    pub events: &'a [Stamped<E>],
    /// Number of earlier crashed recoveries.
    pub nested: usize,
}
