//! Recording of ext4's requests to its device.
//!
//! ext4 on a loop device on a file that `nbdfuse` shows of our own NBD server, whose device
//! remembers every request. Invariants: mounts are made in a mount namespace that only the
//! recording thread and its children are in, and those children end with that thread, so nothing
//! stays mounted however the process ends; what unmounting writes is not remembered.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use everbyte_device::{BlockDevice, Compound, DeviceError, Fua, Hole, MemoryDevice};
use everbyte_nbd::{Address, Server};
use nix::sched::{CloneFlags, unshare};
use parking_lot::Mutex;
use rustix::fs::syncfs;

use super::traffic;
use crate::subjects::ext4::call;
use crate::subjects::served::OneExport;

/// Time that mounting and unmounting may take.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Time between looks whether they are done.
const POLL: Duration = Duration::from_millis(20);

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
    const COMPOUND: Compound = Compound::Split;

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
    if !rustix::process::geteuid().is_root() {
        bail!("needs root, to mount a loop device");
    }
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
    // A thread of its own, because it leaves the mount namespace of the others for good.
    let recording = std::thread::scope(|scope| {
        let thread = scope.spawn(|| record_apart(folder, &uri, options, &recorder));
        thread.join().map_err(|_| anyhow!("the recording thread panicked")).flatten()
    });
    server.shutdown();
    recording
}

fn record_apart(
    folder: &Path,
    uri: &str,
    options: [&str; 2],
    recorder: &Recorder,
) -> Result<Recording> {
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    call(Command::new("mount").args(["--make-rprivate", "/"]))?;
    let mounted = Mounted::new(folder, uri, options)?;
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

/// The mounted file system.
struct Mounted {
    root: PathBuf,
    fuse: PathBuf,
    nbdfuse: Child,
}

impl Mounted {
    fn new(folder: &Path, uri: &str, options: [&str; 2]) -> Result<Self> {
        let (fuse, root) = (folder.join("nbdfuse"), folder.join("recorded"));
        fs::create_dir(&fuse)?;
        fs::create_dir(&root)?;
        let file = fuse.join("nbd");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--", "nbdfuse"]).arg(&file).arg(uri);
        let spawned = command.stdin(Stdio::null()).spawn();
        let nbdfuse = spawned.context("setpriv is not installed")?;
        // From here on, dropping it unmounts and removes everything that was made.
        let mut mounted = Self { root, fuse, nbdfuse };
        wait_for_file(&file, &mut mounted.nbdfuse)?;
        let at_once = "lazy_itable_init=0,lazy_journal_init=0";
        let make = ["-q", "-F", "-t", "ext4", "-b", "4096", "-E", at_once];
        call(Command::new("mke2fs").args(make).args(options).arg(&file))?;
        let mount = ["-o", "loop,discard"];
        call(Command::new("mount").args(mount).arg(&file).arg(&mounted.root))?;
        mounted.sync()?;
        Ok(mounted)
    }

    fn sync(&self) -> Result<()> {
        syncfs(File::open(&self.root)?)?;
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for at in [&self.root, &self.fuse] {
            // It may never have been mounted.
            let _not_mounted = call(Command::new("umount").arg(at));
        }
        let start = Instant::now();
        while matches!(self.nbdfuse.try_wait(), Ok(None)) {
            if start.elapsed() > TIME_MAX {
                // It may have ended just now.
                let _gone = self.nbdfuse.kill();
            }
            std::thread::sleep(POLL);
        }
    }
}

fn wait_for_file(file: &Path, nbdfuse: &mut Child) -> Result<()> {
    let start = Instant::now();
    while !file.exists() {
        if let Some(status) = nbdfuse.try_wait()? {
            bail!("nbdfuse ended at once: {status}");
        }
        if start.elapsed() > TIME_MAX {
            bail!("nbdfuse does not show {}", file.display());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}
