//! Pages in an order, in a ring of entries with holes.
//!
//! A linked list changes the links of four pages for a move. Here the page gets a new entry at the
//! end, and its old one becomes a hole: two stores besides the page's record. When the ring is full
//! of entries and holes, the holes are removed.
//!
//! The caller keeps the place of each page, so that it can stand in the page's record.
//!
//! Invariant: the entries lie in the `span` places from `first` on, around, after which `next` comes; all
//! other places are holes.

use super::lists::NONE as HOLE;

/// Places for each page, after which the ring is cleared up.
const PLACES_A_PAGE: usize = 2;
/// Places of the smallest ring.
const PLACES_MIN: usize = 16;

/// Pages in an order. A place is valid until [`Sequence::clear_up`] reports another.
#[derive(Default)]
pub(super) struct Sequence {
    pages: Vec<u32>,
    first: usize,
    next: usize,
    span: usize,
    len: usize,
}

impl Sequence {
    /// Returns true if it has no page.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if no page can come before [`Sequence::clear_up`].
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.span == self.pages.len()
    }

    /// Returns the page at a place.
    #[inline]
    pub(super) fn page(&self, place: u32) -> u32 {
        self.pages[place as usize]
    }

    /// Puts a page to the newest end of a sequence that is not full. Returns its place.
    #[inline]
    pub(super) fn push_newest(&mut self, page: u32) -> u32 {
        self.len += 1;
        self.append(page)
    }

    /// Puts a page to the oldest end of a sequence that is not full. Returns its place.
    pub(super) fn push_oldest(&mut self, page: u32) -> u32 {
        self.first = self.first.checked_sub(1).unwrap_or(self.pages.len() - 1);
        self.span += 1;
        self.len += 1;
        self.pages[self.first] = page;
        place(self.first)
    }

    #[inline]
    fn append(&mut self, page: u32) -> u32 {
        let at = self.next;
        self.pages[at] = page;
        self.span += 1;
        self.next = self.after(at);
        place(at)
    }

    /// Removes the page at a place.
    #[inline]
    pub(super) fn remove(&mut self, place: u32) {
        self.pages[place as usize] = HOLE;
        self.len -= 1;
    }

    /// Moves the page at a place to the newest end of a sequence that is not full. Returns its new place.
    #[inline]
    pub(super) fn renew(&mut self, page: u32, place: u32) -> u32 {
        let at = place as usize;
        // It is the newest already. A new entry would only use up a place.
        if self.after(at) == self.next {
            return place;
        }
        self.pages[at] = HOLE;
        self.append(page)
    }

    /// Returns the place of the oldest page.
    #[inline]
    pub(super) fn oldest(&mut self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        // Holes at the old end leave the span here, so a later search does not visit them.
        while self.pages[self.first] == HOLE {
            self.first = self.after(self.first);
            self.span -= 1;
        }
        Some(place(self.first))
    }

    /// Returns the place of the page after that at a place, towards the newest.
    #[inline]
    pub(super) fn newer(&self, at: u32) -> Option<u32> {
        let mut at = self.after(at as usize);
        while at != self.next {
            if self.pages[at] != HOLE {
                return Some(place(at));
            }
            at = self.after(at);
        }
        None
    }

    /// Makes room: removes the holes, and makes the ring larger or smaller. Calls `moved` with each page
    /// that has another place since.
    #[cold]
    pub(super) fn clear_up(&mut self, mut moved: impl FnMut(u32, u32)) {
        let places = (self.len * PLACES_A_PAGE).max(PLACES_MIN);
        // The ring has the right size within a factor of two: no allocation.
        if self.pages.len() >= places && self.pages.len() / 2 <= places {
            self.close_up(moved);
            return;
        }
        // Without reports: the rotation below moves every page once more, and reports all.
        self.close_up(|_, _| {});
        self.pages.rotate_left(self.first);
        self.pages.truncate(places);
        self.pages.shrink_to_fit();
        self.pages.reserve_exact(places - self.pages.len());
        self.pages.resize(places, HOLE);
        (self.first, self.next) = (0, self.len);
        for (at, &page) in self.pages[..self.len].iter().enumerate() {
            moved(page, place(at));
        }
    }

    /// Removes the holes: all entries follow the first one.
    fn close_up(&mut self, mut moved: impl FnMut(u32, u32)) {
        let (mut from, mut to) = (self.first, self.first);
        for _ in 0..self.span {
            let page = self.pages[from];
            if page != HOLE {
                // Entries before the first hole keep their places, and need no report.
                if from != to {
                    self.pages[from] = HOLE;
                    self.pages[to] = page;
                    moved(page, place(to));
                }
                to = self.after(to);
            }
            from = self.after(from);
        }
        (self.next, self.span) = (to, self.len);
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.pages.len() { 0 } else { at + 1 }
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "twice the frames of a cache, which are 30 bits"
)]
fn place(at: usize) -> u32 {
    at as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const PAGES: u32 = 150;

    #[derive(Clone, Debug)]
    enum Step {
        Newest(u32),
        Oldest(u32),
        Remove(u32),
        Pop,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = (0..PAGES, 0..24).prop_map(|(page, what)| match what {
            0..16 => Step::Newest(page),
            16 => Step::Oldest(page),
            17..19 => Step::Remove(page),
            _ => Step::Pop,
        });
        proptest::collection::vec(step, 1..3000)
    }

    /// A sequence with the places of its pages.
    #[derive(Default)]
    struct PlacedSequence {
        sequence: Sequence,
        places: HashMap<u32, u32>,
    }

    impl PlacedSequence {
        fn make_room(&mut self) {
            if self.sequence.is_full() {
                self.sequence.clear_up(|page, place| {
                    self.places.insert(page, place);
                });
            }
        }

        fn remove(&mut self, page: u32) {
            self.places.remove(&page).into_iter().for_each(|place| self.sequence.remove(place));
        }

        fn take(&mut self, step: &Step) {
            self.make_room();
            match *step {
                Step::Newest(page) => {
                    let place = match self.places.get(&page) {
                        Some(&place) => self.sequence.renew(page, place),
                        None => self.sequence.push_newest(page),
                    };
                    self.places.insert(page, place);
                }
                Step::Oldest(page) => {
                    self.remove(page);
                    self.places.insert(page, self.sequence.push_oldest(page));
                }
                Step::Remove(page) => self.remove(page),
                Step::Pop => {
                    let page = self.sequence.oldest().map(|place| self.sequence.page(place));
                    page.into_iter().for_each(|page| self.remove(page));
                }
            }
        }

        fn pages(&mut self) -> Vec<u32> {
            let oldest = self.sequence.oldest();
            let places = std::iter::successors(oldest, |&place| self.sequence.newer(place));
            places.map(|place| self.sequence.page(place)).collect()
        }
    }

    proptest! {
        /// Against a list, oldest first.
        #[test]
        fn is_a_list(steps in steps()) {
            let (mut placed, mut model) = (PlacedSequence::default(), Vec::new());
            for (number, step) in steps.iter().enumerate() {
                placed.take(step);
                match *step {
                    Step::Newest(page) => {
                        model.retain(|&other| other != page);
                        model.push(page);
                    }
                    Step::Oldest(page) => {
                        model.retain(|&other| other != page);
                        model.insert(0, page);
                    }
                    Step::Remove(page) => model.retain(|&other| other != page),
                    Step::Pop => drop(model.drain(..model.len().min(1))),
                }
                prop_assert_eq!(placed.sequence.is_empty(), model.is_empty());
                let places = placed.sequence.pages.len();
                prop_assert!(places <= PAGES as usize * PLACES_A_PAGE);
                if number % 16 == 0 {
                    prop_assert_eq!(placed.pages(), model.clone());
                }
            }
            prop_assert_eq!(placed.pages(), model);
        }
    }
}
