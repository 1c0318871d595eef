//! The pool, as making and opening a volume of any kind sees it.

use std::sync::Arc;

use everbyte_cache::Identity;
use everbyte_control::Refused;
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
