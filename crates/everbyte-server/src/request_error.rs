//! Errors of the library as refusals of the control protocol: their texts and their causes.

use everbyte::Error;
use everbyte::cache::NotOpen;
use everbyte::error::{BackingError, CacheError, PoolError};
use everbyte_control::{Cause, RequestError};
use everbyte_fuse::Loss;

/// The reason why clients cannot use a volume.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct Unavailable {
    /// State in lists, one or two words.
    pub(crate) state: &'static str,
    /// The reason in full.
    pub(crate) reason: String,
    /// The cause, if something can be done about it.
    pub(crate) cause: Option<Cause>,
    /// The reason for clients of other machines, as far as it is more than the state.
    pub(crate) detail: Option<&'static str>,
}

impl Unavailable {
    pub(crate) fn new(state: &'static str, reason: String) -> Self {
        Self { state, reason, cause: None, detail: None }
    }

    /// The reason for clients, possibly on other machines: it has no text of a device and names
    /// nothing of this machine.
    pub(crate) fn public_reason(&self) -> String {
        match self.detail {
            Some(detail) => format!("{}, {detail}", self.state),
            None => self.state.to_owned(),
        }
    }
}

impl From<NotOpen> for Unavailable {
    fn from(why: NotOpen) -> Self {
        let is_wrong_type =
            matches!(&*why.error, Error::Backing { source, .. } if source.is_wrong_type());
        let detail = is_wrong_type.then_some("neither a file nor a block device");
        let (reason, cause) = (reason(&why.error), cause(&why.error));
        Self { state: why.state.word(), reason, cause, detail }
    }
}

impl From<Unavailable> for RequestError {
    fn from(why: Unavailable) -> Self {
        Self { reason: why.reason, cause: why.cause }
    }
}

/// `error` in words, with its cause if something can be done about it.
pub(crate) fn refused(error: Error) -> RequestError {
    RequestError { reason: reason(&error), cause: cause(&error) }
}

/// The error of a durability request for a file system with a mount with lost stores.
pub(crate) fn lost_stores(volume: &str, loss: Loss) -> RequestError {
    RequestError::new(format!("volume {volume}: {loss}"))
}

/// The words of the engine for an error of one volume: [`about`] adds the name if they lack it.
fn reason(error: &Error) -> String {
    match error {
        Error::Volume { source, .. } | Error::Pool { source, .. } => source.to_string(),
        Error::Cache { source, .. } | Error::OtherBacking { source, .. } => source.to_string(),
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
        Error::Cache { source, .. } | Error::OtherBacking { source, .. } => of_cache(source),
        Error::Backing { source, .. } => {
            let is_untrusted =
                matches!(source, BackingError::Untrusted { .. } | BackingError::Rights { .. });
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
    let mut words = reason.split(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)));
    let is_named = words.any(|word| word.trim_end_matches('.') == volume);
    let reason = if is_named { reason } else { format!("volume {volume}: {reason}") };
    RequestError { reason, cause }
}
