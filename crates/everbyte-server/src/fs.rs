//! File systems: mounted on directories, and no devices for clients.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use everbyte_control::{FileRequest, MountServed, NewVolume, Refused, Response, VolumeStatus};
use everbyte_device::BlockDevice;
use everbyte_fs::{AccessTimes, FileSystem, FsOptions, IndexKind};
use everbyte_fuse::{
    KernelCaching, Loss, LostStores, Mount, MountError, MountOptions, Privileges, Unmounted,
};
use everbyte_media::Mapped;
use everbyte_pool::{ScrubReport, Volume};
use parking_lot::Mutex;

use crate::context::{Context, NewBacking, check_no_backing};
use crate::files::Files;
use crate::handle::{Closing, Handle, MountRequest, Opened, Resize, Unavailable};
use crate::quiesce::Alone;
use crate::refusal::{lost_stores, refused};
use crate::words::meaning;

/// Most threads that serve a mount.
const THREADS_MAX: u16 = 256;
/// Longest time to wait for the end of a mount without a directory, and the time between two looks.
const UNMOUNTING_TIME_MAX: Duration = Duration::from_secs(2);
const UNMOUNTING_LOOK: Duration = Duration::from_millis(5);

const ATIME_WORDS: [(&str, AccessTimes); 3] = [
    ("relative", AccessTimes::Relative),
    ("never", AccessTimes::Never),
    ("strict", AccessTimes::Strict),
];

/// A file system's handle.
pub(crate) struct FsHandle {
    fs: Arc<FileSystem<Mapped>>,
    mount: Mutex<Option<Mounted>>,
    /// Mounts so far.
    mounts: AtomicU64,
    /// Programs had files open when the last mount was ended.
    is_used: Arc<AtomicBool>,
    /// The lost stores of the last mount, and of those before it that have lost some.
    lost: Mutex<Vec<MountStores>>,
}

/// The lost stores of a mount.
struct MountStores {
    id: u64,
    lost: LostStores,
    /// A request to sync was told of the loss. A mount command may be dead before it is told.
    is_told: bool,
}

/// A mount of a file system.
struct Mounted {
    mount: Mount,
    id: u64,
    /// The directory, as whoever mounted names it.
    dir: String,
}

impl FsHandle {
    pub(crate) fn create(
        context: &Context,
        new: &NewVolume,
        _: &NewBacking<'_>,
    ) -> Result<Opened, Refused> {
        check_no_backing(new)?;
        let wanted = new.fs.as_deref();
        let index = wanted.map_or(Ok(IndexKind::default()), |wanted| {
            IndexKind::from_name(&wanted.index)
                .ok_or_else(|| Refused::new(format!("{:?} is no index", wanted.index)))
        })?;
        let options = FsOptions {
            index,
            index_node_bytes: wanted.and_then(|wanted| wanted.index_node_bytes),
            inodes_max: wanted.and_then(|wanted| wanted.inodes_max),
            large_tables: wanted.is_some_and(|wanted| wanted.large_tables),
            // Whoever asks is this user or root, for whom it matters little.
            root_uid: rustix::process::geteuid().as_raw(),
            root_gid: rustix::process::getegid().as_raw(),
            log_bytes: new.log_bytes,
            lanes: new.lanes,
            checkpoint_lines: new.checkpoint_lines.unwrap_or(0),
        };
        let made = FileSystem::create(&context.pool, &new.name, new.size_bytes, &options);
        Ok(Self::opened(made.map_err(refused)?))
    }

    pub(crate) fn open_volume(context: &Context, name: &str) -> Result<Opened, Refused> {
        let fs = FileSystem::open(&context.pool, name).map_err(refused)?;
        if context.unchanging {
            // The kernel lets changes through after a remount, and a private copy would take them and lose them.
            fs.volume().refuse_changes("the pool is open for reading only");
        }
        Ok(Self::opened(fs))
    }

