//! Errors of the engine as refusals of the control protocol: their texts and their causes.

use std::error::Error;

use everbyte::backing::BackingError;
use everbyte_cache::CacheError;
use everbyte_control::{Cause, Refused};
use everbyte_fs::FsError;
use everbyte_fuse::Loss;
use everbyte_pool::{Corrupt, PoolError};
use everbyte_swap_volume::SwapError;

use crate::handle::Unavailable;

/// `error` in words, with its cause if it is one that something can be done about.
pub(crate) fn refused(error: impl Error + 'static) -> Refused {
    Refused { reason: error.to_string(), cause: cause(&error) }
}

/// The refusal to say that all is durable of a file system with a mount that has lost stores.
pub(crate) fn lost_stores(volume: &str, loss: Loss) -> Refused {
    Refused::new(format!("volume {volume}: {loss}"))
}

/// Cause of an error of the engine, if something can be done about it.
pub(crate) fn cause(error: &(dyn Error + 'static)) -> Option<Cause> {
    if let Some(error) = error.downcast_ref::<PoolError>() {
        of_pool(error)
    } else if let Some(SwapError::Pool(error)) = error.downcast_ref() {
        of_pool(error)
    } else if let Some(FsError::Corrupt(_)) = error.downcast_ref() {
        Some(Cause::VolumeDamaged)
    } else if error.is::<Corrupt>() {
        Some(Cause::VolumeDamaged)
    } else if let Some(error) = error.downcast_ref::<CacheError>() {
        of_cache(error)
    } else if let Some(error) = error.downcast_ref::<BackingError>() {
        let is_untrusted =
            matches!(error, BackingError::Untrusted { .. } | BackingError::Rights { .. });
        (is_untrusted && !error.is_missing()).then_some(Cause::UntrustedPool)
    } else if let Some(error) = error.downcast_ref::<Unavailable>() {
        error.cause
    } else {
        None
    }
}

fn of_pool(error: &PoolError) -> Option<Cause> {
    match error {
        PoolError::NoSuchVolume { .. } => Some(Cause::NoSuchVolume),
        PoolError::Corrupt(_) | PoolError::Damaged { .. } => Some(Cause::VolumeDamaged),
        _ => None,
    }
}

/// `refused` with the name of the volume that it is about.
pub(crate) fn about(volume: &str, refused: Refused) -> Refused {
    let Refused { reason, cause } = refused;
    let mut words = reason.split(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)));
    let is_named = words.any(|word| word.trim_end_matches('.') == volume);
    let reason = if is_named { reason } else { format!("volume {volume}: {reason}") };
    Refused { reason, cause }
}

fn of_cache(error: &CacheError) -> Option<Cause> {
    match error {
        CacheError::OtherBacking { .. } => Some(Cause::OtherBacking),
        CacheError::OtherSize { recorded, found, .. } if found > recorded => {
            Some(Cause::BackingGrown)
        }
        CacheError::OtherSize { .. } => Some(Cause::BackingShrunk),
        CacheError::ReadOnly => Some(Cause::CacheReadOnly),
        _ => None,
    }
}
