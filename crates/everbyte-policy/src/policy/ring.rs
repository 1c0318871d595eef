//! The ring of a CLOCK: pages in the order in which they came, and a hand.
//!
//! Invariant: a page of the ring is in exactly one slot; a freed slot is the next to be filled, so
//! that a new page takes its victim's place, just behind the hand.

use super::lists::NONE;
use super::residents::{Residents, State};
use super::space::{Space, Table};

/// Pages in a ring.
pub(super) struct Ring<S: Space> {
    slots: Vec<u32>,
    free: Vec<u32>,
    /// The slot of each page, plus 1.
    places: S::Table<u32>,
    hand: u32,
}

impl<S: Space> Ring<S> {
    pub(super) fn new(space: S) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), places: space.table(), hand: 0 }
    }

    /// Puts a page in that is not in the ring.
    pub(super) fn insert(&mut self, page: u32) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(NONE);
            u32::try_from(self.slots.len() - 1).expect("a ring has no more slots than pages")
        });
        self.slots[slot as usize] = page;
        self.places.set(page, slot + 1);
    }

    /// Takes out a page of the ring.
    pub(super) fn remove(&mut self, page: u32) {
        let slot = self.places.get(page) - 1;
        self.places.set(page, 0);
        self.slots[slot as usize] = NONE;
        self.free.push(slot);
    }

    /// The page under the hand, which moves on. The ring must not be empty.
    pub(super) fn advance(&mut self) -> u32 {
        loop {
            if self.hand as usize >= self.slots.len() {
                self.hand = 0;
            }
            let page = self.slots[self.hand as usize];
            self.hand += 1;
            if page != NONE {
                return page;
            }
        }
    }
}

/// Moves the hand of a CLOCK over pages with a reference bit, which it clears, to the first
/// without. That page stays in the ring.
pub(super) fn sweep<S: Space>(ring: &mut Ring<S>, pages: &mut Residents<S>) -> u32 {
    loop {
        let page = ring.advance();
        let state = pages.state(page);
        if !state.has(State::REFERENCED) {
            return page;
        }
        pages.set_state(page, state.without(State::REFERENCED));
    }
}
