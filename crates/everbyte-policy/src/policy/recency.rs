//! Pages in the order of their last use, told with one store a use.
//!
//! A diary of uses, in which a page stands once for each use of late, and for each page where it
//! stands last. Only that entry counts. So a use moves nothing, where a linked list has four pages'
//! links to change; in return entries that count no more are passed over when the oldest page is
//! asked for, and thrown away when the diary is four times as long as it need be. Each entry is
//! written once, and read twice on the average at most.
//!
//! Invariant: `last_use` of a page is 0 if it is not here, else 1 more than the place of the entry
//! of its last use. Entries before `oldest` count no more.

use super::space::{Space, Table};

/// Entries of the diary for each page, after which it is cleared up.
const ENTRIES_A_PAGE: usize = 4;
/// Entries from which on clearing up is worth its while.
const ENTRIES_MIN: usize = 1024;

/// Entries that can be told apart.
const ENTRIES_MAX: usize = u32::MAX as usize - 1;

/// Pages by last use.
pub(super) struct Recency<S: Space> {
    diary: Vec<u32>,
    oldest: usize,
    last_use: S::Table<u32>,
    /// Length at which the diary is cleared up next.
    full: usize,
}

impl<S: Space> Recency<S> {
    pub(super) fn new(space: S) -> Self {
        let last_use = space.table();
        Self { diary: Vec::new(), oldest: 0, last_use, full: ENTRIES_MIN }
    }

    /// A page is used, or comes.
    #[inline]
    pub(super) fn touch(&mut self, page: u32) {
        if self.diary.len() >= self.full {
            self.clear_up();
        }
        self.diary.push(page);
        self.last_use.set(page, place(self.diary.len()));
    }

    /// A page that is here goes.
    pub(super) fn remove(&mut self, page: u32) {
        self.last_use.set(page, 0);
    }

    /// Takes out the page that was not used for longest.
    pub(super) fn pop_oldest(&mut self) -> Option<u32> {
        while let Some(&page) = self.diary.as_slice().get(self.oldest) {
            self.oldest += 1;
            if self.last_use.get(page) == place(self.oldest) {
                self.remove(page);
                return Some(page);
            }
        }
        None
    }

    /// Throws away the entries that do not count.
    #[cold]
    fn clear_up(&mut self) {
        let mut kept = 0;
        for at in self.oldest..self.diary.len() {
            let page = self.diary[at];
            if self.last_use.get(page) == place(at + 1) {
                self.diary[kept] = page;
                kept += 1;
                self.last_use.set(page, place(kept));
            }
        }
        self.diary.truncate(kept);
        self.oldest = 0;
        self.full = kept.saturating_mul(ENTRIES_A_PAGE).clamp(ENTRIES_MIN, ENTRIES_MAX);
    }
}

/// What `last_use` says of the entry that is the `count`th.
#[allow(clippy::cast_possible_truncation, reason = "at most ENTRIES_MAX + 1")]
fn place(count: usize) -> u32 {
    count as u32
}
