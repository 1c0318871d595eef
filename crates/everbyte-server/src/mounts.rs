//! Mounting the file systems of an open pool.

use everbyte_control::Refused;

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
}
