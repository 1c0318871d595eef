//! The random numbers of the NAS Parallel Benchmarks: a linear congruential generator modulo 2^46.

const SEED: u64 = 314_159_265;
const FACTOR: u64 = 1_220_703_125;
const MASK: u64 = (1 << 46) - 1;
/// 2^-46.
const SCALE: f64 = 1.0 / 70_368_744_177_664.0;

/// The stream of numbers.
pub(super) struct Random(u64);

impl Random {
    /// The stream after `steps` numbers.
    pub(super) fn after(steps: usize) -> Self {
        let (mut state, mut power, mut left) = (SEED, FACTOR, steps);
        while left > 0 {
            if left % 2 == 1 {
                state = state.wrapping_mul(power) & MASK;
            }
            power = power.wrapping_mul(power) & MASK;
            left /= 2;
        }
        Self(state)
    }

    /// The next number, above 0 and below 1.
    pub(super) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(FACTOR) & MASK;
        crate::stats::as_f64(self.0) * SCALE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_stream_seeks() {
        let mut random = Random::after(0);
        for steps in 0..100 {
            let ahead = Random::after(steps).next();
            assert_eq!(random.next().to_bits(), ahead.to_bits());
        }
    }
}
