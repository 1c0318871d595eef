//! Backing devices of caches: files, block devices, and exports of NBD servers.
//!
//! Owns how the words of the command line become a device, what tells one backing device from
//! another as the cache records it, and whether two are the same.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everbyte_cache::Identity;
use everbyte_device::{
    BackingIdentity, BlockDevice, FileDevice, FileDeviceError, FileOptions, stable_path,
};
use everbyte_nbd::{Address, Cancel, ClientError, ClientOptions, Reconnect, RemoteDevice, is_uri};

/// How long an NBD server may take to answer a request before its connection is given up.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

/// How backing devices are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How long requests wait for an NBD server that is lost.
    pub reconnect_timeout: Duration,
    /// Whether files and block devices are used past the system's page cache.
    pub direct: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { reconnect_timeout: Reconnect::default().timeout, direct: false }
    }
}

/// Why a backing device cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackingError {
    /// There is no such file.
    #[error("there is no backing device {text}: {source}")]
    NotFound {
        /// What was asked for.
        text: String,
        /// The system's words.
        source: std::io::Error,
    },
    /// Its path cannot be recorded.
    #[error("the path of {text} is not UTF-8")]
    Name {
        /// What was asked for.
        text: String,
    },
    /// A file or block device cannot be used.
    #[error("cannot use the backing device: {0}")]
    File(#[from] FileDeviceError),
    /// An export cannot be used.
    #[error("cannot use the backing device {uri}: {source}")]
    Remote {
        /// Its URI.
        uri: String,
        /// The client's words.
        source: Box<ClientError>,
    },
}

impl BackingError {
    /// Whether it is not there, rather than not usable.
    pub(crate) fn is_missing(&self) -> bool {
        match self {
            Self::NotFound { .. } => true,
            Self::File(FileDeviceError::Io { error, .. }) => error.kind() == ErrorKind::NotFound,
            Self::Remote { source, .. } => matches!(**source, ClientError::Connect { .. }),
            _ => false,
        }
    }
}

/// A backing device that is open.
pub(crate) struct Backing {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) identity: Identity,
}

/// `text` as every process understands it: a URI as it is, a path made absolute.
///
/// # Errors
/// There is no such file, or its path is not UTF-8.
pub fn resolve(text: &str) -> Result<String, BackingError> {
    if is_uri(text) {
        return Ok(text.to_owned());
    }
    let missing = |source| BackingError::NotFound { text: text.to_owned(), source };
    let path = stable_path(Path::new(text)).map_err(missing)?;
    path.into_os_string().into_string().map_err(|_| BackingError::Name { text: text.to_owned() })
}

/// Opens what `text` names: a file, a block device, or an NBD URI. May wait for a long time, unless
/// that is an export and `cancel` is called; what waits for its answers later ends with that as well.
///
/// # Errors
/// It cannot be opened, or is in use.
pub(crate) fn open(
    text: &str,
    options: &Options,
    cancel: Option<Cancel>,
) -> Result<Backing, BackingError> {
    if is_uri(text) {
        let reconnect = Reconnect { timeout: options.reconnect_timeout, ..Reconnect::default() };
        let limits = ClientOptions {
            request_time_max: Some(REQUEST_TIME_MAX),
            cancel,
            ..ClientOptions::default()
        };
        let device = RemoteDevice::open_with(text, reconnect, limits);
        let device = device.map_err(|source| BackingError::Remote {
            uri: text.to_owned(),
            source: Box::new(source),
        })?;
        let (kind, name) = ("nbd".to_owned(), text.to_owned());
        let identity = Identity { kind, name, serial: String::new(), backing: None };
        return Ok(Backing { device: Arc::new(device), identity });
    }
    let file = FileOptions { direct: options.direct };
    let device = FileDevice::open_with(Path::new(text), file)?;
    if let Some(reason) = device.why_buffered() {
        tracing::warn!(
            "the file system of {text} does not let requests past its page cache ({reason}): they go \
             through it; put the backing device elsewhere, or serve without --direct-backing"
        );
    }
    let identity = Identity {
        kind: if device.is_block() { "block" } else { "file" }.to_owned(),
        name: device.path().display().to_string(),
        serial: device.serial().to_owned(),
        backing: Some(device.identity().clone()),
    };
    Ok(Backing { device: Arc::new(device), identity })
}

/// What can be known of what `text` names without using it.
pub(crate) fn look_at(text: &str) -> Identity {
    let name = text.to_owned();
    if is_uri(text) {
        return Identity { kind: "nbd".to_owned(), name, serial: String::new(), backing: None };
    }
    let file = File::open(text).ok();
    let is_block = |file: &File| file.metadata().is_ok_and(|m| m.file_type().is_block_device());
    Identity {
        kind: if file.as_ref().is_some_and(is_block) { "block" } else { "file" }.to_owned(),
        name: stable_path(Path::new(text)).map_or(name, |path| path.display().to_string()),
        serial: String::new(),
        backing: file.and_then(|file| BackingIdentity::of(&file).ok()),
    }
}

/// Whether a write to one backing device may change bytes of the other.
pub(crate) fn share_bytes(one: &Identity, other: &Identity) -> bool {
    let local = |identity: &Identity| local_export(&identity.name);
    one.shares_bytes_with(other) || local(one).is_some_and(|one| Some(one) == local(other))
}

/// An export of a server on a Unix socket: the numbers of the socket, and the export's name. Hosts
/// are not looked up: that can take a while, and they may have many names.
fn local_export(text: &str) -> Option<(u64, u64, String)> {
    if !text.starts_with("nbd+unix:") {
        return None;
    }
    let Ok((Address::Unix(socket), export)) = Address::from_uri(text) else { return None };
    let found = std::fs::metadata(socket).ok()?;
    Some((found.dev(), found.ino(), export))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_is_one_by_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, again, other] =
            ["file", "link", "again", "other"].map(|name| folder.path().join(name));
        std::fs::write(&file, "a").unwrap();
        std::fs::write(&other, "a").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        std::fs::hard_link(&file, &again).unwrap();
        let look = |path: &Path| look_at(path.to_str().unwrap());
        let none = folder.path().join("none");
        for (path, shares) in
            [(&file, true), (&link, true), (&again, true), (&other, false), (&none, false)]
        {
            assert_eq!(share_bytes(&look(&file), &look(path)), shares, "{path:?}");
        }
        let uri = |socket: &Path, export: &str| {
            look_at(&format!("nbd+unix:///{export}?socket={}", socket.display()))
        };
        assert!(share_bytes(&uri(&file, "x"), &uri(&link, "x")));
        assert!(!share_bytes(&uri(&file, "x"), &uri(&file, "y")));
        assert!(!share_bytes(&uri(&file, "x"), &uri(&other, "x")));
        assert!(!share_bytes(&uri(&file, "x"), &look(&file)));
    }

    #[test]
    fn a_file_that_is_not_there_is_missing() {
        let error = resolve("/none/such").unwrap_err();
        assert!(error.is_missing() && error.to_string().contains("/none/such"), "{error}");
        let error = open("/none/such", &Options::default(), None).err().unwrap();
        assert!(error.is_missing(), "{error}");
        let uri = "nbd+unix:///x?socket=/none/such";
        let error = open(uri, &Options::default(), None).err().unwrap();
        assert!(error.is_missing() && resolve(uri).unwrap() == uri, "{error}");
    }
}
