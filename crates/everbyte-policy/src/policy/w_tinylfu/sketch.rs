//! An estimate of pages' recent uses, in half a byte a counter.
//!
//! Four rows of counters. A use adds one to a page's counter in each row, and the smallest of them
//! is the estimate (Cormode and Muthukrishnan, "An improved data stream summary: the count-min
//! sketch and its applications", J. Algorithms 55(1), 2005). Counters stay at 15. After ten uses a
//! page of the cache all counters are halved, so that past popularity is forgotten (the "reset" of
//! TinyLFU).
//!
//! Invariant: an estimate is never below the number of uses since the last halving, up to 15.

use super::super::storage::spread;

pub(in super::super) const ROWS: usize = 4;
pub(in super::super) const COUNT_MAX: u8 = 15;
/// Uses a page of the cache between halvings.
const USES_A_PAGE: u64 = 10;
/// Counters a page of the cache in each row, at least: as many as Caffeine has in its four rows. With fewer, pages seen once
/// share counters with those that are used, and look like them.
const COUNTERS_A_PAGE: u32 = 4;
const WIDTH_MIN: u32 = 16;
/// The lower three bits of each counter.
const LOW_BITS: u64 = 0x7777_7777_7777_7777;

/// The sketch.
pub(super) struct Sketch {
    /// Sixteen counters a word.
    rows: [Vec<u64>; ROWS],
    pages: u32,
    uses: u64,
}

impl Sketch {
    /// Makes a sketch for a cache of this many pages.
    pub(super) fn new(pages: u32) -> Self {
        let words = width(pages) as usize / 16;
        Self { rows: std::array::from_fn(|_| vec![0; words]), pages, uses: 0 }
    }

    /// Counts a use.
    pub(super) fn note(&mut self, page: u32) {
        for row in 0..ROWS {
            let (word, shift) = self.place(row, page);
            let counter = (self.rows[row][word] >> shift) & u64::from(COUNT_MAX);
            if counter < u64::from(COUNT_MAX) {
                self.rows[row][word] += 1 << shift;
            }
        }
        // The paper's reset: halved counters let formerly popular pages fade.
        self.uses += 1;
        if self.uses >= uses_max(self.pages) {
            self.uses /= 2;
            for word in self.rows.iter_mut().flatten() {
                *word = (*word >> 1) & LOW_BITS;
            }
        }
    }

    /// Returns the page's estimated uses: the smallest of its counters.
    pub(super) fn estimate(&self, page: u32) -> u64 {
        let counters = (0..ROWS).map(|row| {
            let (word, shift) = self.place(row, page);
            (self.rows[row][word] >> shift) & u64::from(COUNT_MAX)
        });
        // Collisions only raise counters, so the smallest one is the nearest to the truth.
        counters.min().unwrap_or(0)
    }

    fn place(&self, row: usize, page: u32) -> (usize, u32) {
        let counter = place(row, page, width(self.pages));
        (counter as usize / 16, counter % 16 * 4)
    }
}

/// Returns the counters in a row, a power of two.
pub(in super::super) fn width(pages: u32) -> u32 {
    let counters = pages.saturating_mul(COUNTERS_A_PAGE).max(WIDTH_MIN);
    counters.checked_next_power_of_two().unwrap_or(1 << 31)
}

/// Returns the uses after which all counters are halved.
pub(in super::super) fn uses_max(pages: u32) -> u64 {
    USES_A_PAGE * u64::from(pages)
}

/// Returns a page's counter in a row of `width`.
pub(in super::super) fn place(row: usize, page: u32, width: u32) -> u32 {
    let hash = spread((row as u64) << 32 | u64::from(page)) >> 32;
    u32::try_from(hash).unwrap_or(0) & (width - 1)
}
