//! The standard's random inputs: NURand, strings, last names.
//!
//! Invariant: the same seed gives the same inputs.

use rand::distr::{Alphanumeric, SampleString};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Constants of NURand (clause 2.1.6). The constant of last names differs between loading and running by an amount
/// within clause 2.1.6.1.
const C_CUSTOMER: u32 = 259;
const C_ITEM: u32 = 7911;
const C_LAST_LOADING: u32 = 157;
const C_LAST_RUNNING: u32 = 71;

const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

/// The random source of TPC-C.
#[derive(Debug)]
pub(super) struct TpccRng {
    rng: SmallRng,
    c_last: u32,
}

impl TpccRng {
    pub(super) fn for_loading(seed: u64) -> Self {
        Self { rng: SmallRng::seed_from_u64(seed), c_last: C_LAST_LOADING }
    }

    pub(super) fn for_running(seed: u64) -> Self {
        Self { rng: SmallRng::seed_from_u64(!seed), c_last: C_LAST_RUNNING }
    }

    /// A number from `low` to `high`, both included.
    pub(super) fn uniform(&mut self, low: u32, high: u32) -> u32 {
        self.rng.random_range(low..=high)
    }

    /// Draws: returns true in `percent` cases of a hundred.
    pub(super) fn percent(&mut self, percent: u32) -> bool {
        self.rng.random_ratio(percent, 100)
    }

    /// A number from `low` to `high` except `other`, or `low` if the range has one number.
    pub(super) fn other_than(&mut self, other: u32, low: u32, high: u32) -> u32 {
        if low == high {
            return low;
        }
        let drawn = self.uniform(low, high - 1);
        if drawn >= other { drawn + 1 } else { drawn }
    }

    /// The non-uniform number of clause 2.1.6.
    fn nurand(&mut self, a: u32, c: u32, low: u32, high: u32) -> u32 {
        ((self.uniform(0, a) | self.uniform(low, high)) + c) % (high - low + 1) + low
    }

    /// A customer of `count`.
    pub(super) fn customer(&mut self, count: u32) -> u32 {
        self.nurand(1023, C_CUSTOMER, 1, count)
    }

    /// An item of `count`.
    pub(super) fn item(&mut self, count: u32) -> u32 {
        self.nurand(8191, C_ITEM, 1, count)
    }

    /// The number of a last name, of `count`.
    pub(super) fn last_name_of(&mut self, count: u32) -> u32 {
        self.nurand(255, self.c_last, 0, count - 1)
    }

    /// A string of `min` to `max` letters and digits.
    pub(super) fn text(&mut self, min: usize, max: usize) -> String {
        let len = self.rng.random_range(min..=max);
        Alphanumeric.sample_string(&mut self.rng, len)
    }

    /// A string of `len` digits.
    pub(super) fn digits(&mut self, len: usize) -> String {
        (0..len).map(|_| char::from(self.rng.random_range(b'0'..=b'9'))).collect()
    }

    /// A string of `min` to `max` letters. One string of ten contains ORIGINAL (clause 4.3.3.1).
    pub(super) fn data(&mut self, min: usize, max: usize) -> String {
        let mut data = self.text(min, max);
        if self.percent(10) {
            let at = self.rng.random_range(0..=data.len() - 8);
            data.replace_range(at..at + 8, "ORIGINAL");
        }
        data
    }

    /// Two streets, a city, a state, and a zip of four digits and 11111 (clause 4.3.2.7).
    pub(super) fn address(&mut self) -> [String; 5] {
        let [street_1, street_2, city] = [(); 3].map(|()| self.text(10, 20));
        [street_1, street_2, city, self.text(2, 2), self.digits(4) + "11111"]
    }

    pub(super) fn shuffle<T>(&mut self, values: &mut [T]) {
        rand::seq::SliceRandom::shuffle(values, &mut self.rng);
    }
}

/// The last name of a number below 1000 (clause 4.3.2.3).
pub(super) fn last_name(number: u32) -> String {
    [number / 100, number / 10, number]
        .into_iter()
        .filter_map(|digit| usize::try_from(digit % 10).ok())
        .map(|digit| SYLLABLES[digit])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nurand_stays_in_range_and_is_skewed() {
        let mut rng = TpccRng::for_running(1);
        let mut counts = vec![0_u32; 3001];
        for _ in 0..300_000 {
            let drawn = rng.customer(3000);
            assert!((1..=3000).contains(&drawn));
            counts[usize::try_from(drawn).unwrap()] += 1;
        }
        counts.sort_unstable();
        // Uniform, the upper tenth would have about a tenth of the draws.
        let upper: u32 = counts[2701..].iter().sum();
        assert!(upper > 60_000, "{upper}");
        for count in [1, 2, 99, 100_000] {
            assert!((1..=count).contains(&rng.item(count)));
            assert!((0..count).contains(&rng.last_name_of(count)));
        }
    }

    #[test]
    fn nurand_constants_follow_clause_2_1_6() {
        let delta = C_LAST_LOADING.abs_diff(C_LAST_RUNNING);
        assert!((65..=119).contains(&delta) && delta != 96 && delta != 112);
    }

    #[test]
    fn last_names_follow_the_standard() {
        assert_eq!(last_name(371), "PRICALLYOUGHT");
        assert_eq!(last_name(40), "BARPRESBAR");
        assert_eq!(last_name(999), "EINGEINGEING");
    }

    #[test]
    fn strings_have_their_lengths_and_letters() {
        let mut rng = TpccRng::for_loading(2);
        let mut originals = 0;
        for _ in 0..2000 {
            let text = rng.text(8, 16);
            assert!(
                (8..=16).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric())
            );
            let digits = rng.digits(9);
            assert!(digits.len() == 9 && digits.bytes().all(|byte| byte.is_ascii_digit()));
            let data = rng.data(26, 50);
            assert!((26..=50).contains(&data.len()));
            originals += u32::from(data.contains("ORIGINAL"));
        }
        assert!((120..=280).contains(&originals), "{originals}");
    }

    #[test]
    fn another_differs_unless_alone() {
        let mut rng = TpccRng::for_running(3);
        for other in 1..=4 {
            for _ in 0..100 {
                let drawn = rng.other_than(other, 1, 4);
                assert!(drawn != other && (1..=4).contains(&drawn));
            }
        }
        assert_eq!(rng.other_than(1, 1, 1), 1);
    }
}
