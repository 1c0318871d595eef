//! A random source that is the same everywhere and for ever.

/// Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014
/// (`SplitMix64`). Small, and good enough to choose pages.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): fixed here, so that traces never change
        // with a crate.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Draws a number below `end`, which is at least 1.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        // Lemire's multiplication: no division. Its bias is below 2^-32 for the ends used here.
        let wide = u128::from(self.next()) * u128::from(end);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// Draws a number in `from..=to`.
    pub(super) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// Draws: returns true in `percent` of a hundred cases.
    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Draws a number in `0.0..1.0`.
    #[allow(clippy::cast_precision_loss, reason = "53 bits fit")]
    fn fraction(&mut self) -> f64 {
        // 53 bits, as many as the mantissa has.
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Ranks by Zipf's law: rank `i` is as likely as `1 / (i + 1)^skew`.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    /// The sums of the ranks' weights up to each rank, this included.
    sums: Vec<f64>,
}

impl Zipf {
    /// Makes the law over `ranks` ranks, at least 1.
    pub(super) fn new(ranks: u64, skew: f64) -> Self {
        let mut sum = 0.0;
        #[allow(clippy::cast_precision_loss, reason = "ranks are below 2^32")]
        let weights = (1..=ranks).map(|rank| (rank as f64).powf(-skew));
        let sums = weights
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        Self { sums }
    }

    pub(super) fn rank(&self, random: &mut Random) -> u64 {
        let total = self.sums.last().copied().unwrap_or(0.0);
        let wanted = random.fraction() * total;
        let rank = self.sums.partition_point(|&sum| sum <= wanted);
        rank.min(self.sums.len().saturating_sub(1)) as u64
    }
}
