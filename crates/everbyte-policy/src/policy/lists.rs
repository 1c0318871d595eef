//! Doubly linked lists of pages, the links in one table.
//!
//! Invariant: a page is in at most one of the lists of a table, and the caller knows the list.

use super::storage::{Storage, Table};

/// No page.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Link {
    /// Towards the front.
    newer: u32,
    /// Towards the back.
    older: u32,
}

impl Default for Link {
    fn default() -> Self {
        Self { newer: NONE, older: NONE }
    }
}

#[derive(Clone, Copy)]
struct Ends {
    front: u32,
    back: u32,
    len: u32,
}

/// `N` lists.
pub(super) struct Lists<S: Storage, const N: usize> {
    links: S::Table<Link>,
    ends: [Ends; N],
}

impl<S: Storage, const N: usize> Lists<S, N> {
    pub(super) fn new(storage: S) -> Self {
        Self { links: storage.table(), ends: [Ends { front: NONE, back: NONE, len: 0 }; N] }
    }

    pub(super) fn len(&self, list: usize) -> u32 {
        self.ends[list].len
    }

    /// Returns the page that has been in the list for longest.
    pub(super) fn back(&self, list: usize) -> Option<u32> {
        some(self.ends[list].back)
    }

    /// Returns the page that came just after this one.
    pub(super) fn newer(&self, page: u32) -> Option<u32> {
        some(self.links.get(page).newer)
    }

    /// Puts a page that is in no list to the front.
    pub(super) fn push_front(&mut self, list: usize, page: u32) {
        let ends = &mut self.ends[list];
        let older = ends.front;
        ends.front = page;
        ends.len += 1;
        // The first page of a list is its back as well.
        if older == NONE {
            ends.back = page;
        } else {
            self.links.change(older, |link| link.newer = page);
        }
        self.links.set(page, Link { newer: NONE, older });
    }

    /// Removes a page from the list that it is in.
    pub(super) fn remove(&mut self, list: usize, page: u32) {
        let link = self.links.get(page);
        // A page in no list has no entry in a sparse table.
        self.links.set(page, Link::default());
        let ends = &mut self.ends[list];
        ends.len -= 1;
        if link.newer == NONE {
            ends.front = link.older;
        } else {
            self.links.change(link.newer, |next| next.older = link.older);
        }
        if link.older == NONE {
            ends.back = link.newer;
        } else {
            self.links.change(link.older, |next| next.newer = link.newer);
        }
    }

    /// Removes the page that has been in the list for longest.
    pub(super) fn pop_back(&mut self, list: usize) -> Option<u32> {
        let page = self.back(list)?;
        self.remove(list, page);
        Some(page)
    }

    /// Puts a page of the list to its front.
    #[inline]
    pub(super) fn touch(&mut self, list: usize, page: u32) {
        let ends = &mut self.ends[list];
        // Repeated uses of the newest page are frequent, and change no link.
        if ends.front == page {
            return;
        }
        // There is a newer one, so the links of the page are looked up twice, and those of others once.
        let Link { newer, older } = self.links.get(page);
        self.links.change(newer, |link| link.older = older);
        if older == NONE {
            ends.back = newer;
        } else {
            self.links.change(older, |link| link.newer = newer);
        }
        self.links.change(ends.front, |link| link.newer = page);
        self.links.set(page, Link { newer: NONE, older: ends.front });
        ends.front = page;
    }
}

fn some(page: u32) -> Option<u32> {
    (page != NONE).then_some(page)
}
