//! What a server serves: the trait by which its owner names and opens exports, and why one cannot
//! be opened.
//!
//! Knows neither sockets nor the protocol.

use std::sync::Arc;

use everbyte_device::BlockDevice;

/// An export, to be listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// Its name, at most 4096 bytes.
    pub name: String,
    /// What a person should know about it; may be empty.
    pub description: String,
}

/// When what a client writes is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// Once a flush that came after the write is answered, or the write itself if it has FUA. The
    /// export announces a volatile cache (`NBD_FLAG_SEND_FLUSH`).
    #[default]
    AtFlush,
    /// Once the write is answered: every write, trim and zeroing is done as if it had FUA, and
    /// writes that arrive together share their checkpoint. No volatile cache is announced, so
    /// Linux takes the disk for write-through and sends no flushes; one that comes is answered.
    ///
    /// For clients that connect again after the server's end and take what was answered for
    /// written (`nbd-client -persist`, QEMU's `reconnect-delay`).
    WhenAnswered,
}

/// An export that a client has opened.
#[derive(Clone)]
#[non_exhaustive]
pub struct Export {
    /// Its name; for the default export the real one, which may not be the one asked for.
    pub name: String,
    /// Where its requests go.
    pub device: Arc<dyn BlockDevice>,
    /// What its clients are promised of answered writes.
    pub durability: Durability,
}

impl Export {
    /// An export whose writes are durable at flushes.
    #[must_use]
    pub fn new(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Self {
        Self { name: name.into(), device, durability: Durability::AtFlush }
    }

    /// The same with another promise.
    #[must_use]
    pub fn with_durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }
}

/// Why an export cannot be opened. The words go to the client, who may be on another machine: a
/// reason names no local paths. What looks like one is blotted out before it is sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is none (`NBD_REP_ERR_UNKNOWN`).
    #[error("there is no export of this name")]
    Unknown,
    /// There is one that cannot be used now (`NBD_REP_ERR_UNKNOWN`, which stands for every export
    /// that is not available).
    #[error("the export is not available: {reason}")]
    Unavailable {
        /// Why, and when it may be.
        reason: String,
    },
    /// There is one that is not to be used this way (`NBD_REP_ERR_POLICY`).
    #[error("the export is not to be opened: {reason}")]
    Forbidden {
        /// Why.
        reason: String,
    },
    /// The server is about to end (`NBD_REP_ERR_SHUTDOWN`).
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// The exports of a server. They may come and go while it serves: a connection keeps the device
/// it opened, whose requests fail with `Gone` once it is removed.
pub trait Exports: Send + Sync {
    /// All exports that clients may know of.
    fn list(&self) -> Vec<ExportInfo>;

    /// The export of this name. The empty name is the default export, if there is one. May take
    /// as long as it takes: a server lets other clients connect meanwhile, but for those that wait
    /// for the same export.
    ///
    /// # Errors
    /// Why there is none to be had; the client is told.
    fn open(&self, name: &str) -> Result<Export, OpenError>;
}

/// Bytes of a message at most; the protocol's strings have no more.
const MESSAGE_MAX: usize = 1024;

/// `words` with everything blotted out that looks like a path or an address.
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
