//! File systems of an open pool: mounting them, and requests about their files.

use everbyte_control::{Attached, FileRequest, Refused, Response};

use crate::handle::MountRequest;
use crate::open_pool::OpenPool;

impl OpenPool {
    /// Mounts the file system `name`.
    ///
    /// # Errors
    /// There is none of this name, it is mounted already, or cannot be.
    pub fn mount(&self, name: &str, request: &MountRequest) -> Result<(), Refused> {
        let volume = self.volumes.get(name)?;
        let source = self.path.join(name).display().to_string();
        volume.handle.mount(source, request)
    }

    /// Returns true as long as the file system `name` is mounted.
    #[must_use]
    pub fn is_mounted(&self, name: &str) -> bool {
        self.volumes.opened(name).is_some_and(|volume| volume.handle.is_mounted())
    }

    /// Carries out a request about the files of `volume`, which counts as a client meanwhile.
    pub(crate) fn files(
        &self,
        volume: &str,
        request: &FileRequest,
        attached: &Attached,
    ) -> Result<(Response, Vec<u8>), Refused> {
        if request.is_change() {
            self.check_changing()?
        } else {
            self.check_open()?
        }
        let volume = self.volumes.get(volume)?;
        let lease = volume.quiesce.begin_op();
        let _lease = lease.map_err(|occupied| volume.refuse(occupied, None))?;
        volume.handle.files(request, &attached.bytes)
    }
}
