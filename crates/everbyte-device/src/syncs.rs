//! Flushes of a file. The system reports a failed write-back to one flush only.
//!
//! Linux keeps a position in the sequence of write-back errors for each open file (`errseq_t`), and a page with
//! a failed write counts as clean afterwards. Of two concurrent `fdatasync`, one fails and the other succeeds,
//! and either caller can lose bytes. Invariant: one flush runs at a time, and its outcome is recorded before
//! the next one begins. A flush serves all requests that came before it began (group commit).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// The flushes of a file.
#[derive(Default)]
pub(crate) struct Syncs {
    /// Requested flushes.
    asked: AtomicU64,
    /// The count of requests that finished flushes cover, from the first one on. Locked during a flush.
    served: Mutex<u64>,
    failures: AtomicU64,
}

impl Syncs {
    /// The count of failed flushes. The caller reads it before the writes that [`Syncs::make`] is to make durable.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Makes the writes since the read of `failures` durable by `sync`, unless a flush that began later has done this.
    ///
    /// # Errors
    /// The errors of `sync`. If another flush failed since the read of `failures`, that failure may have lost these writes.
    pub(crate) fn make(
        &self,
        failures: u64,
        sync: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        // Before the lock: a flush that begins after this line covers the request.
        let place = self.asked.fetch_add(1, Ordering::AcqRel);
        let mut served = self.served.lock();
        // The system reports a lost write to one flush only, so a second flush would claim success.
        if self.failures() != failures {
            return Err(io::Error::other(
                "another flush failed meanwhile, which may have lost what was written",
            ));
        }
        if place >= *served {
            // Before the flush: it covers the requests counted so far, and no later one.
            let asked = self.asked.load(Ordering::Acquire);
            if let Err(error) = sync() {
                // The requests in wait for the lock may have lost their writes as well.
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
