//! Access patterns over pages with verified contents.
//!
//! Invariants: each page belongs to one thread, and the thread counts its stores to the page. The first word of a
//! page holds its number and the count. The touched pages of a pattern depend only on its seed.

use anyhow::{Result, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};

use super::words::{PAGE_WORDS, Words};
use crate::stats::as_f64;

/// Pages from one access of the strided pattern to the next.
const STRIDE: usize = 8;
/// Skew of the zipf pattern.
const SKEW: f64 = 0.99;
/// Spreads frequent pages. Odd, so it is coprime to every power of two.
const SPREAD: usize = 0x9E37_79B1;
const COUNT_BITS: u32 = 24;

/// Order of the touched pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Pattern {
    Sequential,
    /// Every eighth page. Eight rounds touch all pages.
    Strided,
    Random,
    /// Random, a few pages most often.
    Zipf,
}

impl Pattern {
    pub(super) const ALL: [Self; 4] = [Self::Sequential, Self::Strided, Self::Random, Self::Zipf];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Strided => "strided",
            Self::Random => "random",
            Self::Zipf => "zipf",
        }
    }
}

/// The next page of a pattern.
struct Walk {
    pattern: Pattern,
    pages: usize,
    taken: usize,
    random: SmallRng,
    zipf: Zipf<f64>,
}

impl Walk {
    fn new(pattern: Pattern, pages: usize, seed: u64) -> Result<Self> {
        let zipf = Zipf::new(as_f64(pages as u64), SKEW)?;
        Ok(Self { pattern, pages, taken: 0, random: SmallRng::seed_from_u64(seed), zipf })
    }

    fn next(&mut self) -> usize {
        let at = self.taken;
        self.taken += 1;
        match self.pattern {
            Pattern::Sequential => at % self.pages,
            Pattern::Strided => {
                // Each round starts one page later, so `STRIDE` rounds touch every page.
                let in_round = self.pages / STRIDE;
                at % in_round * STRIDE + at / in_round % STRIDE
            }
            Pattern::Random => self.random.random_range(0..self.pages),
            // Adjacent frequent pages would come in by one read-ahead.
            Pattern::Zipf => rank(self.zipf.sample(&mut self.random)) * SPREAD % self.pages,
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank is a whole number from 1 to the number of pages"
)]
fn rank(sample: f64) -> usize {
    sample as usize - 1
}

/// The pages of one thread, and the number of its stores to each page.
pub(super) struct Owner<'a> {
    words: Words<'a>,
    stored: Vec<u32>,
}

impl<'a> Owner<'a> {
    /// Splits memory among threads. Each thread fills its part.
    pub(super) fn fill(words: Words<'a>, threads: usize) -> Vec<Self> {
        let share = words.pages() / threads;
        let mut rest = words;
        let parts = (0..threads).map(|_| {
            let (part, behind) = rest.split_at(share * PAGE_WORDS);
            rest = behind;
            part
        });
        std::thread::scope(|scope| {
            let fill = |words: Words<'a>| {
                let mut owner = Self { words, stored: vec![0; share] };
                (0..share).for_each(|page| owner.fill_page(page));
                owner
            };
            let running: Vec<_> = parts.map(|part| scope.spawn(move || fill(part))).collect();
            running
                .into_iter()
                .map(|thread| thread.join().expect("filling does not panic"))
                .collect()
        })
    }

    fn fill_page(&mut self, page: usize) {
        // Half of the page is random, so it compresses about 2:1. The seed lets the check repeat the words.
        let mut random = SmallRng::seed_from_u64(page as u64);
        for word in PAGE_WORDS / 2..PAGE_WORDS {
            self.words.store(page * PAGE_WORDS + word, random.random());
        }
        self.store(page);
    }

    fn store(&mut self, page: usize) {
        self.stored[page] += 1;
        self.words.store(page * PAGE_WORDS, tag(page, self.stored[page]));
    }

    fn check(&self, page: usize) -> Result<()> {
        let (got, want) = (self.words.load(page * PAGE_WORDS), tag(page, self.stored[page]));
        ensure!(got == want, "page {page} holds {got:#x} instead of {want:#x}");
        Ok(())
    }

    /// Stores to `count` pages, or loads and checks them.
    ///
    /// # Errors
    /// A page has wrong contents.
    pub(super) fn touch(
        &mut self,
        pattern: Pattern,
        stores: bool,
        count: u64,
        seed: u64,
    ) -> Result<()> {
        let mut walk = Walk::new(pattern, self.words.pages(), seed)?;
        for _ in 0..count {
            match (walk.next(), stores) {
                (page, true) => self.store(page),
                (page, false) => self.check(page)?,
            }
        }
        Ok(())
    }

    /// Checks all written words of every page.
    ///
    /// # Errors
    /// As [`touch`](Self::touch).
    pub(super) fn check_all(&self) -> Result<()> {
        for page in 0..self.words.pages() {
            self.check(page)?;
            let mut random = SmallRng::seed_from_u64(page as u64);
            for word in PAGE_WORDS / 2..PAGE_WORDS {
                let want: u64 = random.random();
                let got = self.words.load(page * PAGE_WORDS + word);
                ensure!(
                    got == want,
                    "word {word} of page {page} holds {got:#x} instead of {want:#x}"
                );
            }
        }
        Ok(())
    }
}

fn tag(page: usize, stored: u32) -> u64 {
    (page as u64 + 1) << COUNT_BITS | u64::from(stored)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn walks_touch_every_page_once() {
        for pattern in [Pattern::Sequential, Pattern::Strided] {
            let mut walk = Walk::new(pattern, 64, 1).unwrap();
            let turn: BTreeSet<usize> = (0..64).map(|_| walk.next()).collect();
            assert_eq!(turn, (0..64).collect(), "{pattern:?}");
        }
    }

    #[test]
    fn zipf_walk_stays_in_range_and_is_skewed() {
        let mut walk = Walk::new(Pattern::Zipf, 1024, 1).unwrap();
        let mut counts = vec![0; 1024];
        (0..10_000).for_each(|_| counts[walk.next()] += 1);
        assert!(counts.iter().max().unwrap() > &1000);
    }

    #[test]
    fn lost_page_is_detected() {
        let memory: Vec<AtomicU64> =
            std::iter::repeat_with(|| AtomicU64::new(0)).take(64 * PAGE_WORDS).collect();
        let mut owners = Owner::fill(Words::of(&memory), 2);
        for owner in &mut owners {
            owner.touch(Pattern::Random, true, 100, 1).unwrap();
            owner.touch(Pattern::Random, false, 100, 2).unwrap();
            owner.check_all().unwrap();
        }
        memory[3 * PAGE_WORDS - 1].store(0, Relaxed);
        assert!(owners[0].check_all().is_err());
        memory[40 * PAGE_WORDS].store(0, Relaxed);
        assert!(owners[1].touch(Pattern::Sequential, false, 32, 0).is_err());
    }
}
