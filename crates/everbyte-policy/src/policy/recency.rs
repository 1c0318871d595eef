//! Pages in the order of their last use, kept with one store a use.
//!
//! An access log has one entry for each recent use, and a table has the place of each page's last
//! entry. Only that entry counts. So a use moves nothing, while a linked list changes the links of
//! four pages. In return a search for the oldest page skips stale entries, and the log is compacted
//! at four times its necessary length. Each entry is written once, and read twice on average at
//! most.
//!
//! Invariant: `last_use` of a page is 0 if it is not here, else 1 more than the place of the entry
//! of its last use. Entries before `oldest` are stale.

use super::storage::{Storage, Table};

/// Entries of the access log for each page, after which it is compacted.
const ENTRIES_A_PAGE: usize = 4;
/// Entries from which on compaction is worth its cost.
const ENTRIES_MIN: usize = 64;

/// Largest number of distinguishable entries.
const ENTRIES_MAX: usize = u32::MAX as usize - 1;

/// Pages by last use.
pub(super) struct Recency<S: Storage> {
    log: Vec<u32>,
    oldest: usize,
    last_use: S::Table<u32>,
    /// Length at which the access log is compacted next.
    full: usize,
}

impl<S: Storage> Recency<S> {
    pub(super) fn new(storage: S) -> Self {
        let last_use = storage.table();
        Self { log: Vec::new(), oldest: 0, last_use, full: ENTRIES_MIN }
    }

    /// Notes a use of a page, which may be new.
    #[inline]
    pub(super) fn touch(&mut self, page: u32) {
        // Before the push, so that a place always fits into 32 bits.
        if self.log.len() >= self.full {
            self.clear_up();
        }
        self.log.push(page);
        // This makes the former entry of the page stale. It stays where it is.
        self.last_use.set(page, place(self.log.len()));
    }

    /// Removes a page that is here.
    pub(super) fn remove(&mut self, page: u32) {
        // No entry has place 0, so all entries of the page are stale.
        self.last_use.set(page, 0);
    }

    /// Removes the page that was not used for longest.
    pub(super) fn pop_oldest(&mut self) -> Option<u32> {
        while let Some(&page) = self.log.as_slice().get(self.oldest) {
            // Even for a stale entry: each entry is skipped once at most.
            self.oldest += 1;
            if self.last_use.get(page) == place(self.oldest) {
                self.remove(page);
                return Some(page);
            }
        }
        None
    }

    /// Removes stale entries from the access log.
    #[cold]
    fn clear_up(&mut self) {
        let mut kept = 0;
        // In place: `kept` never passes `at`, so no unread entry is overwritten.
        for at in self.oldest..self.log.len() {
            let page = self.log[at];
            if self.last_use.get(page) == place(at + 1) {
                self.log[kept] = page;
                kept += 1;
                self.last_use.set(page, place(kept));
            }
        }
        self.log.truncate(kept);
        self.oldest = 0;
        // A multiple of the kept entries makes the cost of compactions constant for each use.
        self.full = kept.saturating_mul(ENTRIES_A_PAGE).clamp(ENTRIES_MIN, ENTRIES_MAX);
    }
}

/// Returns the value of `last_use` for the `count`th entry.
#[allow(clippy::cast_possible_truncation, reason = "at most ENTRIES_MAX + 1")]
fn place(count: usize) -> u32 {
    count as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::storage::{Dense, Sparse};
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
    fn is_a_list<S: Storage>(storage: S, steps: &[Step]) {
        let mut recency = Recency::new(storage);
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
            assert!(recency.log.len() <= ENTRIES_MIN.max(ENTRIES_A_PAGE * PAGES as usize));
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