    fn opened(fs: FileSystem<Mapped>) -> Opened {
        let volume = Arc::clone(fs.volume());
        Opened {
            volume,
            handle: Box::new(Self {
                fs: Arc::new(fs),
                mount: Mutex::default(),
                mounts: AtomicU64::new(0),
                is_used: Arc::default(),
                lost: Mutex::default(),
            }),
        }
    }

    fn is_no_device(&self) -> Refused {
        Refused::new(format!("volume {} is a file system", self.fs.volume().name()))
    }
}

impl FsHandle {
    /// Mounts by `make`, unless it is mounted, on what lists call `dir`. Returns the mount's number.
    fn mount_by(
        &self,
        dir: String,
        make: impl FnOnce(Arc<FileSystem<Mapped>>) -> Result<Mount, MountError>,
    ) -> Result<u64, Refused> {
        self.wait_for_unmounting();
        let mounted = &mut *self.mount.lock();
        if let Some(mounted) = mounted.as_ref() {
            let (name, dir) = (self.fs.volume().name(), &mounted.dir);
            if !mounted.mount.is_ended() {
                return Err(Refused::new(format!("volume {name} is mounted already, on {dir}")));
            }
            // Some of its threads may go on.
            if mounted.mount.has_failed() {
                let what = "but not served as it should be, and the kernel still has it";
                return Err(Refused::new(format!("volume {name} is mounted on {dir}, {what}")));
            }
        }
        // It holds the device of what has ended.
        *mounted = None;
        let id = self.mounts.fetch_add(1, Ordering::Relaxed) + 1;
        let mount = make(Arc::clone(&self.fs)).map_err(refused)?;
        let mut lost = self.lost.lock();
        lost.retain(|stores| stores.lost.first().is_some());
        lost.push(MountStores { id, lost: mount.lost_stores(), is_told: false });
        drop(lost);
        *mounted = Some(Mounted { mount, id, dir });
        Ok(id)
    }

    /// Waits a short time for the end of a mount that is in no directory any more: umount(8) returns before it.
    fn wait_for_unmounting(&self) {
        let deadline = Instant::now() + UNMOUNTING_TIME_MAX;
        let is_unmounting = || {
            let mounted = self.mount.lock();
            mounted.as_ref().is_some_and(|mounted| mounted.mount.is_unmounting())
        };
        while is_unmounting() && Instant::now() < deadline {
            std::thread::sleep(UNMOUNTING_LOOK);
        }
    }

    /// The directory that it is mounted on.
    fn mounted_on(&self) -> Option<String> {
        let mounted = self.mount.lock();
        let mounted = mounted.as_ref().filter(|mounted| !mounted.mount.is_ended());
        mounted.map(|mounted| mounted.dir.clone())
    }
}

impl Handle for FsHandle {
    fn open(&self) -> Result<Arc<dyn BlockDevice>, Unavailable> {
        Err(Unavailable::new("file system", self.is_no_device().reason))
    }

    fn mount(&self, source: String, request: &MountRequest) -> Result<(), Refused> {
        let options = MountOptions {
            source,
            allow_other: request.allow_other,
            read_only: request.read_only,
            threads: request.threads,
            access_times: request.access_times,
            caching: KernelCaching::Full,
            privileges: request.privileges,
            exec: request.exec,
            dir_access_times: request.dir_access_times,
        };
        let dir = request.dir.display().to_string();
        self.mount_by(dir, |fs| Mount::new(fs, &request.dir, &options)).map(drop)
    }

    fn serve_mount(
        &self,
        request: &MountServed,
        source: String,
        descriptor: OwnedFd,
    ) -> Result<u64, Refused> {
        let atime = &request.atime;
        let access_times = meaning(&ATIME_WORDS, atime)
            .ok_or_else(|| Refused::new(format!("{atime:?} is no choice of access times")))?;
        let options = MountOptions {
            source,
            // Whoever mounted has told the kernel, this and which privileges there are.
            allow_other: true,
            read_only: request.read_only,
            threads: usize::from(request.threads.clamp(1, THREADS_MAX)),
            access_times,
            caching: KernelCaching::Full,
            privileges: Privileges::default(),
            exec: true,
            dir_access_times: !request.no_dir_atime,
        };
        self.mount_by(request.dir.clone(), |fs| Mount::over(fs, descriptor, &options))
    }

