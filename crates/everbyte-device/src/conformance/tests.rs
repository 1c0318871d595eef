//! The suite must be able to fail. A real device could have each of the planted faults.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::{
    BlockDevice, DeviceError, Extent, Fua, Geometry, MemoryDevice, Passthrough, SendError,
    Transport, WriteRequest, conformance,
};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    TornWrite,
    LostNeighbour,
    ReversedBatch,
    CoarseDiscard,
    DiscardKeepsEdges,
    StatusTooLong,
    StatusSaysZero,
    PrefixBeforeError,
    WritesWhenReadOnly,
    ZeroLengthBeyondEnd,
}

struct Faulty {
    fault: Fault,
    inner: MemoryDevice,
}

impl Faulty {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

impl Transport for Faulty {
    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        if self.has(Fault::PrefixBeforeError) {
            crate::send_all(socket, prefix)?;
            return crate::send(&self.inner, (offset, len), b"", socket);
        }
        crate::send(&self.inner, (offset, len), prefix, socket)
    }
}

impl crate::decorator::Decorator for Faulty {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.inner
    }

    fn geometry(&self) -> Geometry {
        let read_only = self.has(Fault::WritesWhenReadOnly);
        Geometry { read_only, ..self.inner.geometry() }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        if self.has(Fault::ZeroLengthBeyondEnd) && out.is_empty() {
            return Ok(());
        }
        self.inner.read(offset, out)
    }

    fn transport(&self) -> Option<&dyn Transport> {
        Some(self)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        let end = offset.saturating_add(data.len() as u64);
        if self.has(Fault::TornWrite) && data.len() > 100 && end <= self.inner.geometry().size_bytes
        {
            self.inner.write(offset, &data[..100], fua)?;
            std::thread::sleep(Duration::from_micros(1));
        }
        if self.has(Fault::LostNeighbour) && end < self.inner.geometry().size_bytes {
            let mut whole = vec![0; data.len() + 1];
            self.inner.read(offset, &mut whole)?;
            if data.len() < 100 {
                // Wide enough for others to slip in on any machine.
                std::thread::sleep(Duration::from_micros(1));
            }
            whole[..data.len()].copy_from_slice(data);
            return self.inner.write(offset, &whole, fua);
        }
        self.inner.write(offset, data, fua)
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        let do_one = |r: &WriteRequest<'_>| BlockDevice::write(self, r.offset, r.data, r.fua);
        if self.has(Fault::ReversedBatch) {
            let mut results: Vec<_> = requests.iter().rev().map(do_one).collect();
            results.reverse();
            return results;
        }
        requests.iter().map(do_one).collect()
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.inner.discard(offset, 0, fua)?;
        if self.has(Fault::CoarseDiscard) && offset % 512 == 1 {
            return self.inner.discard(offset - 1, len, fua);
        }
        if self.has(Fault::DiscardKeepsEdges) && len < 4096 {
            crate::check_range(offset, len, self.inner.geometry().size_bytes)?;
            return Ok(());
        }
        self.inner.discard(offset, len, fua)
    }

    fn status(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, DeviceError> {
        let mut extents = self.inner.status(offset, len, max)?;
        if let Some(last) = extents.last_mut() {
            last.len += u64::from(self.has(Fault::StatusTooLong) && len % 4096 == 1);
            last.zero |= self.has(Fault::StatusSaysZero);
        }
        Ok(extents)
    }
}

/// Returns the message of the failed suite; `None` if `device` passes.
fn complaint(device: &dyn Fn(u64) -> Arc<dyn BlockDevice>) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| conformance(device))).err()?;
    Some(panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[test]
fn planted_faults_are_caught() {
    assert_eq!(complaint(&|size| Arc::new(MemoryDevice::new(size))), None);
    for (fault, words) in [
        (Fault::TornWrite, "torn blocks: a block read at"),
        // Threads of the disjoint areas that meet in a block may be the first to miss a write.
        (Fault::LostNeighbour, "undid another thread's|disjoint areas, thread"),
        (Fault::ReversedBatch, "batches: the first wrong byte"),
        (Fault::CoarseDiscard, "byte 2048 is 0x00 instead of 0x35"),
        (Fault::DiscardKeepsEdges, "byte 2048 is 0xf1 instead of 0x00"),
        (Fault::StatusTooLong, "is empty or too long"),
        (Fault::StatusSaysZero, "is no zeroes"),
        (Fault::PrefixBeforeError, "but 6 bytes were sent before"),
        (Fault::WritesWhenReadOnly, "write on a read-only device gave Ok(())"),
        (Fault::ZeroLengthBeyondEnd, "read of 0 bytes at 1048577 gave Ok(())"),
    ] {
        let found = complaint(&|size| Arc::new(Faulty { fault, inner: MemoryDevice::new(size) }));
        let found = found.unwrap_or_else(|| panic!("{fault:?} was not caught"));
        let told = words.split('|').any(|words| found.contains(words));
        assert!(told, "{fault:?} is caught: {found}");
    }
}
