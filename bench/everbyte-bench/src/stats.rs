//! Medians and spread.
//!
//! Invariants: statistics are of at least one figure, and all figures are finite.

use serde::Serialize;

/// Scatter of the figures of several rounds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    /// First quartile.
    pub(crate) q1: f64,
    /// Third quartile.
    pub(crate) q3: f64,
    pub(crate) max: f64,
    /// Rounds.
    pub(crate) rounds: usize,
}

/// The median of `figures` and their spread; `None` without figures, or if one is not finite.
pub(crate) fn summarise(figures: &[f64]) -> Option<(f64, Spread)> {
    let mut sorted = figures.to_vec();
    if sorted.is_empty() || sorted.iter().any(|figure| !figure.is_finite()) {
        return None;
    }
    sorted.sort_by(f64::total_cmp);
    let spread = Spread {
        min: sorted[0],
        q1: quantile(&sorted, 1),
        q3: quantile(&sorted, 3),
        max: sorted[sorted.len() - 1],
        rounds: sorted.len(),
    };
    Some((quantile(&sorted, 2), spread))
}

/// The quantile `quarters` / 4 of sorted figures, interpolated between neighbors.
fn quantile(sorted: &[f64], quarters: usize) -> f64 {
    let steps = (sorted.len() - 1) * quarters;
    let (below, part) = (steps / 4, steps % 4);
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * as_f64(part as u64) / 4.0
}

/// `count` as a number with a fraction: exact below 2^53, and no count here is larger.
#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds of one run stay below 2^53")]
pub(crate) fn as_f64(count: u64) -> f64 {
    count as f64
}

/// The smallest of ascending `figures` that `percent` of all do not exceed; 0 without figures.
pub(crate) fn percentile(figures: &[f64], percent: usize) -> f64 {
    let rank = (figures.len() * percent).div_ceil(100).max(1) - 1;
    figures.get(rank).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles() {
        let (median, spread) = summarise(&[5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert!((median - 3.0).abs() < 1e-12);
        let expected = Spread { min: 1.0, q1: 2.0, q3: 4.0, max: 5.0, rounds: 5 };
        assert_eq!(spread, expected);
        let (median, spread) = summarise(&[4.0, 2.0]).unwrap();
        assert!((median - 3.0).abs() < 1e-12);
        assert!((spread.q1 - 2.5).abs() < 1e-12 && (spread.q3 - 3.5).abs() < 1e-12);
        let (median, spread) = summarise(&[7.0]).unwrap();
        assert!((median - spread.min).abs() < 1e-12 && spread.rounds == 1);
    }

    #[test]
    fn percentiles_of_few_figures() {
        let figures: Vec<f64> = (1..=200_u32).map(f64::from).collect();
        assert!((percentile(&figures, 50) - 100.0).abs() < 1e-9);
        assert!((percentile(&figures, 99) - 198.0).abs() < 1e-9);
        assert!((percentile(&figures, 100) - 200.0).abs() < 1e-9);
        assert!(percentile(&[], 99).abs() < 1e-9);
    }

    #[test]
    fn median_of_nothing_is_none() {
        assert_eq!(summarise(&[]), None);
        assert_eq!(summarise(&[1.0, f64::NAN]), None);
        assert_eq!(summarise(&[f64::INFINITY]), None);
    }
}
