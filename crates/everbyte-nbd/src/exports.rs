//! Exports of a server: the trait by which the owner names and opens them, and the reasons for a
//! failed open.
//!
//! Knows neither sockets nor the protocol.

use std::sync::Arc;

use everbyte_device::BlockDevice;

/// An export in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// Its name, at most 4096 bytes.
    pub name: String,
    /// A line about it for people; may be empty.
    pub description: String,
}

/// The moment from which a client's writes are durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// Once the server has answered a later flush, or the write itself if it has FUA. The export
    /// announces a volatile cache (`NBD_FLAG_SEND_FLUSH`).
    #[default]
    AtFlush,
    /// When the server answers the write: every write, trim and zeroing is executed with FUA, and
    /// writes that arrive together share their checkpoint. The export announces no volatile cache,
    /// so Linux treats the disk as write-through and sends no flushes. The server still answers a
    /// flush.
    ///
    /// For clients that reconnect after the server's end and treat answered writes as durable
    /// (`nbd-client -persist`, QEMU's `reconnect-delay`).
    WhenAnswered,
    /// Never: the device keeps nothing. The export offers neither flushes nor FUA, and refuses
    /// both. For swap.
    Never,
}

/// An export opened by a client.
#[derive(Clone)]
#[non_exhaustive]
pub struct Export {
    /// The name. For the default export this is the real name, which may differ from the requested
    /// one.
    pub name: String,
    /// The device for the requests.
    pub device: Arc<dyn BlockDevice>,
    /// The promise to its clients about answered writes.
    pub durability: Durability,
}

impl Export {
    /// Makes an export whose writes become durable by a flush.
    #[must_use]
    pub fn new(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Self {
        Self { name: name.into(), device, durability: Durability::AtFlush }
    }

    /// Returns the same export with another promise.
    #[must_use]
    pub fn with_durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }
}

/// An export cannot be opened. The client gets the reason and may be on another machine, so the
/// reason names nothing of the server's machine. A reason with a slash, or with anything but
/// printable ASCII characters, is not sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No export has this name (`NBD_REP_ERR_UNKNOWN`).
    #[error("there is no export of this name")]
    Unknown,
    /// The export exists and is unavailable (`NBD_REP_ERR_UNKNOWN`, which stands for every
    /// unavailable export).
    #[error("the export is not available: {reason}")]
    Unavailable {
        /// The reason, and when it may be opened.
        reason: String,
    },
    /// The export exists and must not be used this way (`NBD_REP_ERR_POLICY`).
    #[error("the export is not to be opened: {reason}")]
    Forbidden {
        /// The reason.
        reason: String,
    },
    /// The server is shutting down (`NBD_REP_ERR_SHUTDOWN`).
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// The exports of a server. They may come and go while it serves. A connection keeps its open
/// device. After removal of the export, the device's requests fail with `Gone`.
pub trait Exports: Send + Sync {
    /// Returns all exports that clients may see.
    fn list(&self) -> Vec<ExportInfo>;

    /// Opens the export of this name. The empty name is the default export, if there is one. May
    /// block: other clients can still connect, except clients that wait for the same export.
    ///
    /// # Errors
    /// The reason why the export cannot be had.
    fn open(&self, name: &str) -> Result<Export, OpenError>;
}
