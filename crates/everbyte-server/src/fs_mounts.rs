//! Mounts of one file system: making them, serving them, their end and their losses.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use everbyte::FileSystem;
use everbyte::files::{AccessTimes, EngineFs};
use everbyte_control::{AttachedAnswer, FileRequest, MountServed, RequestError};
use everbyte_device::meter::Meter;
use everbyte_fuse::{
    KernelCaching, Loss, LostStores, Mount, MountError, MountOptions, Privileges, UnmountOutcome,
};
use parking_lot::Mutex;

use crate::files::Files;
use crate::words::meaning;

/// Maximum number of threads serving a mount.
const THREADS_MAX: u16 = 256;
/// Longest time to wait for the end of a mount without a directory, and the time between two looks.
const UNMOUNTING_TIME_MAX: Duration = Duration::from_secs(2);
const UNMOUNTING_LOOK: Duration = Duration::from_millis(5);

const ATIME_WORDS: [(&str, AccessTimes); 3] = [
    ("relative", AccessTimes::Relative),
    ("never", AccessTimes::Never),
    ("strict", AccessTimes::Strict),
];

/// The mounts of a file system.
pub(crate) struct FsMounts {
    fs: FileSystem,
    /// Counts of the kernel's requests.
    meter: Arc<Meter>,
    mount: Mutex<Option<Mounted>>,
    /// Mounts so far.
    mounts: AtomicU64,
    /// Programs had files open when the last mount was ended.
    is_used: AtomicBool,
    /// The lost stores of the last mount, and of earlier mounts with losses.
    lost: Mutex<Vec<MountStores>>,
}

/// The lost stores of a mount.
struct MountStores {
    id: u64,
    lost: LostStores,
    /// True once a request to sync has reported the loss. A mount command may be dead before the
    /// report.
    is_told: bool,
}

/// A mount of a file system.
struct Mounted {
    mount: Mount,
    id: u64,
    /// The directory, as named by the mounting client.
    dir: String,
}

impl FsMounts {
    pub(crate) fn new(fs: FileSystem, meter: Arc<Meter>) -> Self {
        Self {
            fs,
            meter,
            mount: Mutex::default(),
            mounts: AtomicU64::new(0),
            is_used: AtomicBool::new(false),
            lost: Mutex::default(),
        }
    }

    /// Mounts by `make`, unless it is mounted, on the directory shown as `dir` in lists. Returns
    /// the mount's number.
    fn mount_by(
        &self,
        dir: String,
        make: impl FnOnce(Arc<EngineFs>) -> Result<Mount, MountError>,
    ) -> Result<u64, RequestError> {
        // Without the lock, so that other requests about the mount go on.
        self.wait_for_unmounting();
        let mounted = &mut *self.mount.lock();
        if let Some(mounted) = mounted.as_ref() {
            let (name, dir) = (self.fs.name(), &mounted.dir);
            if !mounted.mount.is_ended() {
                return Err(format!("volume {name} is mounted already, on {dir}").into());
            }
            // Some of its threads may go on.
            if mounted.mount.has_failed() {
                let what = "but not served as it should be, and the kernel still has it";
                return Err(format!("volume {name} is mounted on {dir}, {what}").into());
            }
        }
        // It holds the device of the ended mount.
        *mounted = None;
        let id = self.mounts.fetch_add(1, Ordering::Relaxed) + 1;
        let mount = make(Arc::clone(self.fs.engine())).map_err(|error| error.to_string())?;
        let mut lost = self.lost.lock();
        // Losses outlive their mount: its command may have died before the report.
        lost.retain(|stores| stores.lost.first().is_some());
        lost.push(MountStores { id, lost: mount.lost_stores(), is_told: false });
        *mounted = Some(Mounted { mount, id, dir });
        Ok(id)
    }

    /// Waits a short time for the end of a mount already absent from every directory: umount(8)
    /// returns before the end.
    fn wait_for_unmounting(&self) {
        let deadline = Instant::now() + UNMOUNTING_TIME_MAX;
        while self.has(|mounted| mounted.mount.is_unmounting()) && Instant::now() < deadline {
            std::thread::sleep(UNMOUNTING_LOOK);
        }
    }

    /// The directory of its mount.
    pub(crate) fn mounted_on(&self) -> Option<String> {
        let mounted = self.mount.lock();
        let mounted = mounted.as_ref().filter(|mounted| !mounted.mount.is_ended());
        mounted.map(|mounted| mounted.dir.clone())
    }

    /// Mounts it on a directory.
    ///
    /// # Errors
    /// It is mounted already, or cannot be.
    pub(crate) fn mount(&self, dir: &Path, options: &MountOptions) -> Result<(), RequestError> {
        self.mount_by(dir.display().to_string(), |fs| Mount::new(fs, dir, options, &self.meter))
            .map(drop)
    }

