//! A device that takes as long as a hard disk would, for measurements.
//!
//! Source of the model: C. Ruemmler and J. Wilkes, "An Introduction to Disk Drive Modeling", IEEE
//! Computer, 1994: a seek that grows with the root of the distance, half a turn of rotation, and
//! transfer. A request that begins where the last one ended seeks nowhere. Writes go to the disk at
//! once, as without a write cache. One head: requests of several threads queue.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::device::{BlockDevice, DeviceError, Extent, Fua, Geometry, Hole};

/// What a disk costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DiskCosts {
    /// Seek to the next track.
    pub seek_min: Duration,
    /// Seek over the whole disk.
    pub seek_max: Duration,
    /// Half a turn.
    pub half_turn: Duration,
    /// Bytes a second once the head is there.
    pub bytes_per_s: u64,
}

impl Default for DiskCosts {
    /// A disk of 7200 turns a minute.
    fn default() -> Self {
        Self {
            seek_min: Duration::from_millis(1),
            seek_max: Duration::from_millis(16),
            half_turn: Duration::from_micros(4170),
            bytes_per_s: 150_000_000,
        }
    }
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
    head: Mutex<Head>,
}

impl DelayDevice {
    /// As slow as `costs` say.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, costs: DiskCosts) -> Self {
        Self { device, costs, head: Mutex::new(Head::default()) }
    }

    /// Time that requests were held up so far.
    #[must_use]
    pub fn spent(&self) -> Duration {
        self.head.lock().spent
    }

    /// What a request costs with the head at `at`.
    #[allow(clippy::cast_precision_loss, reason = "a model of time")]
    fn cost(&self, at: u64, offset: u64, len: u64) -> Duration {
        let transfer = Duration::from_secs_f64(len as f64 / self.costs.bytes_per_s.max(1) as f64);
        if at == offset {
            return transfer;
        }
        let size_bytes = self.device.geometry().size_bytes.max(1);
        let distance = (at.abs_diff(offset) as f64 / size_bytes as f64).clamp(0.0, 1.0);
        let range = self.costs.seek_max.saturating_sub(self.costs.seek_min);
        self.costs.seek_min + range.mul_f64(distance.sqrt()) + self.costs.half_turn + transfer
    }

    fn delayed<T>(&self, offset: u64, len: u64, request: impl FnOnce() -> T) -> T {
        let mut head = self.head.lock();
        let cost = self.cost(head.at, offset, len);
        head.at = offset.saturating_add(len);
        head.spent += cost;
        std::thread::sleep(cost);
        request()
    }
}

impl BlockDevice for DelayDevice {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.delayed(offset, out.len() as u64, || self.device.read(offset, out))
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.delayed(offset, data.len() as u64, || self.device.write(offset, data, fua))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let _head = self.head.lock();
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
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
        self.device.write_zeroes(offset, len, hole, fast, fua)
    }

    fn status(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, DeviceError> {
        self.device.status(offset, len, max)
    }

    fn cache(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.device.cache(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, conformance};

    const FREE: DiskCosts = DiskCosts {
        seek_min: Duration::ZERO,
        seek_max: Duration::ZERO,
        half_turn: Duration::ZERO,
        bytes_per_s: u64::MAX,
    };

    #[test]
    fn keeps_the_contract() {
        conformance(&|size| Arc::new(DelayDevice::new(Arc::new(MemoryDevice::new(size)), FREE)));
    }

    #[test]
    fn far_costs_more_than_near_and_the_next_place_only_transfer() {
        let costs = DiskCosts::default();
        let device = DelayDevice::new(Arc::new(MemoryDevice::new(1 << 30)), costs);
        let next = device.cost(4096, 4096, 150_000);
        assert_eq!(next, Duration::from_millis(1));
        let (near, far) = (device.cost(0, 1 << 12, 0), device.cost(0, 1 << 30, 0));
        assert!(near > costs.seek_min + costs.half_turn && near < far);
        assert_eq!(far, costs.seek_max + costs.half_turn);
    }
}
