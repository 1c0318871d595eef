//! The ring of a CLOCK: pages in the order in which they came, and a hand.
//!
//! A circular list: a page enters directly behind the hand, regardless of the places of former
//! pages.
//!
//! Invariant: the hand is on a page of the ring, if there is one.

use super::directory::{Directory, State};
use super::lists::NONE;
use super::storage::{Storage, Table};

#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Neighbours {
    before: u32,
    after: u32,
}

/// Pages in a ring.
pub(super) struct Ring<S: Storage> {
    neighbours: S::Table<Neighbours>,
    hand: u32,
}

impl<S: Storage> Ring<S> {
    pub(super) fn new(storage: S) -> Self {
        Self { neighbours: storage.table(), hand: NONE }
    }

    /// Inserts a page just behind the hand. It must not be in the ring.
    pub(super) fn insert(&mut self, page: u32) {
        if self.hand == NONE {
            self.neighbours.set(page, Neighbours { before: page, after: page });
            self.hand = page;
            return;
        }
        // Directly behind the hand: the sweep reaches the page after all others, as a new page of
        // CLOCK.
        let after = self.hand;
        let before = self.neighbours.get(after).before;
        self.neighbours.set(page, Neighbours { before, after });
        self.set_after(before, page);
        self.set_before(after, page);
    }

    /// Removes a page of the ring.
    pub(super) fn remove(&mut self, page: u32) {
        let Neighbours { before, after } = self.neighbours.get(page);
        self.neighbours.set(page, Neighbours::default());
        // Alone in the ring: its neighbour was the page itself.
        if after == page {
            self.hand = NONE;
            return;
        }
        self.set_after(before, after);
        self.set_before(after, before);
        // The hand must stay on a page of the ring.
        if self.hand == page {
            self.hand = after;
        }
    }

    /// Returns the page under the hand, which moves on. The ring must not be empty.
    pub(super) fn advance(&mut self) -> u32 {
        let page = self.hand;
        self.hand = self.neighbours.get(page).after;
        page
    }

    fn set_after(&mut self, page: u32, after: u32) {
        let neighbours = self.neighbours.get(page);
        self.neighbours.set(page, Neighbours { after, ..neighbours });
    }

    fn set_before(&mut self, page: u32, before: u32) {
        let neighbours = self.neighbours.get(page);
        self.neighbours.set(page, Neighbours { before, ..neighbours });
    }
}

/// Moves the hand of a CLOCK over pages with a reference bit, which it clears, to the first
/// without. That page stays in the ring.
pub(super) fn sweep<S: Storage>(ring: &mut Ring<S>, pages: &mut Directory<S>) -> u32 {
    loop {
        let page = ring.advance();
        let state = pages.state(page);
        if !state.has(State::REFERENCED) {
            return page;
        }
        pages.set_state(page, state.without(State::REFERENCED));
    }
}
