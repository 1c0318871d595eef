//! Exports of NBD servers, as far as this build knows them.

#[cfg(feature = "nbd")]
pub use with_nbd::Cancel;
#[cfg(feature = "nbd")]
pub(crate) use with_nbd::{is_uri, local_export, open};
#[cfg(not(feature = "nbd"))]
pub use without_nbd::Cancel;
#[cfg(not(feature = "nbd"))]
pub(crate) use without_nbd::{is_uri, local_export, open};

/// A server's socket in this system, by device and inode, and the name of an export.
pub(crate) type LocalExport = (u64, u64, String);

#[cfg(feature = "nbd")]
mod with_nbd {
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;
    use std::time::Duration;

    use everbyte_device::BlockDevice;
    use everbyte_nbd::{Address, ClientOptions, Reconnect, RemoteDevice};

    pub use everbyte_nbd::Cancel;
    pub(crate) use everbyte_nbd::is_uri;

    use super::super::error::BackingError;
    use super::super::options::Options;
    use super::LocalExport;

    /// Longest time an NBD server may take to answer a request before the client closes its
    /// connection.
    const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

    pub(crate) fn open(
        uri: &str,
        options: &Options,
        cancel: Option<Cancel>,
    ) -> Result<Arc<dyn BlockDevice>, BackingError> {
        let reconnect = Reconnect { timeout: options.reconnect_timeout, ..Reconnect::default() };
        let limits = ClientOptions {
            request_time_max: Some(REQUEST_TIME_MAX),
            cancel,
            rights: options.rights.clone(),
            ..ClientOptions::default()
        };
        match RemoteDevice::open_with(uri, reconnect, limits) {
            Ok(device) => Ok(Arc::new(device)),
            Err(source) => {
                Err(BackingError::Remote { uri: uri.to_owned(), source: Box::new(source) })
            }
        }
    }

    /// An export of a server on a Unix socket. Hosts are not resolved: a lookup can take long, and
    /// a host may have many names.
    pub(crate) fn local_export(text: &str) -> Option<LocalExport> {
        if !text.starts_with("nbd+unix:") {
            return None;
        }
        let Ok((Address::Unix(socket), export)) = Address::from_uri(text) else { return None };
        let found = everbyte_path::look(&socket).ok()?;
        let found = found.metadata();
        Some((found.dev(), found.ino(), export))
    }
}

#[cfg(not(feature = "nbd"))]
mod without_nbd {
    use std::sync::Arc;

    use everbyte_device::BlockDevice;

    use super::super::error::BackingError;
    use super::super::options::Options;
    use super::LocalExport;

    /// Ends waits for NBD servers. This build has no NBD client.
    #[derive(Clone, Debug)]
    pub struct Cancel(());

    impl Cancel {
        /// A handle without waits to end.
        ///
        /// # Errors
        /// None.
        pub fn new() -> std::io::Result<Self> {
            Ok(Self(()))
        }

        /// Does nothing: this build never waits for an NBD server.
        pub fn cancel(&self) {}
    }

    /// Returns true if a text has the prefix of an NBD URI: such a text is not a path.
    pub(crate) fn is_uri(text: &str) -> bool {
        let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
        matches!(scheme.split('+').next(), Some("nbd" | "nbds"))
    }

    pub(crate) fn open(
        uri: &str,
        _: &Options,
        _: Option<Cancel>,
    ) -> Result<Arc<dyn BlockDevice>, BackingError> {
        Err(BackingError::NoClient { uri: uri.to_owned() })
    }

    pub(crate) fn local_export(_: &str) -> Option<LocalExport> {
        None
    }
}
