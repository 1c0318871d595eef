//! How hot a chunk is, by how soon somebody touches it once it is inaccessible.
//!
//! The time to the first touch of a chunk that is touched at a rate is the inverse of that rate in the mean, so one
//! fault tells more than a bit would; Linux places pages of tiered memory by the same (Y. Huang, "memory
//! tiering: hot page selection", 2022). Heat is the mean of the last scores, with one more for each halving of
//! that time. Pure: knows no chunks.

/// The highest score.
const SCORE_MAX: u8 = 15;
/// Heat of one halving.
const OCTAVE: u8 = 16;
/// Heat by which a chunk in a run must be above one in DRAM for them to change places: a quarter of the time to the
/// first touch.
const MARGIN: u8 = 2 * OCTAVE;

/// The score of a chunk that was touched `latency_ns` nanoseconds after it became inaccessible, of `window_ns`, or
/// not at all.
pub(super) fn score(latency_ns: Option<u64>, window_ns: u64) -> u8 {
    let Some(latency_ns) = latency_ns else { return 0 };
    let halvings = (window_ns / latency_ns.max(1)).max(1).ilog2();
    u8::try_from(halvings).map_or(SCORE_MAX, |halvings| (halvings + 1).min(SCORE_MAX))
}

/// The heat of a chunk that had `heat`, after one more score.
pub(super) fn with_score(heat: u8, score: u8) -> u8 {
    let sum = 3 * u16::from(heat) + u16::from(score.min(SCORE_MAX)) * u16::from(OCTAVE);
    u8::try_from(sum / 4).unwrap_or(u8::MAX)
}

/// True if a chunk in a run should be in DRAM in the place of another.
pub(super) fn is_worth_exchange(direct: u8, dram: u8) -> bool {
    direct >= dram.saturating_add(MARGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 10_000_000;

    #[test]
    fn a_part_is_hotter_the_sooner_it_is_touched() {
        assert_eq!(score(None, WINDOW), 0);
        assert_eq!(score(Some(WINDOW), WINDOW), 1);
        assert_eq!(score(Some(2 * WINDOW), WINDOW), 1, "the thread was late");
        assert_eq!(score(Some(WINDOW / 2), WINDOW), 2);
        assert_eq!(score(Some(0), WINDOW), SCORE_MAX);
        assert_eq!(score(Some(0), u64::MAX), SCORE_MAX);
    }

    #[test]
    fn heat_follows_the_scores_and_stays_in_range() {
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
    fn parts_that_are_as_hot_stay_where_they_are() {
        assert!(!is_worth_exchange(0, 0) && !is_worth_exchange(200, 200));
        let once = with_score(0, score(Some(WINDOW / 100), WINDOW));
        assert!(!is_worth_exchange(once, 0), "one touch after a hundredth of the window is chance");
        let hot = with_score(0, score(Some(WINDOW / 1000), WINDOW));
        assert!(is_worth_exchange(hot, 0) && !is_worth_exchange(hot, hot));
        assert!(!is_worth_exchange(u8::MAX - 1, u8::MAX));
    }
}
