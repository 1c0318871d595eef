//! The engine of an open pool: its types, its kinds of volumes, its writers and the resulting
//! rights.

use std::sync::Arc;
use std::time::Duration;

use everbyte_media::{Mapped, Medium, Writers};
use everbyte_path::Rights;
use everbyte_pool::Kinds;
use everbyte_pool::format::VolumeKind;

use crate::backing::{self, rights_for};
use crate::error::Error;

/// The engine's pool.
pub type Engine = everbyte_pool::Pool<Mapped>;

/// Use of backing devices by the caches of a pool.
pub(crate) struct BackingUse {
    /// Options of opening, except for the rights: these depend on the moment.
    pub(crate) options: backing::Options,
    /// Longest time a backing device may be silent while its cache is made, opened or changed.
    pub(crate) stall_time_max: Duration,
    /// Longest time a backing device may be silent while its cache is closed.
    pub(crate) close_time_max: Duration,
    /// True if the process opens backing devices with its own rights, even if other users can
    /// change the pool.
    pub(crate) trust_pool: bool,
}

impl BackingUse {
    /// The rights to open a file or device named by the pool now.
    pub(crate) fn rights(&self, engine: &Engine) -> Rights {
        if self.trust_pool { Rights::Own } else { rights_for(&writers(engine)) }
    }
}

/// The users with write access to the bytes of the pool now.
pub(crate) fn writers(engine: &Engine) -> Writers {
    match engine.medium().stack() {
        Ok(Some(stack)) => stack.writers(),
        // Memory without a name.
        Ok(None) => Writers::default(),
        Err(error) => Writers::unknown(format!("the pool cannot be inspected: {error}")),
    }
}

/// The engine's block volume. A cache may lie in it.
pub(crate) type Device = everbyte_block::BlockVolume<Mapped>;

/// Opens a volume of the kind block or cache.
pub(crate) fn open_volume(
    engine: &Arc<Engine>,
    name: &str,
    kind: VolumeKind,
) -> Result<Device, Error> {
    Device::open_as(engine, name, kind).map_err(Error::volume(name))
}

/// The kinds of volumes known to this library, in the form of the engine's functions.
#[must_use]
pub fn kinds<M: Medium>() -> Kinds<M> {
    everbyte_block::kinds().and(everbyte_fs::kinds()).and(everbyte_swap_volume::kinds())
}
