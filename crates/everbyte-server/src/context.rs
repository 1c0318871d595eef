//! What making and opening a volume of any kind needs to know of its pool.

use std::sync::Arc;

use everbyte_cache::Identity;
use everbyte_control::Refused;
use everbyte_media::Mapped;
use everbyte_pool::Pool;

/// The pool, and how backing devices are used.
pub(crate) struct Context {
    pub(crate) pool: Arc<Pool<Mapped>>,
    /// Whether the pool is a private copy whose changes nobody would ever see again.
    pub(crate) unchanging: bool,
    pub(crate) backing: everbyte_backing::Options,
}

/// Refuses a backing device that another volume of the pool has already. Asked with what is known
/// of the device before it is opened, and again with what is known then.
pub(crate) type Unshared<'c> = &'c dyn Fn(Option<&Identity>) -> Result<(), Refused>;
