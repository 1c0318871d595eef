//! Doubly linked lists of pages, the links in one table.
//!
//! Invariant: a page is in at most one of the lists that share a table, and the caller knows in
//! which.

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
        if older == NONE {
            ends.back = page;
        } else {
            let link = self.links.get(older);
            self.links.set(older, Link { newer: page, ..link });
        }
        self.links.set(page, Link { newer: NONE, older });
    }

    /// Puts a page that is in no list to the back.
    pub(super) fn push_back(&mut self, list: usize, page: u32) {
        let ends = &mut self.ends[list];
        let newer = ends.back;
        ends.back = page;
        ends.len += 1;
        if newer == NONE {
            ends.front = page;
        } else {
            let link = self.links.get(newer);
            self.links.set(newer, Link { older: page, ..link });
        }
        self.links.set(page, Link { newer, older: NONE });
    }

    /// Removes a page from the list that it is in.
    pub(super) fn remove(&mut self, list: usize, page: u32) {
        let link = self.links.get(page);
        self.links.set(page, Link::default());
        let ends = &mut self.ends[list];
        ends.len -= 1;
        if link.newer == NONE {
            ends.front = link.older;
        } else {
            let next = self.links.get(link.newer);
            self.links.set(link.newer, Link { older: link.older, ..next });
        }
        if link.older == NONE {
            ends.back = link.newer;
        } else {
            let next = self.links.get(link.older);
            self.links.set(link.older, Link { newer: link.newer, ..next });
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
        if self.ends[list].front != page {
            self.remove(list, page);
            self.push_front(list, page);
        }
    }
}

fn some(page: u32) -> Option<u32> {
    (page != NONE).then_some(page)
}
