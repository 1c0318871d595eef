//! A scenario made of closures, and short names for what toy storage code does to a medium.

use std::sync::Arc;

use everbyte_crash::{Crash, Log, Scenario, SimMedium};
use everbyte_media::{Medium, PoolOffset};

pub(crate) type Events = Log<&'static str>;
type Run = Box<dyn Fn(&SimMedium, &Events)>;
type Recover<R> = Box<dyn Fn(&SimMedium) -> Result<R, String>>;
type Check<R> = Box<dyn Fn(R, &Crash<'_, &'static str>) -> Result<(), String>>;

/// Storage code on a few blocks.
pub(crate) struct Toy<R> {
    pub(crate) prepare: fn(&SimMedium),
    pub(crate) run: Run,
    pub(crate) recover: Recover<R>,
    pub(crate) check: Check<R>,
}

impl<R> Toy<R> {
    /// A toy on a zeroed medium.
    pub(crate) fn new(
        run: impl Fn(&SimMedium, &Events) + 'static,
        recover: impl Fn(&SimMedium) -> Result<R, String> + 'static,
        check: impl Fn(R, &Crash<'_, &'static str>) -> Result<(), String> + 'static,
    ) -> Self {
        let (run, recover, check) = (Box::new(run), Box::new(recover), Box::new(check));
        Self { prepare: |_| {}, run, recover, check }
    }
}

impl<R> Scenario for Toy<R> {
    type Event = &'static str;
    type Recovered = R;

    fn medium_len(&self) -> u64 {
        16384
    }

    fn prepare(&self, medium: &Arc<SimMedium>) {
        (self.prepare)(medium);
    }

    fn run(&self, medium: &Arc<SimMedium>, log: &Events) {
        (self.run)(medium, log);
    }

    fn recover(&self, medium: Arc<SimMedium>) -> Result<R, String> {
        (self.recover)(&medium)
    }

    fn check(&self, recovered: R, crash: &Crash<'_, &'static str>) -> Result<(), String> {
        (self.check)(recovered, crash)
    }
}

pub(crate) fn put(medium: &SimMedium, at: u64, value: u64) {
    medium.store_word(PoolOffset(at), value);
}

pub(crate) fn get(medium: &SimMedium, at: u64) -> u64 {
    medium.load_word(PoolOffset(at))
}

pub(crate) fn flush(medium: &SimMedium, at: u64) {
    medium.flush(PoolOffset(at), 8);
}

pub(crate) fn fence(medium: &SimMedium) {
    medium.fence().unwrap();
}

/// Makes the word at `at` durable.
pub(crate) fn persist(medium: &SimMedium, at: u64, value: u64) {
    put(medium, at, value);
    flush(medium, at);
    fence(medium);
}

pub(crate) fn happened(crash: &Crash<'_, &'static str>, event: &str) -> bool {
    crash.events.iter().any(|stamped| stamped.event == event)
}
