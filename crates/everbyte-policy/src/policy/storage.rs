//! Storage of policies' tables, by page number.
//!
//! A policy is written once, over tables and sets that are keyed by page number, and is given one
//! of two kinds of them:
//!
//! - [`Dense`], for a simulator: the pages of a trace are `0 .. n` without a gap, so a table is a
//!   flat array, and a set in the order of sectors is a bitmap with bitmaps above. [`AddressedPages`]
//!   also knows the gaps, for policies that weigh the costs of jumps.
//! - [`Sparse`], for a cache in use: page numbers are places on a device, and only few are cached
//!   (1 TiB has 2^28 pages; flat arrays would exceed the memory of the cache). A table is a hash
//!   map without default values, and a set is compressed. Memory grows with the cached or
//!   remembered pages, not with the device. Page numbers are 32 bits wide, which limits a cached
//!   device to 16 TiB.
//!
//! Handing out dense numbers to cached pages instead would lose the order of sectors; tables by
//! frame with a map from page to frame would cost the simulator a dependent load an access.
//!
//! Invariant: a policy does the same with both.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::bitmap::Bitmap;
use super::sparse_set::SparseSet;
use crate::access::{PageAddress, PageNo};
use crate::costs;

/// Pages of a region, as a power of two: 1 MiB.
const REGION_BITS: u32 = 8;

/// A value of a table.
pub trait Value: Copy + Default + PartialEq {}
impl<T: Copy + Default + PartialEq> Value for T {}

/// A value for every page, the default one until another is set.
pub trait Table<T: Value> {
    /// Returns the value of the page.
    fn get(&self, page: u32) -> T;
    /// Replaces the value of the page.
    fn set(&mut self, page: u32, value: T);
    /// Changes the value of the page.
    fn change(&mut self, page: u32, change: impl FnOnce(&mut T));
    /// Returns the value of the page, to be changed to any but the default one; nothing if it is the default
    /// one, and is not kept.
    fn get_mut(&mut self, page: u32) -> Option<&mut T>;
}

/// A set of pages in the order of their numbers.
pub trait PageSet {
    /// Returns true if the page is in the set.
    fn contains(&self, page: u32) -> bool;
    /// Inserts the page.
    fn insert(&mut self, page: u32);
    /// Removes the page.
    fn remove(&mut self, page: u32);
    /// Returns the first page that is not before `from`.
    fn next(&self, from: u32) -> Option<u32>;

    /// Returns the first page that is not before `from`, else the first of all.
    fn next_around(&self, from: u32) -> Option<u32> {
        self.next(from).or_else(|| self.next(0))
    }
}

/// A kind of tables and sets.
pub trait Storage: Copy {
    /// A value a page.
    type Table<T: Value>: Table<T>;
    /// An ordered set of pages.
    type Set: PageSet;

    /// Makes an empty table.
    fn table<T: Value>(self) -> Self::Table<T>;
    /// Makes an empty set.
    fn set(self) -> Self::Set;

    /// Returns true if the backing device does not jump from `before` to `page`.
    #[inline]
    fn follows(self, before: Option<u32>, page: u32) -> bool {
        before.is_some_and(|before| costs::are_near(before, page))
    }

    /// Returns the jumps of the backing device from `before` to `page`, 0 or 1.
    #[inline]
    fn jumps(self, before: Option<u32>, page: u32) -> f64 {
        f64::from(u8::from(!self.follows(before, page)))
    }

    /// Returns a number of the region of 1 MiB that the page is in.
    #[inline]
    fn region(self, page: u32) -> u64 {
        u64::from(page >> REGION_BITS)
    }
}

/// Pages `0 .. pages`, in flat arrays.
#[derive(Clone, Copy, Debug)]
pub struct Dense {
    /// Limit of page numbers.
    pub pages: u32,
}

impl Storage for Dense {
    type Table<T: Value> = Vec<T>;
    type Set = Bitmap;

    fn table<T: Value>(self) -> Vec<T> {
        vec![T::default(); self.pages as usize]
    }

    fn set(self) -> Bitmap {
        Bitmap::new(self.pages)
    }
}

impl<T: Value> Table<T> for Vec<T> {
    #[inline]
    fn get(&self, page: u32) -> T {
        self[page as usize]
    }

    #[inline]
    fn set(&mut self, page: u32, value: T) {
        self[page as usize] = value;
    }

    #[inline]
    fn change(&mut self, page: u32, change: impl FnOnce(&mut T)) {
        change(&mut self[page as usize]);
    }

    #[inline]
    fn get_mut(&mut self, page: u32) -> Option<&mut T> {
        Some(&mut self[page as usize])
    }
}

impl PageSet for Bitmap {
    #[inline]
    fn contains(&self, page: u32) -> bool {
        Self::contains(self, page)
    }

    #[inline]
    fn insert(&mut self, page: u32) {
        Self::insert(self, page);
    }

    #[inline]
    fn remove(&mut self, page: u32) {
        Self::remove(self, page);
    }

    #[inline]
    fn next(&self, from: u32) -> Option<u32> {
        Self::next(self, from)
    }
}

