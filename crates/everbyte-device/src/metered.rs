//! A device whose requests are counted.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::decorator::Passthrough;
use crate::device::{BlockDevice, Extent, Fua, Hole, WriteRequest};
use crate::direct_access::DirectAccess;
use crate::error::{DeviceError, SendError};
use crate::meter::{ErrorCause, Meter, MeterShard, Operation};
use crate::transport::Transport;

/// A device whose requests are counted and sampled by a [`Meter`].
///
/// The latency of a request is its time in the device. A [`send`](crate::send) is a read, and its latency
/// includes the time of the socket. The writes of a batch share one latency, the time of the batch.
pub struct MeteredDevice {
    device: Arc<dyn BlockDevice>,
    shard: Arc<MeterShard>,
}

impl MeteredDevice {
    /// Counts the requests to `device` in `meter`, as those of one more user.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, meter: &Meter) -> Self {
        Self { device, shard: meter.shard() }
    }

    fn count<T>(
        &self,
        operation: Operation,
        bytes: u64,
        request: impl FnOnce() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let started = self.shard.begin(operation, 1);
        let done = request();
        self.shard.end(&started, if done.is_ok() { bytes } else { 0 });
        done.inspect_err(|error| self.shard.fail(ErrorCause::of(error)))
    }
}

impl Transport for MeteredDevice {
    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        let started = self.shard.begin(Operation::Read, 1);
        let sent = crate::send(&*self.device, (offset, len), prefix, socket);
        self.shard.end(&started, if sent.is_ok() { len as u64 } else { 0 });
        if let Err(SendError::Device(error)) = &sent {
            self.shard.fail(ErrorCause::of(error));
        }
        sent
    }

    fn direct_access(&self) -> Option<&dyn DirectAccess> {
        self.device.transport()?.direct_access()
    }
}

impl crate::decorator::Decorator for MeteredDevice {
    type Inner = dyn BlockDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Whole;

    fn inner(&self) -> &Self::Inner {
        &*self.device
    }

    fn transport(&self) -> Option<&dyn Transport> {
        Some(self)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.count(Operation::Read, out.len() as u64, || self.device.read(offset, out))
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.count(Operation::Write, data.len() as u64, || self.device.write(offset, data, fua))
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        // One pair of clock reads and one change of each count for the whole batch.
        let started = self.shard.begin(Operation::Write, requests.len() as u64);
        let results = self.device.write_batch(requests);
        let mut bytes = 0;
        for (request, result) in requests.iter().zip(&results) {
            match result {
                Ok(()) => bytes += request.data.len() as u64,
                Err(error) => self.shard.fail(ErrorCause::of(error)),
            }
        }
        self.shard.end(&started, bytes);
        results
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.count(Operation::Flush, 0, || self.device.flush())
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.count(Operation::Trim, len, || self.device.discard(offset, len, fua))
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        let zero = || self.device.write_zeroes(offset, len, hole, fast, fua);
        self.count(Operation::WriteZeroes, len, zero)
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        self.count(Operation::Status, 0, || self.device.status(offset, len, extents_max))
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.count(Operation::Prefetch, len, || self.device.prefetch(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::{MemoryDevice, conformance};

    #[test]
    fn metered_device_keeps_contract() {
        let meter = Meter::new(3);
        conformance(&|size| {
            Arc::new(MeteredDevice::new(Arc::new(MemoryDevice::new(size)), &meter))
        });
        assert!(meter.totals().operation(Operation::Write).requests > 0);
    }

    #[test]
    fn metered_requests_have_exact_counts() {
        let meter = Meter::new(2);
        let device = MeteredDevice::new(Arc::new(MemoryDevice::new(8192)), &meter);
        let write = |offset| WriteRequest { offset, data: &[1; 7], fua: Fua::No };
        for _ in 0..3 {
            BlockDevice::write(&device, 0, &[1; 5], Fua::Yes).unwrap();
        }
        assert!(BlockDevice::write_batch(&device, &[write(0), write(8190)])[1].is_err());
        BlockDevice::read(&device, 0, &mut [0; 9]).unwrap();
        let (near, _far) = UnixStream::pair().unwrap();
        crate::send(&device, (0, 100), b"prefix", near.as_fd()).unwrap();
        crate::send(&device, (8192, 1), b"prefix", near.as_fd()).unwrap_err();
        BlockDevice::flush(&device).unwrap();
        BlockDevice::discard(&device, 0, 4096, Fua::No).unwrap();
        BlockDevice::write_zeroes(&device, 0, 512, Hole::Allowed, false, Fua::No).unwrap();
        BlockDevice::status(&device, 0, 512, 1).unwrap();
        let totals = meter.totals();
        let found = |operation| {
            let found = totals.operation(operation);
            (found.requests, found.bytes, found.timed())
        };
        assert_eq!(found(Operation::Write), (5, 22, 3));
        assert_eq!(found(Operation::Read), (3, 109, 2));
        assert_eq!(found(Operation::Flush), (1, 0, 1));
        assert_eq!(found(Operation::Trim), (1, 4096, 1));
        assert_eq!(found(Operation::WriteZeroes), (1, 512, 1));
        assert_eq!(found(Operation::Status), (1, 0, 1));
        assert_eq!(totals.errors(ErrorCause::OutOfRange), 2);
        assert_eq!(totals.errors(ErrorCause::Media), 0);
    }
}
