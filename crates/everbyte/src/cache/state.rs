//! States of a cache.

use std::fmt;

/// State of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CacheState {
    /// Requests are served.
    Open,
    /// It is being opened in the background.
    Opening,
    /// Its sizes or its backing device are being changed.
    Changing,
    /// It is closed.
    Closed,
    /// The recorded path or URI does not name a device.
    BackingMissing,
    /// The backing device cannot be used.
    BackingRefused,
    /// The backing device does not answer.
    BackingSilent,
    /// The volume does not hold a readable cache.
    Damaged,
    /// The pool is open read-only.
    ReadOnly,
    /// The system had no thread for it.
    NoThread,
}

impl fmt::Display for CacheState {
    /// The state in one or two words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Opening => "opening",
            Self::Changing => "changing",
            Self::Closed => "closed",
            Self::BackingMissing => "backing missing",
            Self::BackingRefused => "backing refused",
            Self::BackingSilent => "backing silent",
            Self::Damaged => "damaged",
            Self::ReadOnly => "read-only",
            Self::NoThread => "no thread",
        })
    }
}
