//! The pool, as making and opening a volume of any kind sees it, and what a request for a new one may not ask
//! of most kinds.

use std::sync::Arc;

use everbyte::backing::{Backing, rights_for};
use everbyte_control::{NewVolume, Refused};
use everbyte_media::{Mapped, Writers};
use everbyte_path::Rights;
use everbyte_pool::Pool;

/// The pool, and the options of backing devices.
pub(crate) struct Context {
    pub(crate) pool: Arc<Pool<Mapped>>,
    /// True if the pool is a private copy, whose changes are dropped.
    pub(crate) unchanging: bool,
    /// Options of backing devices, but for the rights, which are those of the moment.
    pub(crate) backing: everbyte::backing::Options,
    /// True if what the pool names is opened with the rights of the process, whoever can change the pool.
    pub(crate) trust_pool: bool,
}

/// The users who can change the bytes of a pool now.
pub(crate) fn writers_now(pool: &Pool<Mapped>) -> Writers {
    match pool.medium().stack() {
        Ok(Some(stack)) => stack.writers(),
        // Memory without a name.
        Ok(None) => Writers::default(),
        Err(error) => Writers::unknown(format!("the pool cannot be inspected: {error}")),
    }
}

/// The rights with which what a pool names is opened now.
pub(crate) fn rights_now(pool: &Pool<Mapped>, trust_pool: bool) -> Rights {
    if trust_pool { Rights::Own } else { rights_for(&writers_now(pool)) }
}

/// Conditions for a backing device that a request names.
pub(crate) struct NewBacking<'c> {
    /// The rights with which it is opened: those that both the pool and whoever asks permit.
    pub(crate) rights: Rights,
    /// Refuses a backing device that another volume of the pool has already. Asked with what is known
    /// of the device before it is opened, and again with what is known then.
    pub(crate) unshared: &'c dyn Fn(Option<&Backing>) -> Result<(), Refused>,
}

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
