//! File systems of an open pool: mounting them, and requests about their files.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use everbyte_control::{Attached, FileRequest, MountServed, RequestError, Response};
use everbyte_fuse::{MountOptions, source_of};

use crate::fs_mounts::FsMounts;
use crate::open_pool::{OpenPool, shutting_down};
use crate::request_error::{lost_stores, refused};
use crate::volumes::OpenVolume;

/// Time between two looks at a mount by whoever waits for its end.
const LOOK: Duration = Duration::from_millis(20);

impl OpenPool {
    /// Mounts the file system `name` on `dir`.
    ///
    /// # Errors
    /// There is none of this name, it is mounted already, or cannot be.
    pub fn mount(
        &self,
        name: &str,
        dir: &Path,
        options: &MountOptions,
    ) -> Result<(), RequestError> {
        let volume = self.volumes.get(name)?;
        let _lease = volume.begin_op(name)?;
        volume.mounts()?.mount(dir, options)
    }

    /// Refuses mounts from now on if no file system is mounted, and returns true then. A mount that begins at the same time
    /// is counted or refused.
    #[must_use]
    pub fn refuse_mounts_if_unused(&self) -> bool {
        let mut refuses_mounts = self.refuses_mounts.write();
        let is_mounted = |volume: &Arc<OpenVolume>| volume.is_mounted();
        *refuses_mounts = !self.volumes.all_opened().iter().any(is_mounted);
        *refuses_mounts
    }

    /// Checks that everything was written which programs stored through mappings of the file system `name` while it was
    /// mounted. What they store until its mounts have ended counts.
    ///
    /// # Errors
    /// Something was not, as in a full volume; names the first such file.
    pub fn check_stores(&self, name: &str) -> Result<(), RequestError> {
        self.volumes.opened(name).map_or(Ok(()), |volume| check_stores(&volume, None))
    }

    /// Checks that a request to sync was told of each loss of what programs stored through mappings of a file system. The
    /// command that mounted it may have been killed before.
    ///
    /// # Errors
    /// No such request was told of one.
    pub fn check_told_losses(&self) -> Result<(), RequestError> {
        for volume in self.volumes.all_opened() {
            if let Some(loss) = volume.mounts.as_ref().and_then(FsMounts::untold_loss) {
                return Err(lost_stores(volume.name(), loss));
            }
        }
        Ok(())
    }

    /// Serves a mount that somebody else has made, whose descriptor came with the request.
    pub(crate) fn serve_mount(
        &self,
        request: &MountServed,
        attached: Attached,
    ) -> Result<Response, RequestError> {
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
        let source = source_of(self.path(), volume.name());
        let id = volume.mounts()?.serve_mount(request, source, descriptor)?;
        tracing::info!(volume = volume.name(), dir = request.dir, "mounted");
        Ok(Response::Mounted { id })
    }

    /// Waits until mount `id` of `volume` has ended or is to end. What was done through one that has
    /// ended is durable then; of one that is to end [`OpenPool::wait_for_close`] says it.
    pub(crate) fn wait_for_mount(&self, volume: &str, id: u64) -> Result<Response, RequestError> {
        let volume = self.volumes.opened(volume).ok_or_else(|| {
            let what = "so nothing says that what was done through its mount is durable";
            RequestError::new(format!("volume {volume} is not open any more, {what}"))
        })?;
        let waiter = self.close_status.register_waiter();
        let mounts = volume.mounts()?;
        while mounts.has_mount(id) && !self.is_closing.load(Ordering::Acquire) {
            std::thread::sleep(LOOK);
        }
        if self.is_closing.load(Ordering::Acquire) {
            waiter.register();
            return Ok(Response::MountEnded { is_to_end: true });
        }
        if !volume.volume.is_gone() && !self.pool.is_read_only() {
            volume.volume.flush().map_err(refused)?;
        }
        if mounts.has_failed_mount(id) {
            return Err(RequestError::new("the threads that served the mount have ended"));
        }
        check_stores(&volume, Some(id))?;
        tracing::info!(volume = volume.name(), "unmounted");
        Ok(Response::MountEnded { is_to_end: false })
    }

    /// Waits until the pool is closed, after the mount of `volume` was taken from its directory.
    pub(crate) fn wait_for_close(&self, volume: &str, id: u64) -> Result<Response, RequestError> {
        self.close_status.wait().map_err(RequestError::new)?;
        if let Some(volume) = self.volumes.opened(volume) {
            check_stores(&volume, Some(id))?;
        }
        let is_used = {
            let volume = self.volumes.opened(volume);
            volume.is_some_and(|volume| volume.mounts.as_ref().is_some_and(FsMounts::is_used))
        };
        if is_used {
            return Err(RequestError::new(format!(
                "programs have files of volume {volume} open: what they have mapped and changed may be \
                 lost"
            )));
        }
        Ok(Response::MountEnded { is_to_end: false })
    }

    /// Carries out a request about the files of the volume `name`, which counts as a client meanwhile.
    pub(crate) fn files(
        &self,
        name: &str,
        request: &FileRequest,
        attached: &Attached,
    ) -> Result<(Response, Vec<u8>), RequestError> {
        if request.is_change() {
            self.check_changing()?
        } else {
            self.check_open()?
        }
        let volume = self.volumes.get(name)?;
        let _lease = volume.begin_op(name)?;
        volume.mounts()?.files(request, &attached.bytes)
    }
}

/// Checks that mount `id` of a volume, or each, has lost nothing that programs stored through mappings.
fn check_stores(volume: &OpenVolume, id: Option<u64>) -> Result<(), RequestError> {
    let lost = volume.mounts.as_ref().and_then(|mounts| mounts.lost_stores(id));
    lost.map_or(Ok(()), |loss| Err(lost_stores(volume.name(), loss)))
}
