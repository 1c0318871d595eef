//! Free ranges of numbers, and first-fit search.
//!
//! First fit by address. Invariant: ranges neither touch nor overlap. Parts freed separately therefore merge
//! into one range.

use std::collections::BTreeMap;
use std::ops::Range;

/// Free ranges of numbers, such as addresses, for one thread at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FreeRanges {
    /// Start and end of each.
    by_start: BTreeMap<usize, usize>,
}

impl FreeRanges {
    /// All of `range` is free. An empty range adds no free numbers.
    #[must_use]
    pub fn new(range: Range<usize>) -> Self {
        let range = (!range.is_empty()).then_some((range.start, range.end));
        Self { by_start: range.into_iter().collect() }
    }

    /// Takes the first `len` free numbers, at least 1, from a multiple of `align`, at least 1.
    pub fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        let found = self.by_start.iter().find_map(|(&start, &end)| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(len)? <= end).then_some((start, end, at))
        });
        let (start, end, at) = found?;
        self.cut(start, end, at..at + len);
        Some(at)
    }

    /// Takes exactly `range`, if all of it is free.
    pub fn take_at(&mut self, range: Range<usize>) -> bool {
        if range.is_empty() {
            return true;
        }
        // Ranges never overlap, so only the last one at or before the start can contain the range.
        let Some((&start, &end)) = self.by_start.range(..=range.start).next_back() else {
            return false;
        };
        if range.end > end {
            return false;
        }
        self.cut(start, end, range);
        true
    }

    /// The free parts of `range`, in order.
    #[must_use]
    pub fn within(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        // A range beginning before `range` may reach into it.
        let before = self.by_start.range(..range.start).next_back();
        let from =
            before.into_iter().chain(self.by_start.range(range.start..range.end.max(range.start)));
        from.map(|(&start, &end)| start.max(range.start)..end.min(range.end))
            .filter(|part| !part.is_empty())
            .collect()
    }

    fn cut(&mut self, start: usize, end: usize, taken: Range<usize>) {
        self.by_start.remove(&start);
        if start < taken.start {
            self.by_start.insert(start, taken.start);
        }
        if taken.end < end {
            self.by_start.insert(taken.end, end);
        }
    }

    /// Makes `range` free. Free parts stay free. Returns the count of numbers used before the call.
    pub fn give(&mut self, range: Range<usize>) -> usize {
        if range.is_empty() {
            return 0;
        }
        let (mut start, mut end) = (range.start, range.end);
        let mut fresh = end - start;
        let before = self.by_start.range(..start).next_back().map(|(&s, &e)| (s, e));
        // Ranges that only touch are merged too: later requests may need the whole length.
        let touching: Vec<(usize, usize)> = before
            .into_iter()
            .chain(self.by_start.range(start..=end).map(|(&s, &e)| (s, e)))
            .filter(|&(s, e)| e >= start && s <= end)
            .collect();
        for (s, e) in touching {
            fresh -= e.min(range.end).saturating_sub(s.max(range.start));
            self.by_start.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.by_start.insert(start, end);
        fresh
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPACE: usize = 64;

    #[derive(Clone, Debug)]
    enum Call {
        Take { len: usize, align: usize },
        TakeAt(Range<usize>),
        Give(Range<usize>),
        Within(Range<usize>),
    }

    fn range() -> impl Strategy<Value = Range<usize>> {
        (0..SPACE, 0..SPACE).prop_map(|(a, b)| a.min(b)..a.max(b))
    }

    fn call() -> impl Strategy<Value = Call> {
        prop_oneof![
            (1..20_usize, 0..4_u32).prop_map(|(len, align)| Call::Take { len, align: 1 << align }),
            range().prop_map(Call::TakeAt),
            range().prop_map(Call::Give),
            range().prop_map(Call::Within),
        ]
    }

    /// Makes the call on a table, too, and compares.
    fn run(call: Call, ranges: &mut FreeRanges, table: &mut [bool; SPACE]) {
        match call {
            Call::Take { len, align } => {
                let mut starts = (0..SPACE).step_by(align);
                let fits = |at: &usize| {
                    table.get(*at..at + len).is_some_and(|part| part.iter().all(|free| *free))
                };
                let expected = starts.find(fits);
                assert_eq!(ranges.take(len, align), expected);
                if let Some(at) = expected {
                    table[at..at + len].fill(false);
                }
            }
            Call::TakeAt(range) => {
                let is_free = table[range.clone()].iter().all(|free| *free);
                assert_eq!(ranges.take_at(range.clone()), is_free);
                if is_free {
                    table[range].fill(false);
                }
            }
            Call::Give(range) => {
                let fresh = table[range.clone()].iter().filter(|free| !**free).count();
                assert_eq!(ranges.give(range.clone()), fresh);
                table[range].fill(true);
            }
            Call::Within(range) => {
                let found = ranges.within(&range).into_iter().flatten();
                let expected = range.filter(|&number| table[number]);
                assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            }
        }
    }

    proptest! {
        #[test]
        fn ranges_match_table(calls in prop::collection::vec(call(), 0..200)) {
            let (mut ranges, mut table) = (FreeRanges::new(0..SPACE), [true; SPACE]);
            for call in calls {
                run(call, &mut ranges, &mut table);
            }
            ranges.give(0..SPACE);
            prop_assert_eq!(ranges, FreeRanges::new(0..SPACE));
        }
    }
}
