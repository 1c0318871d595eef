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

/// An export cannot be opened. The text goes to the client, who may be on another machine: a reason
/// names no local paths. Text that looks like a path is blotted out before it is sent.
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
    /// The reason why the export cannot be had; the client is told.
    fn open(&self, name: &str) -> Result<Export, OpenError>;
}

/// Most bytes of a message; the protocol's strings have no more.
const MESSAGE_MAX: usize = 1024;

/// Returns `words` with everything blotted out that looks like a path or an address.
pub(crate) fn without_paths(words: &str) -> String {
    let mut out = String::with_capacity(words.len());
    let mut before = ' ';
    let mut is_path = false;
    for letter in words.chars() {
        if out.len() + letter.len_utf8() > MESSAGE_MAX {
            break;
        }
        let separates = letter.is_whitespace() || "'\"`(),;<>[]{}".contains(letter);
        if letter == '/' && !is_path && !before.is_alphanumeric() {
            is_path = true;
            out.push('…');
        }
        if is_path && separates {
            is_path = false;
            if before == ':' {
                out.push(':');
            }
        }
        if !is_path {
            out.push(letter);
        }
        before = letter;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_blotted_out_and_nothing_else() {
        for (words, shown) in [
            ("no space: I/O and/or 3/4", "no space: I/O and/or 3/4"),
            ("/dev/sdb is gone", "… is gone"),
            ("/dev/sdb: gone", "…: gone"),
            ("cannot open '/mnt/a b': denied (see /x/y)", "cannot open '… b': denied (see …)"),
            ("storage nbd+unix:///x?socket=/run/s", "storage nbd+unix:…"),
            ("path=/etc/passwd, twice", "path=…, twice"),
            ("ä/b /ä", "ä/b …"),
        ] {
            assert_eq!(without_paths(words), shown);
        }
        assert!(without_paths(&"ä".repeat(4000)).len() <= MESSAGE_MAX);
    }
}
