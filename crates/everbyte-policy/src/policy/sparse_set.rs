//! A set of any page numbers, ascending, in little memory.
//!
//! Invariant: `len` is the number of pages in `bitmap`. The bitmap would have to sum it over all
//! its parts.

use std::ops::RangeBounds;

use roaring::RoaringBitmap;

/// Any pages, as compressed bitmaps. A page in a dense area takes at most two bytes. A single page
/// among 65,536 takes a whole part.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct SparseSet {
    bitmap: RoaringBitmap,
    len: usize,
}

impl SparseSet {
    /// Makes an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of pages.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if the page is in the set.
    #[inline]
    #[must_use]
    pub fn contains(&self, page: u32) -> bool {
        self.bitmap.contains(page)
    }

    /// Inserts the page. Returns false if it was there.
    pub fn insert(&mut self, page: u32) -> bool {
        let is_new = self.bitmap.insert(page);
        self.len += usize::from(is_new);
        is_new
    }

    /// Removes the page. Returns true if it was there.
    pub fn remove(&mut self, page: u32) -> bool {
        let was_there = self.len > 0 && self.bitmap.remove(page);
        self.len -= usize::from(was_there);
        was_there
    }

    /// Returns all pages, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.bitmap.iter()
    }

    /// Returns the pages in a range, ascending.
    pub fn range(&self, range: impl RangeBounds<u32>) -> impl Iterator<Item = u32> {
        self.bitmap.range(range)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::SparseSet;

    /// Most pages lie together, so that each kind of part is met.
    fn page() -> impl Strategy<Value = u32> {
        prop_oneof![8 => 0..6000_u32, 1 => any::<u32>()]
    }

    proptest! {
        #[test]
        fn is_a_set_of_numbers(
            filled in 0..6000_u32,
            steps in proptest::collection::vec((any::<bool>(), page()), 1..300),
        ) {
            let (mut set, mut model) = (SparseSet::new(), BTreeSet::new());
            for page in 0..filled {
                prop_assert!(set.insert(page) && model.insert(page));
            }
            for (is_inserted, page) in steps {
                match is_inserted {
                    true => prop_assert_eq!(set.insert(page), model.insert(page)),
                    false => prop_assert_eq!(set.remove(page), model.remove(&page)),
                }
                prop_assert_eq!(set.contains(page), model.contains(&page));
                prop_assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(set.range(page..).next(), model.range(page..).next().copied());
            }
            prop_assert!(set.iter().eq(model.iter().copied()));
        }
    }
}
