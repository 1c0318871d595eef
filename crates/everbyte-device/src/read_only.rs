//! A read-only view of a writable device.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::decorator::Passthrough;
use crate::device::{BlockDevice, Fua, Geometry, Hole, WriteRequest};
use crate::error::{DeviceError, SendError};
use crate::transport::Transport;

/// A read-only view of a device. Others may write to the device. A change of a range within the device
/// fails with [`DeviceError::ReadOnly`].
pub struct ReadOnlyDevice {
    device: Arc<dyn BlockDevice>,
    reason: String,
}

impl ReadOnlyDevice {
    /// Makes a view of `device`. Its errors name `reason`.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, reason: impl Into<String>) -> Self {
        Self { device, reason: reason.into() }
    }

    fn refuse(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        // First: the contract has its own error for a range outside.
        crate::device::check_range(offset, len, self.device.geometry().size_bytes)?;
        Err(DeviceError::ReadOnly { reason: self.reason.clone() })
    }
}

/// Sends, without direct access: a borrower of memory must prevent writes, and a read-only view cannot.
impl Transport for ReadOnlyDevice {
    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        crate::send(&*self.device, (offset, len), prefix, socket)
    }
}

impl crate::decorator::Decorator for ReadOnlyDevice {
    type Inner = dyn BlockDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Whole;

    fn inner(&self) -> &Self::Inner {
        &*self.device
    }

    fn transport(&self) -> Option<&dyn Transport> {
        Some(self)
    }

    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..self.device.geometry() }
    }

    fn write(&self, offset: u64, data: &[u8], _: Fua) -> Result<(), DeviceError> {
        self.refuse(offset, data.len() as u64)
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        requests
            .iter()
            .map(|request| self.refuse(request.offset, request.data.len() as u64))
            .collect()
    }

    fn discard(&self, offset: u64, len: u64, _: Fua) -> Result<(), DeviceError> {
        self.refuse(offset, len)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        _: Hole,
        _fast: bool,
        _: Fua,
    ) -> Result<(), DeviceError> {
        self.refuse(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, conformance};

    #[test]
    fn keeps_the_contract() {
        conformance(&|size| {
            Arc::new(ReadOnlyDevice::new(Arc::new(MemoryDevice::new(size)), "it is a view"))
        });
    }

    #[test]
    fn read_only_view_refuses_writes_shows_changes() {
        let device = Arc::new(MemoryDevice::new(8192));
        let view = ReadOnlyDevice::new(Arc::<MemoryDevice>::clone(&device), "it is a view");
        device.write(0, &[7; 512], Fua::No).unwrap();
        let request = WriteRequest { offset: 0, data: &[1], fua: Fua::No };
        let refused = [
            view.write(0, &[1], Fua::Yes),
            view.write_batch(&[request]).remove(0),
            view.discard(0, 512, Fua::No),
            view.write_zeroes(0, 512, Hole::Allowed, false, Fua::No),
        ];
        for refused in refused {
            let error = refused.unwrap_err();
            assert!(matches!(&error, DeviceError::ReadOnly { reason } if reason == "it is a view"));
        }
        let mut found = [0; 512];
        view.read(0, &mut found).unwrap();
        assert_eq!(found, [7; 512]);
        view.flush().unwrap();
    }
}