    /// Serves a mount made by the client with this descriptor of `/dev/fuse`, and returns its
    /// number. `source` is the name this process would give the mount.
    ///
    /// # Errors
    /// It is mounted already, or the descriptor cannot be served.
    pub(crate) fn serve_mount(
        &self,
        request: &MountServed,
        source: String,
        descriptor: OwnedFd,
    ) -> Result<u64, RequestError> {
        let atime = &request.atime;
        let access_times = meaning(&ATIME_WORDS, atime)
            .ok_or_else(|| format!("{atime:?} is no choice of access times"))?;
        let options = MountOptions {
            source,
            // The mounting client has set this option, and the available privileges, in the kernel.
            allow_other: true,
            read_only: request.read_only,
            threads: usize::from(request.threads.clamp(1, THREADS_MAX)),
            access_times,
            caching: KernelCaching::Full,
            privileges: Privileges::default(),
            exec: true,
            dir_access_times: !request.no_dir_atime,
        };
        self.mount_by(request.dir.clone(), |fs| Mount::over(fs, descriptor, &options, &self.meter))
    }

    /// Returns true if it has a mount, ended or not, for which `is_it` returns true.
    fn has(&self, is_it: impl FnOnce(&Mounted) -> bool) -> bool {
        self.mount.lock().as_ref().is_some_and(is_it)
    }

    /// Returns true as long as the mount of this number has not ended.
    pub(crate) fn has_mount(&self, id: u64) -> bool {
        self.has(|mounted| mounted.id == id && !mounted.mount.is_ended())
    }

    /// Returns true if all threads of the mount of this number have stopped although it has not
    /// ended.
    pub(crate) fn has_failed_mount(&self, id: u64) -> bool {
        self.has(|mounted| mounted.id == id && mounted.mount.has_failed())
    }

    /// Returns true as long as it is mounted.
    pub(crate) fn is_mounted(&self) -> bool {
        self.has(|mounted| !mounted.mount.is_ended())
    }

    /// Checks that no program had files of its mount open at the end of the mount.
    ///
    /// # Errors
    /// A program had.
    pub(crate) fn check_unused(&self) -> Result<(), RequestError> {
        if self.is_used.load(Ordering::Acquire) {
            let name = self.fs.name();
            let what = "what they have mapped and changed may be lost";
            return Err(format!("programs have files of volume {name} open: {what}").into());
        }
        Ok(())
    }

    /// Checks for lost stores of programs through mappings of its mount of this number, or of any
    /// mount.
    ///
    /// # Errors
    /// The first loss.
    pub(crate) fn check_stores(&self, id: Option<u64>) -> Result<(), RequestError> {
        let lost = self.lost.lock();
        let mut wanted = lost.iter().filter(|stores| id.is_none_or(|id| id == stores.id));
        self.check_loss(wanted.find_map(|stores| stores.lost.first()))
    }

    /// Checks that each such loss was reported before.
    ///
    /// # Errors
    /// The first other loss. From then on it counts as reported.
    pub(crate) fn check_told(&self) -> Result<(), RequestError> {
        let mut lost = self.lost.lock();
        let untold = lost.iter_mut().filter(|stores| !stores.is_told).find_map(|stores| {
            let loss = stores.lost.first()?;
            stores.is_told = true;
            Some(loss)
        });
        self.check_loss(untold)
    }

    fn check_loss(&self, loss: Option<Loss>) -> Result<(), RequestError> {
        loss.map_or(Ok(()), |loss| Err(format!("volume {}: {loss}", self.fs.name()).into()))
    }

    /// Carries out a request about its files, with the request's attached bytes.
    ///
    /// # Errors
    /// The errors of the file system.
    pub(crate) fn files(&self, request: &FileRequest, bytes: &[u8]) -> AttachedAnswer {
        let caches = self.mount.lock().as_ref().map(|mounted| mounted.mount.caches());
        let done = Files { fs: self.fs.engine(), caches }.carry_out(request, bytes)?;
        // A successful sync would deny the loss of earlier stores.
        if *request == FileRequest::Sync {
            self.check_told()?;
        }
        Ok(done)
    }

    /// Unmounts it. All answered writes are in the pool already.
    ///
    /// # Errors
    /// The reason of a possible loss of answered writes.
    pub(crate) fn end(&self) -> Result<(), String> {
        let Some(Mounted { mount, .. }) = self.mount.lock().take() else { return Ok(()) };
        if !mount.is_ended() {
            // The end may take long, and an impatient user may kill this process before it.
            self.fs.engine().volume().flush().map_err(|error| error.to_string())?;
        }
        let unmounted = mount.unmount().map_err(|error| error.to_string())?;
        self.is_used.store(unmounted == UnmountOutcome::Used, Ordering::Release);
        Ok(())
    }
}
