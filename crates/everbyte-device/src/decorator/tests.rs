//! Requests that reach the device behind a decorator.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Passthrough;
use crate::{
    BlockDevice, DeviceError, Extent, Fua, Geometry, Hole, MemoryDevice, SendError, Transport,
    WriteRequest, conformance,
};

/// Notes the calls of its methods.
#[derive(Default)]
struct RequestLog(Mutex<Vec<&'static str>>);

impl RequestLog {
    fn note(&self, method: &'static str) {
        self.0.lock().push(method);
    }
}

impl Transport for RequestLog {
    fn send(&self, _: u64, _: usize, _: &[u8], _: BorrowedFd<'_>) -> Result<(), SendError> {
        self.note("send");
        Ok(())
    }
}

impl BlockDevice for RequestLog {
    fn geometry(&self) -> Geometry {
        self.note("geometry");
        Geometry { size_bytes: 77, minimum_bytes: 1, preferred_bytes: 2, read_only: false }
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        self.note("read");
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8], _: Fua) -> Result<(), DeviceError> {
        self.note("write");
        Ok(())
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        self.note("write_batch");
        requests.iter().map(|_| Ok(())).collect()
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.note("flush");
        Ok(())
    }

    fn discard(&self, _: u64, _: u64, _: Fua) -> Result<(), DeviceError> {
        self.note("discard");
        Ok(())
    }

    fn write_zeroes(&self, _: u64, _: u64, _: Hole, _: bool, _: Fua) -> Result<(), DeviceError> {
        self.note("write_zeroes");
        Ok(())
    }

    fn status(&self, _: u64, _: u64, _: usize) -> Result<Vec<Extent>, DeviceError> {
        self.note("status");
        Ok(Vec::new())
    }

    fn prefetch(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        self.note("prefetch");
        Ok(())
    }

    fn transport(&self) -> Option<&dyn Transport> {
        Some(self)
    }
}

/// Overrides no request.
struct Forwarding(Arc<dyn BlockDevice>);

impl super::Decorator for Forwarding {
    type Inner = dyn BlockDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Whole;

    fn inner(&self) -> &Self::Inner {
        &*self.0
    }
}

/// Overrides no request, but routes composite requests through its reads and writes.
struct Splitting(Arc<dyn BlockDevice>);

impl super::Decorator for Splitting {
    type Inner = dyn BlockDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &*self.0
    }
}

/// Calls each method once, and two writes in the batch.
fn call_all(device: &dyn BlockDevice) {
    let (near, _far) = UnixStream::pair().unwrap();
    let request = WriteRequest { offset: 0, data: &[1], fua: Fua::No };
    device.geometry();
    device.read(0, &mut [0]).unwrap();
    crate::send(device, (0, 1), b"prefix", near.as_fd()).unwrap();
    device.write(0, &[1], Fua::No).unwrap();
    assert_eq!(device.write_batch(&[request; 2]).len(), 2);
    device.flush().unwrap();
    device.discard(0, 1, Fua::No).unwrap();
    device.write_zeroes(0, 1, Hole::Allowed, false, Fua::No).unwrap();
    device.status(0, 1, 1).unwrap();
    device.prefetch(0, 1).unwrap();
}

#[test]
fn whole_passthrough_forwards_each_request() {
    let direct = RequestLog::default();
    call_all(&direct);
    let behind = Arc::new(RequestLog::default());
    call_all(&Forwarding(Arc::<RequestLog>::clone(&behind)));
    assert_eq!(*behind.0.lock(), *direct.0.lock());
    assert_eq!(behind.0.lock().len(), 10);
}

#[test]
fn split_passthrough_sees_each_read_and_write() {
    let behind = Arc::new(RequestLog::default());
    call_all(&Splitting(Arc::<RequestLog>::clone(&behind)));
    let split = [
        "geometry",
        "read",
        // Of `send`, which checks its range first.
        "geometry",
        "read",
        "write",
        "write",
        "write",
        "flush",
        "discard",
        "write_zeroes",
        "status",
        "prefetch",
    ];
    assert_eq!(*behind.0.lock(), split);
}

#[test]
fn decorators_keep_the_contract() {
    conformance(&|size| Arc::new(Forwarding(Arc::new(MemoryDevice::new(size)))));
    conformance(&|size| Arc::new(Splitting(Arc::new(MemoryDevice::new(size)))));
}
