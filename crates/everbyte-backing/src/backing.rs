//! Backing devices of caches: files, block devices, and exports of NBD servers.
//!
//! Owns how a text becomes a device, what tells one backing device from another as the cache records
//! it, and whether two are the same.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everbyte_cache::Identity;
use everbyte_device::{BackingIdentity, BlockDevice, FileDevice, FileOptions, stable_path};

use crate::error::BackingError;
use crate::export::{self, Cancel, is_uri, local_export};
use crate::watch::{Outcome, Watch, Work};

/// Options with which backing devices are opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Longest time for which requests wait for an NBD server that is lost.
    pub reconnect_timeout: Duration,
    /// Requests to files and block devices bypass the system's page cache.
    pub direct: bool,
}

impl Default for Options {
    /// 30 s, and through the page cache.
    fn default() -> Self {
        Self { reconnect_timeout: Duration::from_secs(30), direct: false }
    }
}

/// A backing device that is open, and locked if it is a file.
pub struct Backing {
    /// Its bytes.
    pub device: Arc<dyn BlockDevice>,
    /// The identity that a cache records.
    pub identity: Identity,
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
pub fn open(
    text: &str,
    options: &Options,
    cancel: Option<Cancel>,
) -> Result<Backing, BackingError> {
    if is_uri(text) {
        let (kind, name) = ("nbd".to_owned(), text.to_owned());
        let identity = Identity { kind, name, serial: String::new(), backing: None };
        return Ok(Backing {
            device: export::open(text, options.reconnect_timeout, cancel)?,
            identity,
        });
    }
    let file = FileOptions { direct: options.direct };
    let device = FileDevice::open_with(Path::new(text), file)?;
    if let Some(reason) = device.why_buffered() {
        tracing::warn!(
            "the file system of {text} does not let requests past its page cache ({reason}): they \
             go through it"
        );
    }
    let name = device.path().to_str();
    let name = name.ok_or_else(|| BackingError::Name { text: text.to_owned() })?.to_owned();
    let identity = Identity {
        kind: if device.is_block() { "block" } else { "file" }.to_owned(),
        name,
        serial: device.serial().to_owned(),
        backing: Some(device.identity().clone()),
    };
    Ok(Backing { device: Arc::new(device), identity })
}

/// As [`open`], on a thread of its own that is waited for no longer than `silence_max`.
///
/// # Errors
/// Those of `open`, `Silent`, and `Thread`.
pub fn open_within(
    text: &str,
    options: &Options,
    silence_max: Duration,
) -> Result<Backing, BackingError> {
    let watch = Arc::<Watch>::default();
    let cancel = Cancel::new().ok();
    let (opened, options, ending) = (text.to_owned(), *options, cancel.clone());
    let opening = Arc::clone(&watch);
    let work = Work::begin("backing-open", &watch, move || {
        let _request = opening.begin();
        open(&opened, &options, ending)
    });
    match work.wait(silence_max) {
        Outcome::Done(opened) => opened,
        Outcome::Silent(silence) => {
            if let Some(cancel) = cancel {
                cancel.cancel();
            }
            Err(BackingError::Silent { text: text.to_owned(), silence })
        }
        Outcome::Failed(what) => Err(BackingError::Thread { text: text.to_owned(), what }),
    }
}

/// Returns what is known of the backing device `text` without opening it. Looks on a thread of its own, which
/// is waited for no longer than `silence_max`: the file system of a file may hang.
///
/// # Errors
/// `Silent` and `Thread`.
pub fn look_within(text: &str, silence_max: Duration) -> Result<Identity, BackingError> {
    let watch = Arc::<Watch>::default();
    let (looked_at, looking) = (text.to_owned(), Arc::clone(&watch));
    let work = Work::begin("backing-look", &watch, move || {
        let _request = looking.begin();
        look_at(&looked_at)
    });
    match work.wait(silence_max) {
        Outcome::Done(found) => Ok(found),
        Outcome::Silent(silence) => Err(BackingError::Silent { text: text.to_owned(), silence }),
        Outcome::Failed(what) => Err(BackingError::Thread { text: text.to_owned(), what }),
    }
}

fn look_at(text: &str) -> Identity {
    let name = text.to_owned();
    if is_uri(text) {
        return Identity { kind: "nbd".to_owned(), name, serial: String::new(), backing: None };
    }
    let backing = BackingIdentity::at(Path::new(text)).ok();
    let is_file = matches!(backing, None | Some(BackingIdentity::File(_)));
    Identity {
        kind: if is_file { "file" } else { "block" }.to_owned(),
        name: stable_path(Path::new(text)).map_or(name, |path| path.display().to_string()),
        serial: String::new(),
        backing,
    }
}

/// Returns true if a write to one backing device may change bytes of the other, as far as is known
/// without opening them: an export that is reached over two hosts is taken for two.
#[must_use]
pub fn share_bytes(one: &Identity, other: &Identity) -> bool {
    let local = |identity: &Identity| local_export(&identity.name);
    one.shares_bytes_with(other) || local(one).is_some_and(|one| Some(one) == local(other))
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
        let within = look_within(link.to_str().unwrap(), Duration::from_secs(60)).unwrap();
        assert!(share_bytes(&look(&file), &within));
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
