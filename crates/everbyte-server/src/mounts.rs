//! File systems of an open pool: mounting them, and requests about their files.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use everbyte_control::{
    Answer, Attached, AttachedAnswer, FileRequest, MountServed, RequestError, Response,
};
use everbyte_fuse::{MountOptions, source_of};

use crate::fs_mounts::FsMounts;
use crate::open_pool::{OpenPool, shutting_down};
use crate::request_error::refused;

/// Time between two looks at a mount by a waiter for its end.
const LOOK: Duration = Duration::from_millis(20);

impl OpenPool {
    /// Mounts the file system `name` on `dir`.
    ///
    /// # Errors
    /// The file system does not exist, is mounted already, or cannot be mounted.
    pub fn mount(
        &self,
        name: &str,
        dir: &Path,
        options: &MountOptions,
    ) -> Result<(), RequestError> {
        let volume = self.volumes.get(name)?;
        // No deletion or rename begins during the mount.
        let _lease = volume.begin_op(name)?;
        volume.mounts()?.mount(dir, options)
    }

    /// If no file system is mounted, rejects all later mounts and returns true. A mount beginning
    /// concurrently is either counted or rejected.
    #[must_use]
    pub fn refuse_mounts_if_unused(&self) -> bool {
        // Waits for mounts that are beginning, and counts them below.
        let mut refuses_mounts = self.refuses_mounts.write();
        *refuses_mounts = !self.volumes.all_opened().iter().any(|volume| volume.is_mounted());
        *refuses_mounts
    }

    /// Checks that no store of a program through a mapping of the file system `name` was lost while
    /// it was mounted. Stores count until the file system's mounts have ended.
    ///
    /// # Errors
    /// Something was not, as in a full volume; names the first such file.
    pub fn check_stores(&self, name: &str) -> Result<(), RequestError> {
        let volume = self.volumes.opened(name);
        let mounts = volume.as_ref().and_then(|volume| volume.mounts.as_ref());
        mounts.map_or(Ok(()), |mounts| mounts.check_stores(None))
    }

    /// Checks that a request to sync has reported each loss of stores through mappings of a file
    /// system. The mounting command may have been killed before the report.
    ///
    /// # Errors
    /// No sync request has reported a loss.
    pub fn check_told_losses(&self) -> Result<(), RequestError> {
        let volumes = self.volumes.all_opened();
        let mut mounts = volumes.iter().filter_map(|volume| volume.mounts.as_ref());
        mounts.try_for_each(FsMounts::check_told)
    }

    /// Serves a mount made by another process. The request carries its descriptor.
    pub(crate) fn serve_mount(&self, request: &MountServed, attached: Attached) -> Answer {
        let refuses_mounts = self.refuses_mounts.read();
        if *refuses_mounts {
            return Err(shutting_down());
        }
        let check = || if request.read_only { self.check_open() } else { self.check_changing() };
        check()?;
        let Some(descriptor) = attached.descriptor else {
            return Err(RequestError::new("no descriptor of a mount came with the request"));
        };
        let volume = self.volumes.get(&request.volume)?;
        let _lease = volume.begin_op(&request.volume)?;
        // Opening it may have taken long.
        check()?;
        let source = source_of(self.pool.path(), volume.name());
        let id = volume.mounts()?.serve_mount(request, source, descriptor)?;
        tracing::info!(volume = volume.name(), dir = request.dir, "mounted");
        Ok(Response::Mounted { id })
    }

    /// Waits until mount `id` of `volume` has ended or is to end. If it has ended, everything done
    /// through it is durable. If it is to end, [`OpenPool::wait_for_close`] reports the outcome.
    pub(crate) fn wait_for_mount(&self, volume: &str, id: u64) -> Answer {
        let volume = self.volumes.opened(volume).ok_or_else(|| {
            let what = "so nothing says that what was done through its mount is durable";
            format!("volume {volume} is not open any more, {what}")
        })?;
        // Before the first look at the mount: the pool may end in between.
        let waiter = self.close_status.register_waiter();
        let mounts = volume.mounts()?;
        while mounts.has_mount(id) && !self.is_closing.load(Ordering::Acquire) {
            std::thread::sleep(LOOK);
        }
        if self.is_closing.load(Ordering::Acquire) {
            // The client removes its mount, and asks for the outcome then.
            waiter.register();
            return Ok(Response::MountEnded { is_to_end: true });
        }
        if !volume.volume.is_gone() && !self.pool.is_read_only() {
            volume.volume.flush().map_err(refused)?;
        }
        // After the flush: answered writes become durable in any case.
        if mounts.has_failed_mount(id) {
            return Err(RequestError::new("the threads that served the mount have ended"));
        }
        mounts.check_stores(Some(id))?;
        tracing::info!(volume = volume.name(), "unmounted");
        Ok(Response::MountEnded { is_to_end: false })
    }

    /// Waits until the pool is closed, after the mount of `volume` was taken from its directory.
    pub(crate) fn wait_for_close(&self, volume: &str, id: u64) -> Answer {
        // The close ends all mounts: their losses are known only after it.
        self.close_status.wait()?;
        if let Some(volume) = self.volumes.opened(volume)
            && let Some(mounts) = &volume.mounts
        {
            mounts.check_stores(Some(id))?;
            mounts.check_unused()?;
        }
        Ok(Response::MountEnded { is_to_end: false })
    }

    /// Carries out a request about the files of the volume `name`. It counts as a client during the
    /// request.
    pub(crate) fn files(&self, name: &str, request: &FileRequest, bytes: &[u8]) -> AttachedAnswer {
        if request.is_change() { self.check_changing() } else { self.check_open() }?;
        let volume = self.volumes.get(name)?;
        let _lease = volume.begin_op(name)?;
        let mounts = volume.mounts()?;
        volume.meters.count_files(request, bytes, || mounts.files(request, bytes))
    }
}
