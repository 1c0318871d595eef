//! Swap volumes: volatile memory in the pool, lent to programs in runs of 2 MiB. See [`SwapVolume`].

use std::sync::Arc;

use everbyte_swap_volume::{Lender, SwapVolume as EngineSwap};

pub use everbyte_swap_volume::{
    Lease, LenderStatus, RUN_BYTES, ScratchDevice, SwapError, SwapOptions,
};

use crate::error::Error;
use crate::shared::{Handle, Shared};

/// An open swap volume. Its contents are volatile: nothing of them is logged, flushed or kept for the next opening.
///
/// A handle is `Send`, `Sync` and cheap to clone, and keeps its pool open.
#[derive(Clone)]
pub struct SwapVolume(pub(crate) Arc<Handle<Lender>>);

impl SwapVolume {
    pub(crate) fn create(
        shared: &Arc<Shared>,
        name: &str,
        size_bytes: u64,
        options: SwapOptions,
    ) -> Result<Self, Error> {
        shared.check_writable()?;
        Self::new(shared, name, EngineSwap::create(&shared.engine, name, size_bytes, options))
    }

    pub(crate) fn open(shared: &Arc<Shared>, name: &str) -> Result<Self, Error> {
        shared.check_open()?;
        Self::new(shared, name, EngineSwap::open(&shared.engine, name))
    }

    fn new(
        shared: &Arc<Shared>,
        name: &str,
        volume: Result<EngineSwap<everbyte_media::Mapped>, SwapError>,
    ) -> Result<Self, Error> {
        let lender = volume.and_then(Lender::new).map_err(Error::swap(name))?;
        Ok(Self(Handle::new(lender, shared)))
    }

    /// Its name in the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        self.volume().name()
    }

    /// Returns true if the pool is a private copy: nothing can be lent then.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.0.shared.read_only
    }

    pub(crate) fn volume(&self) -> &Arc<everbyte_pool::Volume<everbyte_media::Mapped>> {
        self.0.volume.volume().volume()
    }

    /// Lends up to `bytes` bytes, in runs of 2 MiB, to the process `pid`. A lock on the lease's file keeps the runs until
    /// its last descriptor and mapping are gone.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Swap`] if nothing is free.
    pub fn lend(&self, bytes: u64, pid: u32) -> Result<Lease, Error> {
        self.0.shared.check_writable()?;
        self.0.volume.lend(bytes.div_ceil(RUN_BYTES), pid).map_err(Error::swap(self.name()))
    }

    /// All of the volume as a block device without durability.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Swap`] if runs are lent.
    pub fn scratch(&self) -> Result<ScratchDevice, Error> {
        self.0.shared.check_writable()?;
        self.0.volume.scratch().map_err(Error::swap(self.name()))
    }

    /// The runs lent now, and their processes.
    ///
    /// # Errors
    /// [`Error::Swap`]: the system's.
    pub fn status(&self) -> Result<LenderStatus, Error> {
        self.0.volume.status().map_err(Error::swap(self.name()))
    }

    /// Returns true if runs are lent, or if the kernel does not say.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        self.status().map_or(true, |status| status.lent > 0)
    }

    /// Makes the volume `size_bytes` large, a positive multiple of 2 MiB. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Swap`] if the pool has no room, or too few runs are free.
    pub fn resize(&self, size_bytes: u64) -> Result<(), Error> {
        self.0.shared.check_writable()?;
        self.0.volume.resize(size_bytes).map_err(Error::swap(self.name()))
    }

    /// Stops lending, as a condition for the deletion of the volume.
    pub(crate) fn end_lending(&self) -> Result<(), Error> {
        self.0.volume.close().map_err(Error::swap(self.name()))
    }

    /// Lends again, because the deletion was refused.
    pub(crate) fn resume_lending(&self) {
        self.0.volume.reopen();
    }
}
