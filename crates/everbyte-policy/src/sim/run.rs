//! Runs policies over traces.

use super::drain::Drain;
use super::kind::Kind;
use super::outcome::Outcome;
use super::recorder::Recorder;
use super::spec::Spec;
use crate::access::PageTrace;
use crate::policy::{
    AddressedPages, Arc, Belady, CleanVictims, Clock, ClockDwf, ClockMigration, Dense, Everbyte,
    FourQueue, Future, Hybrid, HybridConfig, Lru, MClock, Pdram, Policy, S3Fifo, Sieve, Spitfire,
    SpitfireConfig, WTinyLfu,
};
use crate::trace::{Accesses, TraceError};

/// Runs one policy over a trace.
///
/// # Panics
/// If the trace breaks its invariants (a page number not below `trace.pages()`), or the spec is out
/// of its ranges; see [`Spec::check`].
#[must_use]
pub fn run(kind: Kind, spec: &Spec, trace: &PageTrace) -> Outcome {
    replay(kind, spec, trace).expect("accesses in DRAM can be gone through")
}

/// Runs one policy over accesses from any source. [`Kind::Belady`] reads them twice.
///
/// # Errors
/// Those of [`Accesses::play`].
///
/// # Panics
/// As [`run`].
pub fn replay(kind: Kind, spec: &Spec, trace: &dyn Accesses) -> Result<Outcome, TraceError> {
    let pages = u32::try_from(trace.addresses().len()).expect("page numbers are 32 bits wide");
    let (storage, capacity) = (Dense { pages }, spec.capacity());
    let drive = Drive { name: kind.name(), spec, trace };
    match kind {
        Kind::Everbyte => {
            let storage = AddressedPages(trace.addresses());
            drive.with(Everbyte::new(storage, capacity, spec.small_write_bytes, spec.costs))
        }
        Kind::Hybrid => drive.with(Hybrid::new(storage, capacity, spec.hybrid())),
        Kind::HybridDrop => {
            let config = HybridConfig { clean_victims: CleanVictims::Drop, ..spec.hybrid() };
            drive.with(Hybrid::new(storage, capacity, config))
        }
        Kind::HybridDropUnused => {
            let config = HybridConfig { clean_victims: CleanVictims::DropUnused, ..spec.hybrid() };
            drive.with(Hybrid::new(storage, capacity, config))
        }
        // The future needs a first pass over the trace, whose accesses need not be kept in DRAM.
        Kind::Belady => {
            let mut future = Future::new(storage);
            trace.play(&mut |accesses| accesses.iter().for_each(|access| future.push(access)))?;
            drive.with(Belady::with_future(storage, capacity, future))
        }
        Kind::ClockMigration => drive.with(ClockMigration::new(storage, capacity)),
        Kind::ClockDwf => drive.with(ClockDwf::new(storage, capacity)),
        Kind::MClock => drive.with(MClock::new(storage, capacity)),
        Kind::FourQueue => drive.with(FourQueue::new(storage, capacity)),
        Kind::Pdram => drive.with(Pdram::new(storage, capacity)),
        Kind::Spitfire => drive.with(Spitfire::new(storage, capacity, SpitfireConfig::default())),
        Kind::Lru => drive.with(Lru::new(storage, capacity)),
        Kind::Clock => drive.with(Clock::new(storage, capacity)),
        Kind::Sieve => drive.with(Sieve::new(storage, capacity)),
        Kind::S3Fifo => drive.with(S3Fifo::new(storage, capacity)),
        Kind::Arc => drive.with(Arc::new(storage, capacity)),
        Kind::WTinyLfu => drive.with(WTinyLfu::new(storage, capacity)),
    }
}

/// Runs any policy over a trace, one of your own as well. The outcome calls it `name`.
///
/// # Panics
/// As [`run`]; and if the policy has more frames than `spec`, or breaks the contract of its actions.
#[must_use]
pub fn run_policy(policy: impl Policy, name: &str, spec: &Spec, trace: &PageTrace) -> Outcome {
    let outcome = Drive { name, spec, trace }.with(policy);
    outcome.expect("accesses in DRAM can be gone through")
}

struct Drive<'a> {
    name: &'a str,
    spec: &'a Spec,
    trace: &'a dyn Accesses,
}

impl Drive<'_> {
    fn with(&self, mut policy: impl Policy) -> Result<Outcome, TraceError> {
        let addresses = self.trace.addresses();
        let mut recorder = Recorder::new(addresses, self.spec.capacity().scm);
        self.trace.play(&mut |accesses| {
            for &access in accesses {
                recorder.begin(access);
                policy.access(access, &mut recorder);
            }
        })?;
        // After the last access: the policy's dirty pages are those of the end.
        let drain = Drain::of(policy.directory(), addresses);
        Ok(recorder.finish(self.name, self.spec, self.trace.requests(), &drain))
    }
}
