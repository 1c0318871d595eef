//! Recording of ext4's requests to its device.
//!
//! ext4 on an export of our own NBD server, whose device remembers every request; see
//! [`Mounted`]. Invariant: what unmounting writes is not remembered.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use everbyte_device::{BlockDevice, DeviceError, Fua, Hole, MemoryDevice, Passthrough};
use everbyte_nbd::{Address, Server};
use parking_lot::Mutex;

use super::traffic;
use crate::subjects::mount_ns::in_mount_ns;
use crate::subjects::mounted::{Below, Mounted};
use crate::subjects::served::OneExport;

/// A request of ext4.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Write { offset: u64, data: Vec<u8>, fua: Fua },
    Discard { offset: u64, len: u64 },
    Zero { offset: u64, len: u64 },
    Flush,
}

/// Everything that was recorded of one file system.
pub(crate) struct Recording {
    /// Making and mounting it, and warming up.
    pub(crate) before: Vec<Request>,
    /// The traces, in the order of their names.
    pub(crate) traces: Vec<Vec<Request>>,
}

/// Bytes that `requests` write.
pub(crate) fn written_bytes(requests: &[Request]) -> u64 {
    let written = |request: &Request| match request {
        Request::Write { data, .. } => data.len() as u64,
        Request::Zero { len, .. } => *len,
        Request::Discard { .. } | Request::Flush => 0,
    };
    requests.iter().map(written).sum()
}

/// A device that remembers requests that change it. Reads are not remembered.
struct Recorder {
    device: MemoryDevice,
    requests: Mutex<Vec<Request>>,
}

impl Recorder {
    fn remember(&self, request: Request) {
        self.requests.lock().push(request);
    }

    fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.lock())
    }
}

impl everbyte_device::Decorator for Recorder {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.device
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.device.write(offset, data, fua)?;
        self.remember(Request::Write { offset, data: data.to_vec(), fua });
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.remember(Request::Flush);
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.device.discard(offset, len, fua)?;
        self.remember(Request::Discard { offset, len });
        Ok(())
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.device.write_zeroes(offset, len, hole, fast, fua)?;
        self.remember(Request::Zero { offset, len });
        Ok(())
    }
}

/// Makes file systems of `size_bytes`, uses them, and returns the requests of each.
///
/// # Errors
/// Not root, a tool is missing, or something fails.
pub(crate) fn record(folder: &Path, size_bytes: u64) -> Result<Vec<Recording>> {
    let one = |(name, options): (&'static str, _)| {
        let folder = folder.join(name);
        fs::create_dir(&folder)?;
        record_one(&folder, size_bytes, options).context(name)
    };
    traffic::FILE_SYSTEMS.into_iter().map(one).collect()
}

fn record_one(folder: &Path, size_bytes: u64, options: [&str; 2]) -> Result<Recording> {
    let recorder =
        Arc::new(Recorder { device: MemoryDevice::new(size_bytes), requests: Mutex::default() });
    let device: Arc<dyn BlockDevice> = Arc::<Recorder>::clone(&recorder);
    let address = Address::Unix(folder.join("recorder.sock"));
    let server = Server::bind(&address, Arc::new(OneExport(device)))?;
    let uri = address.uri("disk");
    let recording = in_mount_ns(|| record_apart(folder, &uri, options, &recorder));
    server.shutdown();
    recording
}

fn record_apart(
    folder: &Path,
    uri: &str,
    options: [&str; 2],
    recorder: &Recorder,
) -> Result<Recording> {
    let mounted = Mounted::new(folder, Below::Export(uri), &options, "discard")?;
    traffic::warm_up(&mounted.root)?;
    mounted.sync()?;
    let before = recorder.take();
    let mut traces = Vec::new();
    traffic::run(folder, &mounted.root, || {
        mounted.sync()?;
        traces.push(recorder.take());
        Ok(())
    })?;
    Ok(Recording { before, traces })
}
