//! Heat of a chunk: a measure of the time from its protection to the first access.
//!
//! If accesses arrive at a constant rate, the mean time to the first access is the inverse of the
//! rate, so one fault carries more information than an accessed bit. Linux places pages of tiered
//! memory by the same measure (Y. Huang, "memory tiering: hot page selection", 2022). Heat is the
//! mean of the last scores; a score rises by one for each halving of the time. Pure: has no chunks.

/// The highest score.
const SCORE_MAX: u8 = 15;
/// Heat of one halving.
const OCTAVE: u8 = 16;
/// Minimum heat difference for an exchange of a direct chunk with a chunk in DRAM: a quarter of the
/// time to the first access.
const MARGIN: u8 = 2 * OCTAVE;

/// The score of a chunk first accessed `latency_ns` nanoseconds after its protection, within a
/// window of `window_ns`, or not accessed (`None`).
pub(super) fn score(latency_ns: Option<u64>, window_ns: u64) -> u8 {
    let Some(latency_ns) = latency_ns else { return 0 };
    let halvings = (window_ns / latency_ns.max(1)).max(1).ilog2();
    u8::try_from(halvings).map_or(SCORE_MAX, |halvings| (halvings + 1).min(SCORE_MAX))
}

/// The heat after `score`, for a chunk of heat `heat`.
pub(super) fn with_score(heat: u8, score: u8) -> u8 {
    let sum = 3 * u16::from(heat) + u16::from(score.min(SCORE_MAX)) * u16::from(OCTAVE);
    u8::try_from(sum / 4).unwrap_or(u8::MAX)
}

/// True if a direct chunk should replace a chunk in DRAM.
pub(super) fn is_worth_exchange(direct: u8, dram: u8) -> bool {
    direct >= dram.saturating_add(MARGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 10_000_000;

    #[test]
    fn earlier_access_scores_hotter() {
        assert_eq!(score(None, WINDOW), 0);
        assert_eq!(score(Some(WINDOW), WINDOW), 1);
        assert_eq!(score(Some(2 * WINDOW), WINDOW), 1, "the thread was late");
        assert_eq!(score(Some(WINDOW / 2), WINDOW), 2);
        assert_eq!(score(Some(0), WINDOW), SCORE_MAX);
        assert_eq!(score(Some(0), u64::MAX), SCORE_MAX);
    }

    #[test]
    fn heat_follows_scores_within_range() {
        let mut heat = 0;
        for _ in 0..40 {
            heat = with_score(heat, SCORE_MAX);
        }
        assert!(heat > (SCORE_MAX - 1) * OCTAVE, "{heat}");
        for _ in 0..40 {
            heat = with_score(heat, 0);
        }
        assert!(heat < 4, "{heat}");
        assert_eq!(with_score(u8::MAX, u8::MAX), 251);
    }

    #[test]
    fn equally_hot_chunks_stay() {
        assert!(!is_worth_exchange(0, 0) && !is_worth_exchange(200, 200));
        let once = with_score(0, score(Some(WINDOW / 100), WINDOW));
        assert!(!is_worth_exchange(once, 0), "one touch after a hundredth of the window is chance");
        let hot = with_score(0, score(Some(WINDOW / 1000), WINDOW));
        assert!(is_worth_exchange(hot, 0) && !is_worth_exchange(hot, hot));
        assert!(!is_worth_exchange(u8::MAX - 1, u8::MAX));
    }
}
