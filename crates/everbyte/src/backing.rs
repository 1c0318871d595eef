//! The storage behind a cache: files, block devices, and exports of NBD servers.
//!
//! Owns how the words of the command line become a device, and what tells one storage from another.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use everbyte_cache::Identity;
use everbyte_device::{BlockDevice, FileDevice, FileOptions, stable_path};
use everbyte_nbd::{Reconnect, RemoteDevice, is_uri};

/// How storage is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    /// How long requests wait for an NBD server that is lost.
    pub(crate) reconnect_timeout: Duration,
    /// Whether files and block devices are used past the system's page cache.
    pub(crate) direct: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { reconnect_timeout: Reconnect::default().timeout, direct: false }
    }
}

/// A storage that is open.
pub(crate) struct Backing {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) identity: Identity,
}

/// `text` as every process understands it: a URI as it is, a path made absolute.
///
/// # Errors
/// There is no such file.
pub(crate) fn resolve(text: &str) -> anyhow::Result<String> {
    if is_uri(text) {
        return Ok(text.to_owned());
    }
    let path = stable_path(Path::new(text)).with_context(|| {
        format!(
            "there is no storage {text}: make the file first, such as by 'truncate -s 10G {text}'"
        )
    })?;
    let path = path.into_os_string().into_string();
    path.ok().with_context(|| format!("the path of {text} is not UTF-8"))
}

/// Opens what `text` names: a file, a block device, or an NBD URI.
///
/// # Errors
/// It cannot be opened, or is in use.
pub(crate) fn open(text: &str, options: &Options) -> anyhow::Result<Backing> {
    if is_uri(text) {
        let reconnect = Reconnect { timeout: options.reconnect_timeout, ..Reconnect::default() };
        let device = RemoteDevice::open(text, reconnect)
            .with_context(|| format!("cannot use the storage {text}"))?;
        let (kind, name) = ("nbd".to_owned(), text.to_owned());
        let identity = Identity { kind, name, serial: String::new(), backing: None };
        return Ok(Backing { device: Arc::new(device), identity });
    }
    let file = FileOptions { direct: options.direct };
    let device = FileDevice::open_with(Path::new(text), file).context("cannot use the storage")?;
    if let Some(reason) = device.why_buffered() {
        tracing::warn!(
            "the file system of {text} does not let requests past its page cache ({reason}): they go \
             through it; put the storage elsewhere, or serve without --direct-backing"
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
