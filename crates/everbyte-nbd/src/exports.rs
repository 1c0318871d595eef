//! Exports of a server: the trait by which its owner names and opens them, and the reasons why one
//! cannot be opened.
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
    /// Once the server has answered the write: every write, trim and zeroing is carried out as if
    /// it had FUA, and writes that arrive together share their checkpoint. The export announces no
    /// volatile cache, so Linux takes the disk for write-through and sends no flushes; the server
    /// answers one that comes.
    ///
    /// For clients that connect again after the server's end and take answered writes for durable
    /// (`nbd-client -persist`, QEMU's `reconnect-delay`).
    WhenAnswered,
    /// Never: the device keeps nothing. The export offers neither flushes nor FUA, and refuses
    /// both. For swap.
    Never,
}

/// An export that a client has opened.
#[derive(Clone)]
#[non_exhaustive]
pub struct Export {
    /// Its name; for the default export the real one, which may differ from the one asked for.
    pub name: String,
    /// The device that carries out its requests.
    pub device: Arc<dyn BlockDevice>,
    /// The promise to its clients about answered writes.
    pub durability: Durability,
}

impl Export {
    /// Makes an export whose writes are durable at flushes.
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

/// An export cannot be opened. The client, which may be on another machine, gets the reason: it names
/// nothing of the server's machine. A reason with a slash, or with anything but printable ASCII
/// characters, is not sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No export has this name (`NBD_REP_ERR_UNKNOWN`).
    #[error("there is no export of this name")]
    Unknown,
    /// The export exists and cannot be used now (`NBD_REP_ERR_UNKNOWN`, which stands for every
    /// export that is not available).
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

/// The exports of a server. They may come and go while it serves: a connection keeps the device
/// that it opened, whose requests fail with `Gone` once it is removed.
pub trait Exports: Send + Sync {
    /// Returns all exports that clients may know of.
    fn list(&self) -> Vec<ExportInfo>;

    /// Opens the export of this name. The empty name is the default export, if there is one. May
    /// block: the server lets other clients connect meanwhile, but for those that wait for the same
    /// export.
    ///
    /// # Errors
    /// The reason why the export cannot be had.
    fn open(&self, name: &str) -> Result<Export, OpenError>;
}
