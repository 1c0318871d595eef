//! File systems: mounted on directories, and no devices for clients.

use std::sync::Arc;

use everbyte_control::{FileRequest, NewVolume, Refused, Response};
use everbyte_device::BlockDevice;
use everbyte_fs::{FileSystem, FsOptions, IndexKind};
use everbyte_fuse::{Mount, MountOptions};
use everbyte_media::Mapped;
use everbyte_pool::ScrubReport;
use parking_lot::Mutex;

use crate::context::{Context, Unshared};
use crate::files::Files;
use crate::handle::{Closing, Handle, MountRequest, Opened, Resize, Unavailable};
use crate::quiesce::Alone;
use crate::refusal::refused;

/// A file system's handle.
pub(crate) struct FsHandle {
    fs: Arc<FileSystem<Mapped>>,
    mount: Mutex<Option<Mount>>,
}

impl FsHandle {
    pub(crate) fn create(
        context: &Context,
        new: &NewVolume,
        _: Unshared<'_>,
    ) -> Result<Opened, Refused> {
        if new.cache.is_some() {
            return Err(Refused::new("only caches have a backing device".to_owned()));
        }
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
            log_bytes: new.log_bytes,
            lanes: new.lanes,
            checkpoint_lines: new.checkpoint_lines.unwrap_or(0),
        };
        let made = FileSystem::create(&context.pool, &new.name, new.size_bytes, &options);
        Ok(Self::opened(made.map_err(refused)?))
    }

    pub(crate) fn open_volume(context: &Context, name: &str) -> Result<Opened, Refused> {
        Ok(Self::opened(FileSystem::open(&context.pool, name).map_err(refused)?))
    }

    fn opened(fs: FileSystem<Mapped>) -> Opened {
        let volume = Arc::clone(fs.volume());
        Opened { volume, handle: Box::new(Self { fs: Arc::new(fs), mount: Mutex::default() }) }
    }

    fn is_no_device(&self) -> Refused {
        Refused::new(format!("volume {} is a file system", self.fs.volume().name()))
    }
}

impl Handle for FsHandle {
    fn open(&self) -> Result<Arc<dyn BlockDevice>, Unavailable> {
        Err(Unavailable::new("file system", self.is_no_device().reason))
    }

    fn mount(&self, source: String, request: &MountRequest) -> Result<(), Refused> {
        let mount = &mut *self.mount.lock();
        if mount.as_ref().is_some_and(|mount| !mount.is_ended()) {
            let name = self.fs.volume().name();
            return Err(Refused::new(format!("volume {name} is mounted already")));
        }
        let options = MountOptions {
            source,
            allow_other: request.allow_other,
            read_only: request.read_only,
            threads: request.threads,
            access_times: request.access_times,
        };
        *mount = Some(Mount::new(Arc::clone(&self.fs), &request.dir, &options).map_err(refused)?);
        Ok(())
    }

    fn is_mounted(&self) -> bool {
        self.mount.lock().as_ref().is_some_and(|mount| !mount.is_ended())
    }

    fn files(&self, request: &FileRequest, bytes: &[u8]) -> Result<(Response, Vec<u8>), Refused> {
        let caches = self.mount.lock().as_ref().map(Mount::caches);
        Files { fs: &self.fs, caches }.carry_out(request, bytes)
    }

    fn scrub(&self, from: u64) -> Result<(ScrubReport, Option<u64>), Refused> {
        Ok(self.fs.scrub(from))
    }

    fn resizes_beside_clients(&self, _: &Resize) -> bool {
        true
    }

    fn resize(&self, _: &Resize, _: Option<Alone>) -> Result<(), Refused> {
        Err(Refused::new(format!("{}: those keep their size", self.is_no_device().reason)))
    }

    fn check_deletable(&self) -> Result<(), Refused> {
        if self.is_mounted() {
            let name = self.fs.volume().name();
            return Err(Refused::new(format!("volume {name} is mounted")));
        }
        Ok(())
    }

    fn close(&self) -> Option<Box<dyn Closing>> {
        let mount = self.mount.lock().take()?;
        Some(Box::new(Unmounting(mount)))
    }
}

/// A mount that is being ended. Everything that was answered is in the pool already.
struct Unmounting(Mount);

impl Closing for Unmounting {
    fn finish(self: Box<Self>) -> Result<(), String> {
        if self.0.is_ended() {
            return Ok(());
        }
        self.0.unmount().map_err(|error| error.to_string())
    }
}
