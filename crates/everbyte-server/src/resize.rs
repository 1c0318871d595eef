//! Other sizes of volumes, and the permitted clients during a change.

use std::sync::Arc;

use everbyte::cache::{ChangeOptions, NewSizes};
use everbyte::{Error, Volume};

use crate::quiesce::ExclusiveGuard;

/// Another size for a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resize {
    /// Number of bytes for its users.
    Size(u64),
    /// Other sizes of a cache.
    Memory(NewSizes),
}

impl Resize {
    /// Returns true if `volume` may have clients in the meantime.
    pub(crate) fn is_beside_clients(&self, volume: &Volume) -> bool {
        match volume {
            Volume::Block(_) | Volume::Fs(_) => true,
            // Its size for users is rejected anyway.
            Volume::Cache(_) => matches!(self, Self::Size(_)),
            Volume::Swap(_) => false,
        }
    }

    pub(crate) fn apply(
        &self,
        volume: &Volume,
        guard: Option<ExclusiveGuard>,
    ) -> Result<(), Error> {
        match (self, volume) {
            (Self::Size(bytes), volume) => volume.resize(*bytes),
            (Self::Memory(sizes), Volume::Cache(cache)) => {
                cache.resize_with(*sizes, &holding(&Arc::new(guard)))
            }
            (Self::Memory(_), other) => Err(Error::NotACache { volume: other.name().to_owned() }),
        }
    }
}

/// Options of a change to keep `guard` until the change has ended.
pub(crate) fn holding<T: Send + Sync + 'static>(guard: &Arc<T>) -> ChangeOptions {
    ChangeOptions::default().hold(Arc::<T>::clone(guard))
}
