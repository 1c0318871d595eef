//! A device with the delays of a slow disk, for measurements.
//!
//! Source of the model: C. Ruemmler and J. Wilkes, "An Introduction to Disk Drive Modeling", IEEE
//! Computer, 1994: a seek that grows with the root of the distance, half a turn of rotation, and
//! transfer. A request at the end of the last one needs no seek. The model has no write cache.
//! One head serves all threads, so their requests queue. In memory cards and solid-state disks all jumps
//! have the same cost.
//!
//! It can count the time without a wait. Then the same requests in the same order have the same time in
//! every run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::decorator::Passthrough;
use crate::device::{BlockDevice, Fua};
use crate::error::DeviceError;

/// Costs of requests of one kind.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepCosts {
    /// A jump to the next place.
    pub jump_min: Duration,
    /// A jump over the whole device.
    pub jump_max: Duration,
    /// Bytes a second once it is there.
    pub bytes_per_s: u64,
}

/// Costs of the requests of a disk.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DiskCosts {
    /// Reads.
    pub read: StepCosts,
    /// Writes.
    pub write: StepCosts,
}

impl StepCosts {
    /// Jumps of one price.
    const fn even(jump: Duration, bytes_per_s: u64) -> Self {
        Self { jump_min: jump, jump_max: jump, bytes_per_s }
    }
}

impl DiskCosts {
    /// A disk of 7200 turns a minute: seeks of 1 to 16 ms, and half a turn.
    pub const HDD: Self = {
        let step = StepCosts {
            jump_min: Duration::from_micros(1000 + 4170),
            jump_max: Duration::from_micros(16_000 + 4170),
            bytes_per_s: 150_000_000,
        };
        Self { read: step, write: step }
    };

    /// A SATA solid-state disk at queue depth 1: 10,000 random reads and 20,000 random writes of
    /// 4 KiB a second, 500 MB/s in order (data sheets of the 2015-2020 consumer class).
    pub const SSD: Self = Self {
        read: StepCosts::even(Duration::from_nanos(91_800), 500_000_000),
        write: StepCosts::even(Duration::from_nanos(41_800), 500_000_000),
    };

    /// An SD card of application class A1: 1,500 random reads and 500 random writes of 4 KiB a
    /// second, 10 MB/s of writing in order (SD Specification 5.1), and 40 MB/s of reading.
    pub const SD_CARD: Self = Self {
        read: StepCosts::even(Duration::from_micros(565), 40_000_000),
        write: StepCosts::even(Duration::from_micros(1590), 10_000_000),
    };
}

#[derive(Default)]
struct Head {
    at: u64,
    spent: Duration,
}

/// A device in front of another that is as slow as a disk.
pub struct DelayDevice {
    device: Arc<dyn BlockDevice>,
    costs: DiskCosts,
    waits: AtomicBool,
    head: Mutex<Head>,
}

impl DelayDevice {
    /// As slow as `costs` say.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, costs: DiskCosts) -> Self {
        Self { device, costs, waits: AtomicBool::new(true), head: Mutex::new(Head::default()) }
    }

    /// Sets if requests wait (`true`, the initial state) or only count their time.
    pub fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// Sum of the waited or counted times.
    #[must_use]
    pub fn spent(&self) -> Duration {
        self.head.lock().spent
    }

    /// Time of a request with the head at `at`.
    #[allow(clippy::cast_precision_loss, reason = "a model of time")]
    fn cost(&self, step: &StepCosts, at: u64, offset: u64, len: u64) -> Duration {
        let transfer = Duration::from_secs_f64(len as f64 / step.bytes_per_s.max(1) as f64);
        // A request that continues the previous one needs no jump.
        if at == offset {
            return transfer;
        }
        let size_bytes = self.device.geometry().size_bytes.max(1);
        let distance = (at.abs_diff(offset) as f64 / size_bytes as f64).clamp(0.0, 1.0);
        let range = step.jump_max.saturating_sub(step.jump_min);
        // An arm accelerates over half of its way, so the time grows with the root of the distance.
        step.jump_min + range.mul_f64(distance.sqrt()) + transfer
    }

    fn delayed<T>(
        &self,
        step: &StepCosts,
        offset: u64,
        len: u64,
        request: impl FnOnce() -> T,
    ) -> T {
        // Held during the wait: a disk has one head, so its requests follow each other.
        let mut head = self.head.lock();
        let cost = self.cost(step, head.at, offset, len);
        head.at = offset.saturating_add(len);
        head.spent += cost;
        if self.waits.load(Ordering::Relaxed) {
            std::thread::sleep(cost);
        }
        request()
    }
}

impl crate::decorator::Decorator for DelayDevice {
    type Inner = dyn BlockDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &*self.device
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let len = out.len() as u64;
        self.delayed(&self.costs.read, offset, len, || self.device.read(offset, out))
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        let len = data.len() as u64;
        self.delayed(&self.costs.write, offset, len, || self.device.write(offset, data, fua))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        // After the request under way, as on a disk.
        let _head = self.head.lock();
        self.device.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, conformance};

    #[test]
    fn keeps_the_contract() {
        conformance(&|size| {
            let device = DelayDevice::new(Arc::new(MemoryDevice::new(size)), DiskCosts::HDD);
            device.set_waits(false);
            Arc::new(device)
        });
    }

    #[test]
    fn seek_cost_grows_with_distance() {
        let step = DiskCosts::HDD.read;
        let device = DelayDevice::new(Arc::new(MemoryDevice::new(1 << 30)), DiskCosts::HDD);
        let next = device.cost(&step, 4096, 4096, 150_000);
        assert_eq!(next, Duration::from_millis(1));
        let (near, far) = (device.cost(&step, 0, 1 << 12, 0), device.cost(&step, 0, 1 << 30, 0));
        assert!(near > step.jump_min && near < far);
        assert_eq!(far, step.jump_max);
    }

    #[test]
    fn time_is_counted_by_kind_of_request() {
        let device = DelayDevice::new(Arc::new(MemoryDevice::new(1 << 20)), DiskCosts::SD_CARD);
        device.set_waits(false);
        device.write(4096, &[1; 4000], Fua::No).unwrap();
        let written = device.spent();
        assert_eq!(written, Duration::from_micros(1590 + 400));
        device.read(0, &mut [0; 4000]).unwrap();
        assert_eq!(device.spent() - written, Duration::from_micros(565 + 100));
    }
}
