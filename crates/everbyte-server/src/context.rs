//! The pool, as making and opening a volume of any kind sees it, and what a request for a new one may not ask
//! of most kinds.

use std::sync::Arc;

use everbyte_cache::Identity;
use everbyte_control::{NewVolume, Refused};
use everbyte_media::Mapped;
use everbyte_pool::Pool;

/// The pool, and the options of backing devices.
pub(crate) struct Context {
    pub(crate) pool: Arc<Pool<Mapped>>,
    /// True if the pool is a private copy, whose changes are dropped.
    pub(crate) unchanging: bool,
    pub(crate) backing: everbyte_backing::Options,
}

/// Refuses a backing device that another volume of the pool has already. Asked with what is known
/// of the device before it is opened, and again with what is known then.
pub(crate) type Unshared<'c> = &'c dyn Fn(Option<&Identity>) -> Result<(), Refused>;

/// Refuses a backing device in a request for a volume that is no cache.
///
/// # Errors
/// There is one.
pub(crate) fn check_no_backing(new: &NewVolume) -> Result<(), Refused> {
    match new.cache {
        Some(_) => Err(Refused::new("only caches have a backing device".to_owned())),
        None => Ok(()),
    }
}

/// Refuses settings of a file system in a request for a volume that is none.
///
/// # Errors
/// There are some.
pub(crate) fn check_no_index(new: &NewVolume) -> Result<(), Refused> {
    match new.fs {
        Some(_) => Err(Refused::new("only file systems have an index".to_owned())),
        None => Ok(()),
    }
}
