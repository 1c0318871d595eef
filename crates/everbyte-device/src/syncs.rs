//! Flushes of a file, of which the system reports a failure to one only.
//!
//! Linux keeps for each open file how far its user was told of errors of writing back (`errseq_t`), and pages that could not be
//! written count as clean afterwards: of two `fdatasync` at once, one fails and the other succeeds, whosever bytes are lost.
//! Invariant: one at a time, and its outcome is noted before the next one begins. That serves all who asked before it began,
//! as a group commit does.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// The flushes of a file.
#[derive(Default)]
pub(crate) struct Syncs {
    /// Those that were asked for.
    asked: AtomicU64,
    /// So many of them, the first ones, have all that they are to make durable behind them. Held while one is made.
    served: Mutex<u64>,
    failures: AtomicU64,
}

impl Syncs {
    /// The number of those that have failed, to be taken before anything is written that [`Syncs::make`] is to make durable.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Makes durable by `sync` what was written since `failures` was taken, unless one that began since then has done it.
    ///
    /// # Errors
    /// Those of `sync`; or another one has failed meanwhile, which may have lost what was written.
    pub(crate) fn make(
        &self,
        failures: u64,
        sync: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let place = self.asked.fetch_add(1, Ordering::AcqRel);
        let mut served = self.served.lock();
        if self.failures() != failures {
            return Err(io::Error::other(
                "another flush failed meanwhile, which may have lost what was written",
            ));
        }
        if place >= *served {
            let asked = self.asked.load(Ordering::Acquire);
            if let Err(error) = sync() {
                self.failures.fetch_add(1, Ordering::AcqRel);
                return Err(error);
            }
            *served = asked;
        }
        // To the next who waits: one who comes now would flush, and those who are served would wait for that.
        MutexGuard::unlock_fair(served);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_sync_fails_concurrent_flushes_only() {
        let syncs = Syncs::default();
        // Both have written.
        let (first, second) = (syncs.failures(), syncs.failures());
        let failed = syncs.make(first, || Err(io::Error::other("the disk")));
        assert_eq!(failed.unwrap_err().to_string(), "the disk");
        let told = syncs.make(second, || Ok(())).unwrap_err();
        assert!(told.to_string().contains("another flush failed"), "{told}");
        // What is written again after a failure can become durable.
        syncs.make(syncs.failures(), || Ok(())).unwrap();
    }

    #[test]
    fn flush_waits_for_outcome_of_earlier_sync() {
        let syncs = Syncs::default();
        let failures = syncs.failures();
        let make = &|| syncs.make(failures, || Ok(()));
        let other = std::thread::scope(|scope| {
            let mut other = None;
            let failed = syncs.make(failures, || {
                other = Some(scope.spawn(make));
                Err(io::Error::other("the disk"))
            });
            failed.unwrap_err();
            other.map(|other| other.join().unwrap())
        });
        other.unwrap().unwrap_err();
    }

    #[test]
    fn one_sync_serves_all_waiting_flushes() {
        let (syncs, made) = (Syncs::default(), AtomicU64::new(0));
        let make = &|| {
            syncs.make(0, || {
                made.fetch_add(1, Ordering::SeqCst);
                Ok(())
            })
        };
        std::thread::scope(|scope| {
            let first = syncs.make(0, || {
                for _ in 0..3 {
                    scope.spawn(move || make().unwrap());
                }
                while syncs.asked.load(Ordering::SeqCst) < 4 {
                    std::thread::yield_now();
                }
                Ok(())
            });
            first.unwrap();
        });
        assert_eq!(made.load(Ordering::SeqCst), 1);
    }
}