/// Pages with these addresses, in flat arrays, for a trace whose page numbers do not show the gaps.
#[derive(Clone, Copy, Debug)]
pub struct AddressedPages<'a>(pub &'a [PageAddress]);

impl AddressedPages<'_> {
    fn dense(self) -> Dense {
        Dense { pages: u32::try_from(self.0.len()).expect("page numbers are 32 bits wide") }
    }
}

impl Storage for AddressedPages<'_> {
    type Table<T: Value> = Vec<T>;
    type Set = Bitmap;

    fn table<T: Value>(self) -> Vec<T> {
        self.dense().table()
    }

    fn set(self) -> Bitmap {
        self.dense().set()
    }

    #[inline]
    fn follows(self, before: Option<u32>, page: u32) -> bool {
        costs::follows(self.0, before.map(PageNo), PageNo(page))
    }

    #[inline]
    fn region(self, page: u32) -> u64 {
        let PageAddress { device, page } = self.0[page as usize];
        page >> REGION_BITS ^ u64::from(device) << u32::BITS
    }
}

/// Any pages, in hash maps and compressed bitmaps.
#[derive(Clone, Copy, Debug)]
pub struct Sparse;

impl Storage for Sparse {
    type Table<T: Value> = HashMap<u32, T, BuildHasherDefault<PageHasher>>;
    type Set = SparseSet;

    fn table<T: Value>(self) -> Self::Table<T> {
        HashMap::default()
    }

    fn set(self) -> SparseSet {
        SparseSet::new()
    }
}

impl<T: Value> Table<T> for HashMap<u32, T, BuildHasherDefault<PageHasher>> {
    fn get(&self, page: u32) -> T {
        Self::get(self, &page).copied().unwrap_or_default()
    }

    fn set(&mut self, page: u32, value: T) {
        if value == T::default() {
            self.remove(&page);
        } else {
            self.insert(page, value);
        }
    }

    fn change(&mut self, page: u32, change: impl FnOnce(&mut T)) {
        if let Some(value) = self.get_mut(&page) {
            change(value);
            if *value == T::default() {
                self.remove(&page);
            }
        } else {
            let mut value = T::default();
            change(&mut value);
            self.set(page, value);
        }
    }

    fn get_mut(&mut self, page: u32) -> Option<&mut T> {
        Self::get_mut(self, &page)
    }
}

impl PageSet for SparseSet {
    fn contains(&self, page: u32) -> bool {
        Self::contains(self, page)
    }

    fn insert(&mut self, page: u32) {
        Self::insert(self, page);
    }

    fn remove(&mut self, page: u32) {
        Self::remove(self, page);
    }

    fn next(&self, from: u32) -> Option<u32> {
        self.range(from..).next()
    }
}

/// Another storage. Its tables have the places of a page next to its value: one look-up for both.
#[derive(Clone, Copy, Debug)]
pub struct PlacedStorage<S>(pub(super) S);

/// Entry of a table of [`PlacedStorage`]. The places mean nothing where the value is the default one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Record<T> {
    pub(super) value: T,
    /// Places in two sequences.
    pub(super) list: u32,
    pub(super) queue: u32,
}

/// A table of [`PlacedStorage`].
pub struct PlacedTable<S: Storage, T: Value>(pub(super) S::Table<Record<T>>);

impl<S: Storage> Storage for PlacedStorage<S> {
    type Table<T: Value> = PlacedTable<S, T>;
    type Set = S::Set;

    fn table<T: Value>(self) -> PlacedTable<S, T> {
        PlacedTable(self.0.table())
    }

    fn set(self) -> S::Set {
        self.0.set()
    }

    #[inline]
    fn follows(self, before: Option<u32>, page: u32) -> bool {
        self.0.follows(before, page)
    }

    #[inline]
    fn region(self, page: u32) -> u64 {
        self.0.region(page)
    }
}

impl<S: Storage, T: Value> Table<T> for PlacedTable<S, T> {
    #[inline]
    fn get(&self, page: u32) -> T {
        self.0.get(page).value
    }

    #[inline]
    fn set(&mut self, page: u32, value: T) {
        if value == T::default() {
            self.0.set(page, Record::default());
        } else {
            self.0.change(page, |record| record.value = value);
        }
    }

    #[inline]
    fn change(&mut self, page: u32, change: impl FnOnce(&mut T)) {
        self.0.change(page, |record| {
            change(&mut record.value);
            if record.value == T::default() {
                *record = Record::default();
            }
        });
    }

    #[inline]
    fn get_mut(&mut self, page: u32) -> Option<&mut T> {
        self.0.get_mut(page).map(|record| &mut record.value)
    }
}

/// Spreads page numbers over a hash map: a multiplication by the golden ratio and a fold. A client
/// can make collisions on purpose, and slows down only the volume that it writes to.
#[derive(Clone, Copy, Default, Debug)]
pub struct PageHasher(u64);

impl Hasher for PageHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, page: u32) {
        self.0 = spread(self.0 ^ u64::from(page));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Returns a number whose every bit depends on the bits of `key`.
pub(super) fn spread(key: u64) -> u64 {
    // The increment keeps key 0 from mapping to 0. The folds bring the high bits, which are the
    // best mixed, down to the bits that a table uses.
    let product = key.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (product ^ (product >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ (product >> 29)
}
