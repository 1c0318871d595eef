//! A scenario made of closures, for storage code without its own scenario type.

use std::ops::Range;
use std::sync::Arc;

use crate::labels::Labels;
use crate::medium::SimMedium;
use crate::omission::Omission;
use crate::scenario::{Crash, Log, Scenario};

type Prepare<'a> = Box<dyn Fn(&Arc<SimMedium>) + 'a>;
type Run<'a, E> = Box<dyn Fn(&Arc<SimMedium>, &Log<E>) + 'a>;
type Recover<'a, R> = Box<dyn Fn(&Arc<SimMedium>) -> Result<R, String> + 'a>;
type Check<'a, E, R> = Box<dyn Fn(R, &Crash<'_, E>) -> Result<(), String> + 'a>;

/// Storage code on a small medium, as closures. The workload notes events of type `E`, recovery
/// returns an `R`. [`Scenario`] has the rules for each closure.
pub struct Closures<'a, E, R> {
    len: u64,
    prepare: Prepare<'a>,
    run: Run<'a, E>,
    recover: Recover<'a, R>,
    check: Check<'a, E, R>,
    labels: Labels,
    omission: Option<Omission>,
}

impl<'a, E, R> Closures<'a, E, R> {
    /// A workload, recovery, and the check of its result, on a zeroed medium of 16 KiB.
    pub fn new(
        run: impl Fn(&Arc<SimMedium>, &Log<E>) + 'a,
        recover: impl Fn(&Arc<SimMedium>) -> Result<R, String> + 'a,
        check: impl Fn(R, &Crash<'_, E>) -> Result<(), String> + 'a,
    ) -> Self {
        Self {
            len: 16384,
            prepare: Box::new(|_| {}),
            run: Box::new(run),
            recover: Box::new(recover),
            check: Box::new(check),
            labels: Labels::default(),
            omission: None,
        }
    }

    /// The same on a medium of `len` bytes, a multiple of 4096.
    #[must_use]
    pub fn medium_len(self, len: u64) -> Self {
        Self { len, ..self }
    }

    /// The same on a medium filled by `prepare`.
    #[must_use]
    pub fn prepared(self, prepare: impl Fn(&Arc<SimMedium>) + 'a) -> Self {
        Self { prepare: Box::new(prepare), ..self }
    }

    /// The same with a name for the bytes of `range` in reports.
    #[must_use]
    pub fn label(self, range: Range<u64>, name: &str) -> Self {
        Self { labels: self.labels.with(range, name), ..self }
    }

    /// The same with a flush or a fence left out.
    #[must_use]
    pub fn omit(self, omission: Omission) -> Self {
        Self { omission: Some(omission), ..self }
    }
}

impl<E, R> Scenario for Closures<'_, E, R> {
    type Event = E;
    type Recovered = R;

    fn medium_len(&self) -> u64 {
        self.len
    }

    fn prepare(&self, medium: &Arc<SimMedium>) {
        (self.prepare)(medium);
    }

    fn run(&self, medium: &Arc<SimMedium>, log: &Log<E>) {
        (self.run)(medium, log);
    }

    fn recover(&self, medium: Arc<SimMedium>) -> Result<R, String> {
        (self.recover)(&medium)
    }

    fn check(&self, recovered: R, crash: &Crash<'_, E>) -> Result<(), String> {
        (self.check)(recovered, crash)
    }

    fn labels(&self) -> Labels {
        self.labels.clone()
    }

    fn omission(&self) -> Option<Omission> {
        self.omission.clone()
    }
}
