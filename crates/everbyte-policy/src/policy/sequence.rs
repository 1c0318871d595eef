//! Pages in an order, in a ring of entries with holes.
//!
//! A linked list has four pages' links to change when a page is moved. Here the page gets a new entry at
//! the end, and its old one becomes a hole: that is one store beside the page's record, and a bit. When the
//! ring is full of entries and holes, they are told apart by the bits, and the holes go.
//!
//! The caller keeps the place of each page, so that it can stand in a record with all else that is known of
//! the page.
//!
//! Invariants: the entries lie in the `span` places from `first` on, around, after which `next` comes;
//! `kept` has the bit of each place with an entry, and no other.

/// Places for each page, after which the ring is cleared up.
const PLACES_A_PAGE: usize = 2;
/// Places of the smallest ring, and the unit of larger ones: the bits of a word.
const WORD: usize = u64::BITS as usize;

/// Pages in an order. A place is valid until [`Sequence::clear_up`] tells another.
#[derive(Default)]
pub(super) struct Sequence {
    pages: Vec<u32>,
    kept: Vec<u64>,
    first: usize,
    next: usize,
    span: usize,
    len: usize,
}

impl Sequence {
    /// Returns true if there is no page.
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
        self.first = self.around(self.first + self.pages.len() - 1);
        self.span += 1;
        self.len += 1;
        self.pages[self.first] = page;
        self.keep(self.first);
        place(self.first)
    }

    #[inline]
    fn append(&mut self, page: u32) -> u32 {
        let at = self.next;
        self.pages[at] = page;
        self.keep(at);
        self.span += 1;
        self.next = self.around(at + 1);
        place(at)
    }

    #[inline]
    fn keep(&mut self, at: usize) {
        self.kept[at / WORD] |= 1 << (at % WORD);
    }

    #[inline]
    fn drop(&mut self, at: usize) {
        self.kept[at / WORD] &= !(1 << (at % WORD));
    }

    /// Removes the page at a place.
    #[inline]
    pub(super) fn remove(&mut self, place: u32) {
        self.drop(place as usize);
        self.len -= 1;
    }

    /// Moves the page at a place to the newest end of a sequence that is not full. Returns its new place.
    #[inline]
    pub(super) fn renew(&mut self, page: u32, place: u32) -> u32 {
        let at = place as usize;
        if self.around(at + 1) == self.next {
            return place;
        }
        self.drop(at);
        self.append(page)
    }

    /// Returns the place of the oldest page.
    #[inline]
    pub(super) fn oldest(&mut self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let at = self.next_kept(self.first);
        self.span -= self.offset(at);
        self.first = at;
        Some(place(at))
    }

    /// Returns the place of the page after that at a place, towards the newest.
    #[inline]
    pub(super) fn newer(&self, at: u32) -> Option<u32> {
        let next = self.next_kept(self.around(at as usize + 1));
        (self.offset(next) > self.offset(at as usize)).then(|| place(next))
    }

    /// Makes room: removes the holes, and makes the ring larger or smaller. Calls `moved` with each page
    /// that has another place since.
    #[cold]
    pub(super) fn clear_up(&mut self, mut moved: impl FnMut(u32, u32)) {
        let places = (self.len * PLACES_A_PAGE).next_multiple_of(WORD).max(WORD);
        if self.pages.len() >= places && self.pages.len() / 2 <= places {
            self.close_up(moved);
            return;
        }
        self.close_up(|_, _| {});
        self.pages.rotate_left(self.first);
        self.pages.truncate(places);
        self.pages.shrink_to_fit();
        self.pages.reserve_exact(places - self.pages.len());
        self.pages.resize(places, 0);
        self.kept = vec![0; places / WORD];
        (self.first, self.next) = (0, self.len);
        self.keep_all(0, self.len);
        for (at, &page) in self.pages[..self.len].iter().enumerate() {
            moved(page, place(at));
        }
    }

    /// Removes the holes: all entries follow the first one.
    fn close_up(&mut self, mut moved: impl FnMut(u32, u32)) {
        let mut to = self.first;
        let (mut word, mut left) = (self.first / WORD, self.span + self.first % WORD);
        // The first word comes again at the end if the entries begin within it: then below them.
        let mut bits = u64::MAX << (self.first % WORD);
        while left > 0 {
            let mut entries = self.kept[word] & bits;
            self.kept[word] &= !bits;
            while entries != 0 {
                let at = word * WORD + entries.trailing_zeros() as usize;
                entries &= entries - 1;
                if at != to {
                    let page = self.pages[at];
                    self.pages[to] = page;
                    moved(page, place(to));
                }
                to = self.around(to + 1);
            }
            bits = u64::MAX;
            left = left.saturating_sub(WORD);
            word = if word + 1 == self.kept.len() { 0 } else { word + 1 };
        }
        (self.next, self.span) = (to, self.len);
        let end = self.first + self.len;
        let wraps = end.saturating_sub(self.pages.len());
        self.keep_all(self.first, end - wraps);
        self.keep_all(0, wraps);
    }

    /// Sets the bits of the places from `from` to before `end`.
    fn keep_all(&mut self, mut from: usize, end: usize) {
        while from < end {
            let bit = from % WORD;
            let count = (WORD - bit).min(end - from);
            self.kept[from / WORD] |= u64::MAX >> (WORD - count) << bit;
            from += count;
        }
    }

    /// Returns the first place with an entry from `at` on, around. There must be one.
    #[inline]
    fn next_kept(&self, at: usize) -> usize {
        let mut word = at / WORD;
        let mut entries = self.kept[word] & (u64::MAX << (at % WORD));
        while entries == 0 {
            word = if word + 1 == self.kept.len() { 0 } else { word + 1 };
            entries = self.kept[word];
        }
        word * WORD + entries.trailing_zeros() as usize
    }

    /// Returns how far a place is from the first.
    #[inline]
    fn offset(&self, at: usize) -> usize {
        if at >= self.first { at - self.first } else { at + self.pages.len() - self.first }
    }

    #[inline]
    fn around(&self, at: usize) -> usize {
        if at >= self.pages.len() { at - self.pages.len() } else { at }
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
    struct Placed {
        sequence: Sequence,
        places: HashMap<u32, u32>,
    }

    impl Placed {
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
            let (mut placed, mut model) = (Placed::default(), Vec::new());
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
                prop_assert!(places <= (PAGES as usize * PLACES_A_PAGE).next_multiple_of(WORD));
                if number % 16 == 0 {
                    prop_assert_eq!(placed.pages(), model.clone());
                }
            }
            prop_assert_eq!(placed.pages(), model);
        }
    }
}
