//! Words of memory for several threads. On x86-64 a relaxed access is an ordinary access.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// Words of a page.
pub(super) const PAGE_WORDS: usize = 512;

/// Words for several threads.
#[derive(Clone, Copy)]
pub(super) struct Words<'a>(&'a [AtomicU64]);

impl<'a> Words<'a> {
    pub(super) const fn of(words: &'a [AtomicU64]) -> Self {
        Self(words)
    }

    pub(super) fn split_at(self, words: usize) -> (Self, Self) {
        let (first, rest) = self.0.split_at(words);
        (Self(first), Self(rest))
    }

    #[inline]
    pub(super) fn load(self, at: usize) -> u64 {
        self.0[at].load(Relaxed)
    }

    #[inline]
    pub(super) fn store(self, at: usize, value: u64) {
        self.0[at].store(value, Relaxed);
    }

    pub(super) fn pages(self) -> usize {
        self.0.len() / PAGE_WORDS
    }
}
