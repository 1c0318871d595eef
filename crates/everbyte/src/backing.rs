//! Backing devices of caches: files, block devices, and with the feature `nbd` exports of NBD
//! servers. They are recorded as the program records them, so that it can serve what was made here.

use std::path::Path;
use std::sync::Arc;

use everbyte_cache::Identity;
use everbyte_device::{BlockDevice, FileDevice, FileOptions};

/// A backing device that is open, and locked if it is a file.
pub(crate) struct Backing {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) identity: Identity,
}

type BackingError = Box<dyn std::error::Error + Send + Sync>;

/// Opens what `text` names. May wait for a server.
pub(crate) fn open(text: &Path, direct: bool) -> Result<Backing, BackingError> {
    match text.to_str().filter(|text| is_uri(text)) {
        Some(uri) => open_uri(uri),
        None => open_file(text, direct),
    }
}

fn is_uri(text: &str) -> bool {
    let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
    matches!(scheme.split('+').next(), Some("nbd" | "nbds"))
}

fn open_file(path: &Path, direct: bool) -> Result<Backing, BackingError> {
    let device = FileDevice::open_with(path, FileOptions { direct })?;
    if let Some(reason) = device.why_buffered() {
        tracing::warn!(path = %path.display(), reason, "requests go through the page cache");
    }
    let name = device.path().to_str().ok_or("its path is not UTF-8")?.to_owned();
    let identity = Identity {
        kind: if device.is_block() { "block" } else { "file" }.to_owned(),
        name,
        serial: device.serial().to_owned(),
        backing: Some(device.identity().clone()),
    };
    Ok(Backing { device: Arc::new(device), identity })
}

#[cfg(feature = "nbd")]
fn open_uri(uri: &str) -> Result<Backing, BackingError> {
    let device = everbyte_nbd::RemoteDevice::open(uri, everbyte_nbd::Reconnect::default())?;
    let (kind, name) = ("nbd".to_owned(), uri.to_owned());
    let identity = Identity { kind, name, serial: String::new(), backing: None };
    Ok(Backing { device: Arc::new(device), identity })
}

#[cfg(not(feature = "nbd"))]
fn open_uri(_: &str) -> Result<Backing, BackingError> {
    Err("NBD URIs need the feature `nbd` of the crate `everbyte`".into())
}
