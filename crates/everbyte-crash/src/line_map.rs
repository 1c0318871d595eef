//! Values of some lines of a medium, found without a search.
//!
//! Explorations look up a line at every load. Most loads are of one word, and most lines have no
//! value. Costs of a map depend on its values, except four bytes for every 64 lines of the medium.

use crate::address::index;

/// Lines of a group.
const GROUP: u64 = 64;

/// A number for each line of a group.
type Table = [u32; 64];

/// A value for each of some lines.
#[derive(Clone, Debug)]
pub(crate) struct LineMap<T> {
    /// Of each group, the number of its table from 1 on, or 0.
    tables_of: Vec<u32>,
    /// Of each line of a group, the number of its value from 1 on, or 0.
    tables: Vec<Table>,
    values: Vec<(u64, T)>,
}

/// The number of the last of `values`, which are not empty.
fn number<T>(values: &[T]) -> u32 {
    u32::try_from(values.len()).expect("so many lines no simulated medium has")
}

impl<T> LineMap<T> {
    /// An empty map for a medium of `lines` lines.
    pub(crate) fn new(lines: u64) -> Self {
        let groups = index(lines.div_ceil(GROUP));
        Self { tables_of: vec![0; groups], tables: Vec::new(), values: Vec::new() }
    }

    /// Returns true if no line has a value.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The place of the line's value.
    fn place(&self, line: u64) -> Option<usize> {
        let table = (self.tables_of[index(line / GROUP)] as usize).checked_sub(1)?;
        (self.tables[table][index(line % GROUP)] as usize).checked_sub(1)
    }

    /// Returns true if `line` has a value.
    pub(crate) fn contains(&self, line: u64) -> bool {
        self.place(line).is_some()
    }

    /// The value of `line`.
    pub(crate) fn get(&self, line: u64) -> Option<&T> {
        self.place(line).map(|place| &self.values[place].1)
    }

    /// The value of `line`.
    pub(crate) fn get_mut(&mut self, line: u64) -> Option<&mut T> {
        self.place(line).map(|place| &mut self.values[place].1)
    }

    /// The value of `line`, or `made` if it has none yet.
    pub(crate) fn get_or_insert_with(&mut self, line: u64, made: impl FnOnce() -> T) -> &mut T {
        let place = self.place(line).unwrap_or_else(|| self.push(line, made()));
        &mut self.values[place].1
    }

    /// Gives `line` this value.
    pub(crate) fn insert(&mut self, line: u64, value: T) {
        match self.place(line) {
            Some(place) => self.values[place].1 = value,
            None => _ = self.push(line, value),
        }
    }

    fn push(&mut self, line: u64, value: T) -> usize {
        let table = &mut self.tables_of[index(line / GROUP)];
        if *table == 0 {
            self.tables.push([0; 64]);
            *table = number(&self.tables);
        }
        self.values.push((line, value));
        self.tables[*table as usize - 1][index(line % GROUP)] = number(&self.values);
        self.values.len() - 1
    }

    /// The first line of `next ..= last` with a value here or in `other`.
    pub(crate) fn next_with<U>(&self, other: &LineMap<U>, mut next: u64, last: u64) -> Option<u64> {
        while next <= last {
            let group = index(next / GROUP);
            if self.tables_of[group] == 0 && other.tables_of[group] == 0 {
                next = (next / GROUP + 1) * GROUP;
            } else if self.contains(next) || other.contains(next) {
                return Some(next);
            } else {
                next += 1;
            }
        }
        None
    }

    /// Every line with a value, and the value, in arbitrary order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.values.iter().map(|(line, value)| (*line, value))
    }

    /// The same.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        self.values.iter_mut().map(|(line, value)| (*line, value))
    }

    /// Drops the values for which `keeps` returns false.
    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(u64, &mut T) -> bool) {
        let values = std::mem::take(&mut self.values);
        self.tables.clear();
        self.tables_of.fill(0);
        for (line, mut value) in values {
            if keeps(line, &mut value) {
                self.push(line, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map with the values of `lines`, each its line's number.
    fn map_of(lines: &[u64]) -> LineMap<u64> {
        let mut map = LineMap::new(1000);
        lines.iter().for_each(|&line| map.insert(line, line));
        map
    }

    #[test]
    fn line_has_its_last_value() {
        let mut map = map_of(&[0, 63, 64, 999, 500]);
        map.insert(64, 7);
        *map.get_or_insert_with(999, || unreachable!()) += 1;
        assert_eq!(*map.get_or_insert_with(1, || 5), 5);
        let found: Vec<u64> = (0..1000).filter_map(|line| map.get(line).copied()).collect();
        assert_eq!(found, [0, 5, 63, 7, 500, 1000]);
        assert_eq!(map.iter().count(), 6);
    }

    #[test]
    fn next_line_is_found_in_either_map() {
        let (one, other) = (map_of(&[3, 64, 700]), map_of(&[3, 130]));
        let next = |from, last| one.next_with(&other, from, last);
        assert_eq!([next(0, 999), next(4, 999), next(65, 999)], [Some(3), Some(64), Some(130)]);
        assert_eq!([next(131, 999), next(131, 699), next(701, 999)], [Some(700), None, None]);
    }

    #[test]
    fn retain_drops_only_the_rejected_lines() {
        let mut map = map_of(&[5, 6, 300, 301]);
        map.retain(|line, _| line % 2 == 0);
        let found: Vec<u64> = (0..1000).filter_map(|line| map.get(line).copied()).collect();
        assert_eq!(found, [6, 300]);
        assert!(!map.is_empty());
        map.retain(|_, _| false);
        assert!(map.is_empty() && !map.contains(6));
    }
}
