//! Errors of the library as refusals of the control protocol: their texts and their causes.

use everbyte::Error;
use everbyte::cache::NotOpen;
use everbyte::error::{BackingError, CacheError, PoolError};
use everbyte_control::{Cause, RequestError};

/// The reason why clients cannot use a volume.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(crate) struct Unavailable {
    /// The reason for clients, possibly on other machines: it has no text of a device and names
    /// nothing of this machine.
    pub(crate) public: String,
    /// The reason in full.
    pub(crate) error: RequestError,
}

impl Unavailable {
    pub(crate) fn new(public: &str, error: RequestError) -> Self {
        Self { public: public.to_owned(), error }
    }
}

impl From<NotOpen> for Unavailable {
    fn from(why: NotOpen) -> Self {
        let mut public = why.state.to_string();
        if matches!(&*why.error, Error::Backing { source, .. } if source.is_wrong_type()) {
            public.push_str(", neither a file nor a block device");
        }
        Self { public, error: refused(Error::NotOpen(why)) }
    }
}

/// `error` in words, with its cause if something can be done about it.
pub(crate) fn refused(error: Error) -> RequestError {
    RequestError { reason: reason(&error), cause: cause(&error) }
}

/// The words of the engine for an error of one volume: [`about`] adds the name if they lack it.
fn reason(error: &Error) -> String {
    match error {
        Error::Volume { source, .. } | Error::Pool { source, .. } => source.to_string(),
        Error::Cache { source, .. } => source.to_string(),
        Error::Swap { source, .. } => source.to_string(),
        Error::Backing { source, .. } => source.to_string(),
        Error::NotOpen(why) => reason(&why.error),
        other => other.to_string(),
    }
}

fn cause(error: &Error) -> Option<Cause> {
    match error {
        Error::NoSuchVolume { .. } => Some(Cause::NoSuchVolume),
        Error::Volume { source, .. } | Error::Pool { source, .. } => match source {
            PoolError::Corrupt(_) | PoolError::Damaged { .. } => Some(Cause::VolumeDamaged),
            _ => None,
        },
        Error::Cache { source, .. } => of_cache(source),
        Error::Backing { source, .. } => {
            let is_untrusted =
                matches!(source, BackingError::Untrusted { .. } | BackingError::Rights { .. });
            // More rights do not help against a missing device.
            (is_untrusted && !source.is_missing()).then_some(Cause::UntrustedPool)
        }
        Error::CacheSize { .. } => Some(Cause::CacheSize),
        Error::NoRoom { .. } => Some(Cause::PoolFull),
        Error::Dirty { .. } | Error::NotFlushed { .. } => Some(Cause::CacheDirty),
        Error::DirtyUnknown { .. } => Some(Cause::CacheUnread),
        Error::ReadOnly { .. } => Some(Cause::ServedReadOnly),
        Error::NotOpen(why) => cause(&why.error),
        _ => None,
    }
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

/// Adds the name of its volume to `refused`.
pub(crate) fn about(volume: &str, refused: RequestError) -> RequestError {
    let RequestError { reason, cause } = refused;
    // Some errors of the library name the volume already.
    let mut words = reason.split(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)));
    let is_named = words.any(|word| word.trim_end_matches('.') == volume);
    let reason = if is_named { reason } else { format!("volume {volume}: {reason}") };
    RequestError { reason, cause }
}
