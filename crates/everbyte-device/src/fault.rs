//! A device that fails or hangs on demand, for tests of its users.
//!
//! Owns the choice of failing and hanging requests. A failed request has no effect. A hanging request runs
//! after its release. Knows nothing of the inner device.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::decorator::Passthrough;
use crate::device::{BlockDevice, Fua, Hole};
use crate::error::DeviceError;

/// Kinds of failing or hanging requests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Faults {
    /// Reads fail.
    pub reads: bool,
    /// Writes, trims and zeroing fail.
    pub writes: bool,
    /// Flushes fail.
    pub flushes: bool,
}

impl Faults {
    /// Everything fails.
    pub const ALL: Self = Self { reads: true, writes: true, flushes: true };
    /// Nothing fails.
    pub const NONE: Self = Self { reads: false, writes: false, flushes: false };
}

#[derive(Default)]
struct Plan {
    faults: Faults,
    hangs: Faults,
    /// Hanging requests.
    hanging: u64,
    /// Requests until the next failure. `faults` has further failures.
    countdown: Option<u64>,
    requests: u64,
}

/// A device in front of another that fails on demand with [`DeviceError::Media`].
pub struct FaultDevice {
    device: Arc<dyn BlockDevice>,
    plan: Mutex<Plan>,
    /// Notified when requests begin to hang, and at their release.
    changed: Condvar,
}

impl FaultDevice {
    /// Makes a device without faults. [`fail`](Self::fail) and similar calls add them.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self { device, plan: Mutex::new(Plan::default()), changed: Condvar::new() }
    }

    /// Fails all requests of these kinds from now on.
    pub fn fail(&self, faults: Faults) {
        self.plan.lock().faults = faults;
    }

    /// Lets all requests of these kinds hang from now on, and releases all others.
    pub fn hang(&self, hangs: Faults) {
        self.plan.lock().hangs = hangs;
        self.changed.notify_all();
    }

    /// Waits until as many requests hang.
    pub fn wait_for_hanging(&self, requests: u64) {
        let mut plan = self.plan.lock();
        while plan.hanging < requests {
            self.changed.wait(&mut plan);
        }
    }

    /// Fails one request of any kind, after `requests` more of them.
    pub fn fail_after(&self, requests: u64) {
        self.plan.lock().countdown = Some(requests);
    }

    /// Reads, writes, trims, zeroings and flushes so far, failed ones included.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.plan.lock().requests
    }

    fn check(
        &self,
        kind: impl Fn(Faults) -> bool,
        offset: u64,
        len: u64,
    ) -> Result<(), DeviceError> {
        let mut plan = self.plan.lock();
        plan.requests += 1;
        if kind(plan.hangs) {
            // A test waits for this count, and then knows that the request has come so far.
            plan.hanging += 1;
            self.changed.notify_all();
            while kind(plan.hangs) {
                self.changed.wait(&mut plan);
            }
            plan.hanging -= 1;
        }
        // Each request counts, also if it fails for its kind.
        let is_due = plan.countdown == Some(0);
        plan.countdown = plan.countdown.and_then(|left| left.checked_sub(1));
        if is_due || kind(plan.faults) {
            return Err(DeviceError::Media { offset, len, reason: "it was told to fail".into() });
        }
        Ok(())
    }
}

impl crate::decorator::Decorator for FaultDevice {
    type Inner = dyn BlockDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &*self.device
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.check(|faults| faults.reads, offset, out.len() as u64)?;
        self.device.read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.check(|faults| faults.writes, offset, data.len() as u64)?;
        self.device.write(offset, data, fua)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.check(|faults| faults.flushes, 0, 0)?;
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.check(|faults| faults.writes, offset, len)?;
        self.device.discard(offset, len, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.check(|faults| faults.writes, offset, len)?;
        self.device.write_zeroes(offset, len, hole, fast, fua)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, conformance};

    #[test]
    fn keeps_the_contract() {
        conformance(&|size| Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(size)))));
    }

    #[test]
    fn hung_request_resumes() {
        let device = FaultDevice::new(Arc::new(MemoryDevice::new(8192)));
        device.hang(Faults { writes: true, ..Faults::NONE });
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| device.write(0, &[1], Fua::No));
            device.wait_for_hanging(1);
            let mut found = [9];
            device.read(0, &mut found).unwrap();
            assert!(found == [0] && !writer.is_finished());
            device.hang(Faults::NONE);
            writer.join().unwrap().unwrap();
            device.read(0, &mut found).unwrap();
            assert_eq!(found, [1]);
        });
    }

    #[test]
    fn fault_device_fails_selected_requests_only() {
        let device = FaultDevice::new(Arc::new(MemoryDevice::new(8192)));
        device.fail(Faults { writes: true, ..Faults::NONE });
        assert!(device.write(0, &[1], Fua::No).is_err() && device.discard(0, 1, Fua::No).is_err());
        device.read(0, &mut [0]).unwrap();
        device.flush().unwrap();
        device.fail(Faults::NONE);
        device.fail_after(1);
        device.flush().unwrap();
        assert!(device.read(0, &mut [0]).is_err());
        let mut found = [9];
        device.read(0, &mut found).unwrap();
        assert_eq!((found, device.requests()), ([0], 7));
    }
}