    fn has_mount(&self, id: u64) -> bool {
        let mounted = self.mount.lock();
        mounted.as_ref().is_some_and(|mounted| mounted.id == id && !mounted.mount.is_ended())
    }

    fn has_failed_mount(&self, id: u64) -> bool {
        let mounted = self.mount.lock();
        mounted.as_ref().is_some_and(|mounted| mounted.id == id && mounted.mount.has_failed())
    }

    fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    fn lost_stores(&self, id: Option<u64>) -> Option<Loss> {
        let lost = self.lost.lock();
        let mut wanted = lost.iter().filter(|stores| id.is_none_or(|id| id == stores.id));
        wanted.find_map(|stores| stores.lost.first())
    }

    fn untold_loss(&self) -> Option<Loss> {
        let mut lost = self.lost.lock();
        lost.iter_mut().filter(|stores| !stores.is_told).find_map(|stores| {
            let loss = stores.lost.first()?;
            stores.is_told = true;
            Some(loss)
        })
    }

    fn is_mounted(&self) -> bool {
        self.mounted_on().is_some()
    }

    fn complete(&self, status: &mut VolumeStatus) {
        status.mounted_on = self.mounted_on();
    }

    fn files(&self, request: &FileRequest, bytes: &[u8]) -> Result<(Response, Vec<u8>), Refused> {
        let caches = self.mount.lock().as_ref().map(|mounted| mounted.mount.caches());
        let done = Files { fs: &self.fs, caches }.carry_out(request, bytes)?;
        match request {
            FileRequest::Sync => match self.untold_loss() {
                Some(loss) => Err(lost_stores(self.fs.volume().name(), loss)),
                None => Ok(done),
            },
            _ => Ok(done),
        }
    }

    fn scrub(&self, from: u64) -> Result<(ScrubReport, Option<u64>), Refused> {
        Ok(self.fs.scrub(from))
    }

    fn resizes_beside_clients(&self, _: &Resize) -> bool {
        true
    }

    fn resize(&self, resize: &Resize, _: Option<Alone>) -> Result<(), Refused> {
        match resize {
            Resize::Size(size_bytes) => self.fs.resize(*size_bytes).map_err(refused),
            Resize::Memory(_) => {
                let what = "and caches alone have other sizes than one";
                Err(Refused::new(format!("{}, {what}", self.is_no_device().reason)))
            }
        }
    }

    /// A mount is not taken from those who use it, even by force.
    fn release(&self) -> Result<(), Refused> {
        if self.is_mounted() {
            let name = self.fs.volume().name();
            return Err(Refused::new(format!("volume {name} is mounted: unmount it first")));
        }
        Ok(())
    }

    fn close(&self) -> Option<Box<dyn Closing>> {
        let mounted = self.mount.lock().take()?;
        Some(Box::new(Unmounting {
            mount: Some(mounted.mount),
            volume: Arc::clone(self.fs.volume()),
            is_used: Arc::clone(&self.is_used),
        }))
    }
}

/// A mount that is being ended, until it has. Everything that was answered is in the pool already.
struct Unmounting {
    mount: Option<Mount>,
    volume: Arc<Volume<Mapped>>,
    is_used: Arc<AtomicBool>,
}

impl Closing for Unmounting {
    fn flush(&mut self) -> Result<(), String> {
        let Some(mount) = self.mount.take() else { return Ok(()) };
        if !mount.is_ended() {
            // It may take its time to end, and somebody may lose patience with this process.
            self.volume.flush().map_err(|error| error.to_string())?;
        }
        let unmounted = mount.unmount().map_err(|error| error.to_string())?;
        self.is_used.store(unmounted == Unmounted::Used, Ordering::Release);
        Ok(())
    }
}
