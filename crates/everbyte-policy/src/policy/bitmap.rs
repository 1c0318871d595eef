//! A set of small numbers with a fast search for the next one.
//!
//! A bitmap with bitmaps above it: bit `i` of a level says whether word `i` of the level below
//! has a bit set. Insertion, removal and search cost one word a level, 4 levels for 16 Mi numbers.
//!
//! Invariant: a bit of an upper level is set exactly if its word below is not 0.

/// Numbers of `0 .. limit`.
#[derive(Clone, Debug)]
pub struct Bitmap {
    /// The lowest level, a bit a number.
    words: Vec<u64>,
    /// The levels above it, from below.
    upper: Vec<Vec<u64>>,
}

impl Bitmap {
    /// Makes an empty set of numbers below `limit`.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        let words = (limit as usize).div_ceil(64).max(1);
        let mut upper = Vec::new();
        let mut above = words;
        while above > 1 {
            above = above.div_ceil(64);
            upper.push(vec![0; above]);
        }
        Self { words: vec![0; words], upper }
    }

    /// Returns true if the number, which must be below the limit, is in the set.
    #[inline]
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        self.words[number as usize / 64] >> (number % 64) & 1 == 1
    }

    /// Inserts the number, which must be below the limit.
    #[inline]
    pub fn insert(&mut self, number: u32) {
        let word = &mut self.words[number as usize / 64];
        let was_empty = *word == 0;
        *word |= 1 << (number % 64);
        // Only the first bit of a word changes the levels above. Dense sets seldom climb.
        if was_empty {
            self.insert_above(number);
        }
    }

    fn insert_above(&mut self, number: u32) {
        let mut at = number as usize / 64;
        for level in &mut self.upper {
            let word = &mut level[at / 64];
            let was_empty = *word == 0;
            *word |= 1 << (at % 64);
            // The levels above already know this word.
            if !was_empty {
                return;
            }
            at /= 64;
        }
    }

    /// Removes the number, which must be below the limit.
    #[inline]
    pub fn remove(&mut self, number: u32) {
        let word = &mut self.words[number as usize / 64];
        let had_some = *word != 0;
        *word &= !(1 << (number % 64));
        // Without `had_some` the removal of an absent number would climb for every empty word.
        if had_some && *word == 0 {
            self.remove_above(number);
        }
    }

    fn remove_above(&mut self, number: u32) {
        let mut at = number as usize / 64;
        for level in &mut self.upper {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            // The word still has numbers, so the levels above stay right.
            if *word != 0 {
                return;
            }
            at /= 64;
        }
    }

    /// Returns the smallest number that is not below `from`.
    #[inline]
    #[must_use]
    pub fn next(&self, from: u32) -> Option<u32> {
        // The word of `from` first: most searches of a dense set end here.
        let rest = self.words.get(from as usize / 64)? & (u64::MAX << (from % 64));
        if rest != 0 {
            return Some(from / 64 * 64 + rest.trailing_zeros());
        }
        self.next_above(from)
    }

    /// Returns the smallest number in a word after that of `from`.
    fn next_above(&self, from: u32) -> Option<u32> {
        let mut at = from as usize / 64 + 1;
        for (height, level) in self.upper.iter().enumerate() {
            let rest = level.get(at / 64)? & (u64::MAX << (at % 64));
            if rest != 0 {
                return Some(self.descend(height, at / 64 * 64 + rest.trailing_zeros() as usize));
            }
            // The rest of this upper word is empty, so the search goes on in the next one a level
            // higher.
            at = at / 64 + 1;
        }
        None
    }

    /// Returns the smallest number below bit `at` of an upper level.
    fn descend(&self, height: usize, mut at: usize) -> u32 {
        for level in self.upper[..height].iter().rev() {
            at = at * 64 + level[at].trailing_zeros() as usize;
        }
        at = at * 64 + self.words[at].trailing_zeros() as usize;
        u32::try_from(at).expect("only numbers below a u32 limit are put in")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::Bitmap;

    proptest! {
        #[test]
        fn is_a_set_of_numbers(
            limit in 1_u32..300_000,
            steps in proptest::collection::vec((0..3_u8, any::<u32>()), 1..200),
        ) {
            let (mut bitmap, mut model) = (Bitmap::new(limit), BTreeSet::new());
            for (what, number) in steps {
                let number = number % limit;
                match what {
                    0 => { bitmap.insert(number); model.insert(number); }
                    1 => { bitmap.remove(number); model.remove(&number); }
                    _ => {
                        bitmap.insert(limit - 1);
                        model.insert(limit - 1);
                    }
                }
                prop_assert_eq!(bitmap.contains(number), model.contains(&number));
                for from in [number, 0, number / 2, number.saturating_add(1)] {
                    prop_assert_eq!(bitmap.next(from), model.range(from..).next().copied());
                }
            }
        }
    }
}
