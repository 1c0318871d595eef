//! The backing device of a cache: a file as slow as a disk. A second device gets only the reads. It counts their time
//! without writes between them.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use everbyte_device::{
    BlockDevice, DelayDevice, DeviceError, DiskCosts, FileDevice, MemoryDevice, Passthrough,
};

/// A file behind a cache, as slow as a disk.
pub(crate) struct Backing {
    slow: DelayDevice,
    /// Gets every read and no write.
    reads: DelayDevice,
    read_requests: AtomicU64,
}

impl Backing {
    /// Makes a backing device of `size_bytes` in a new file at `path`, and removes the name: the file ends with the process.
    /// The device counts its time and does not wait.
    ///
    /// # Errors
    /// The file's.
    pub(crate) fn new(path: &Path, size_bytes: u64, costs: DiskCosts) -> Result<Arc<Self>> {
        let made = File::create(path).and_then(|file| file.set_len(size_bytes));
        made.with_context(|| format!("cannot make {}", path.display()))?;
        let file = FileDevice::open(path);
        // The name goes also after a failed open.
        std::fs::remove_file(path)?;
        let slow = DelayDevice::new(Arc::new(file?), costs);
        let reads = DelayDevice::new(Arc::new(MemoryDevice::new(size_bytes)), costs);
        slow.set_waits(false);
        reads.set_waits(false);
        Ok(Arc::new(Self { slow, reads, read_requests: AtomicU64::new(0) }))
    }

    /// Makes requests take their time, or only count it.
    pub(crate) fn set_waits(&self, waits: bool) {
        self.slow.set_waits(waits);
    }

    /// Returns the time of the requests, real or counted.
    pub(crate) fn spent(&self) -> Duration {
        self.slow.spent()
    }

    /// Returns the time of the reads without writes between them.
    pub(crate) fn reads_alone(&self) -> Duration {
        self.reads.spent()
    }

    /// Returns the reads so far.
    pub(crate) fn read_requests(&self) -> u64 {
        self.read_requests.load(Ordering::Relaxed)
    }
}

impl everbyte_device::Decorator for Backing {
    type Inner = DelayDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.slow
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        // This device has no bytes of the file, so its read comes first and the next one replaces them.
        BlockDevice::read(&self.reads, offset, out)?;
        self.read_requests.fetch_add(1, Ordering::Relaxed);
        BlockDevice::read(&self.slow, offset, out)
    }
}

#[cfg(test)]
mod tests {
    use everbyte_device::Fua;

    use super::*;

    #[test]
    fn unlinked_file_keeps_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let backing = Backing::new(&folder.path().join("file"), 8192, DiskCosts::SSD).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let device: &dyn BlockDevice = &*backing;
        device.write(4096, &[7; 512], Fua::No).unwrap();
        let mut found = [0; 512];
        device.read(4096, &mut found).unwrap();
        assert_eq!(found, [7; 512]);
        assert_eq!(backing.read_requests(), 1);
    }
}
