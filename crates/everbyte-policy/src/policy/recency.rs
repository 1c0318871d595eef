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
const ENTRIES_MIN: usize = 64;

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::space::{Dense, Sparse};
    use super::*;

    const PAGES: u32 = 50;

    #[derive(Clone, Debug)]
    enum Step {
        Touch(u32),
        Remove(u32),
        Pop,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            20 => (0..PAGES).prop_map(Step::Touch),
            1 => (0..PAGES).prop_map(Step::Remove),
            3 => Just(Step::Pop),
        ];
        proptest::collection::vec(step, 1..2000)
    }

    /// Against a list, oldest first.
    fn is_a_list<S: Space>(space: S, steps: &[Step]) {
        let mut recency = Recency::new(space);
        let mut model: Vec<u32> = Vec::new();
        for step in steps {
            match step {
                Step::Touch(page) => {
                    recency.touch(*page);
                    model.retain(|other| other != page);
                    model.push(*page);
                }
                Step::Remove(page) => {
                    recency.remove(*page);
                    model.retain(|other| other != page);
                }
                Step::Pop => {
                    let oldest = (!model.is_empty()).then(|| model.remove(0));
                    assert_eq!(recency.pop_oldest(), oldest);
                }
            }
            assert!(recency.diary.len() <= ENTRIES_MIN.max(ENTRIES_A_PAGE * PAGES as usize));
        }
        while let Some(page) = recency.pop_oldest() {
            assert_eq!(page, model.remove(0));
        }
        assert!(model.is_empty());
    }

    proptest! {
        #[test]
        fn pages_leave_in_the_order_of_their_last_use(steps in steps()) {
            is_a_list(Dense { pages: PAGES }, &steps);
            is_a_list(Sparse, &steps);
        }
    }
}
