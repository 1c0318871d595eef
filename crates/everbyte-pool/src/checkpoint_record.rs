//! The checkpoint record: a word, stored twice, with the durable epoch of a volume.

use everbyte_media::{MediaError, Medium, PoolOffset};

use crate::format::{COMPLETED_A_AT, COMPLETED_B_AT, Corrupt, decode_word, encode_word};
use crate::persist::{Dirty, Durable};
use crate::readable::check_readable;

/// No volume reaches this epoch, so a mark beyond it is wrong. Further epochs must fit in a checked word.
const COMPLETED_MAX: u64 = 1 << 47;

/// The last completed epoch of the volume with the header at `header_at`.
///
/// # Errors
/// Neither copy of the record is valid, or it cannot be.
pub(crate) fn read_completed<M: Medium>(medium: &M, header_at: PoolOffset) -> Result<u64, Corrupt> {
    let newest = match read_copies(medium, header_at) {
        // A crash can leave one copy behind. The larger epoch was durable before its first store.
        [Ok(first), Ok(second)] => first.max(second),
        [Ok(only), Err(_)] | [Err(_), Ok(only)] => only,
        [Err(first), Err(second)] => {
            let what = format!("{}, and so is the other copy at {}", first.what, second.at);
            return Err(Corrupt { what, ..first });
        }
    };
    if newest > COMPLETED_MAX {
        let at = header_at.plus(COMPLETED_A_AT);
        return Err(Corrupt::new(COMPLETED, at, "no volume ever gets that far"));
    }
    Ok(newest)
}

/// Both copies of the record in the header at `header_at`.
fn read_copies<M: Medium>(medium: &M, header_at: PoolOffset) -> [Result<u64, Corrupt>; 2] {
    [COMPLETED_A_AT, COMPLETED_B_AT].map(|at| {
        let at = header_at.plus(at);
        let word = medium.load_word(at);
        // A poisoned word reads as 0, a valid epoch.
        check_readable(medium, COMPLETED, at, 8)?;
        decode_word(word).ok_or_else(|| Corrupt::new(COMPLETED, at, "its check bits are wrong"))
    })
}

/// The invalid copy of the record in the header at `header_at`, if the other one is valid.
pub(crate) fn damaged_copy<M: Medium>(medium: &M, header_at: PoolOffset) -> Option<Corrupt> {
    match read_copies(medium, header_at) {
        [Ok(_), Err(bad)] | [Err(bad), Ok(_)] => Some(bad),
        _ => None,
    }
}

pub(crate) const COMPLETED: &str = "checkpoint record";

/// Stores both copies of the checkpoint record in the header at `header_at`, durably: everything of the
/// volume up to that epoch is durable. Skips a copy in a poisoned range: the other one is a single word, so
/// no crash can tear it.
pub(crate) fn write_completed<M: Medium>(
    medium: &M,
    header_at: PoolOffset,
    epoch: &Durable<u64>,
) -> Result<(), MediaError> {
    let mut copies = vec![header_at.plus(COMPLETED_A_AT), header_at.plus(COMPLETED_B_AT)];
    if medium.has_poison() {
        let first = copies[0];
        copies.retain(|&at| medium.check_range(at, 8).is_ok());
        if copies.is_empty() {
            return Err(MediaError::Poisoned { at: first });
        }
    }
    let mut dirty = Dirty::default();
    for &at in &copies {
        dirty.store_word(medium, at, encode_word(*epoch.get()));
    }
    // One fence for both: each copy is a single word, old or new at any moment.
    dirty.flush(medium).fence(medium)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use everbyte_crash::{Plan, SimMedium};

    use super::*;
    use crate::persist::InFlight;

    const HEADER: PoolOffset = PoolOffset(2 * 4096);
    const FIRST: PoolOffset = PoolOffset(2 * 4096 + 64);
    const SECOND: PoolOffset = PoolOffset(2 * 4096 + 128);
    /// Wrong check bits.
    const TORN: u64 = 9;

    fn medium(first: u64, second: u64) -> SimMedium {
        let medium = SimMedium::new(3 * 4096);
        medium.store_word(FIRST, first);
        medium.store_word(SECOND, second);
        medium
    }

    fn durable(medium: &SimMedium, epoch: u64) -> Durable<u64> {
        InFlight::flush(medium, [], epoch).fence(medium).unwrap()
    }

    #[test]
    fn larger_valid_record_copy_counts() {
        let word = encode_word;
        let cases = [
            ((word(5), word(5)), Some(5)),
            ((word(6), word(5)), Some(6)),
            ((word(5), word(6)), Some(6)),
            ((TORN, word(6)), Some(6)),
            ((word(5), TORN), Some(5)),
            ((0, 0), Some(0)),
            ((TORN, TORN), None),
            ((word(COMPLETED_MAX), word(1)), Some(COMPLETED_MAX)),
            ((word(COMPLETED_MAX + 1), word(1)), None),
            ((word(1), word(COMPLETED_MAX + 1)), None),
        ];
        for ((first, second), expected) in cases {
            let read = read_completed(&medium(first, second), HEADER);
            assert_eq!(read.clone().ok(), expected, "{first:#x}, {second:#x}: {read:?}");
            if let Err(corrupt) = read {
                assert_eq!((corrupt.structure.as_str(), corrupt.at), (COMPLETED, FIRST));
            }
        }
    }

    #[test]
    fn poisoned_record_copy_is_skipped() {
        for (bad, other) in [(FIRST, SECOND), (SECOND, FIRST)] {
            // Poisoned memory reads as zero, which would be a right word.
            let medium = medium(encode_word(8), encode_word(8));
            medium.inject_poison(bad, 8);
            assert_eq!(read_completed(&medium, HEADER).unwrap(), 8);
            write_completed(&medium, HEADER, &durable(&medium, 9)).unwrap();
            assert!(medium.check().is_ok(), "no store was lost");
            assert_eq!(medium.load_word(other), encode_word(9));
            medium.inject_poison(other, 8);
            medium.probe(other, 8);
            assert!(read_completed(&medium, HEADER).is_err());
            let written = write_completed(&medium, HEADER, &durable(&medium, 10));
            assert!(matches!(written, Err(MediaError::Poisoned { at: FIRST })), "{written:?}");
        }
    }

    /// The two copies are in flight together: each is a word, so any crash leaves a valid copy.
    #[test]
    fn crash_leaves_old_or_new_epoch() {
        let medium = medium(encode_word(8), encode_word(8));
        for at in [FIRST, SECOND] {
            medium.flush(at, 8);
        }
        let before = durable(&medium, 9);
        medium.store_word(FIRST, encode_word(*before.get()));
        medium.store_word(SECOND, encode_word(*before.get()));
        let crash = medium.crash_state();
        for (plan, expected) in [
            (Plan::nothing(), 8),
            (Plan::only(FIRST), 9),
            (Plan::only(SECOND), 9),
            (Plan::everything(), 9),
        ] {
            let left = read_completed(&crash.boot(plan.clone()), HEADER).unwrap();
            assert_eq!(left, expected, "{plan}");
        }
        write_completed(&medium, HEADER, &before).unwrap();
        let left = medium.crash_state().boot(Plan::nothing());
        assert_eq!(left.load_word(FIRST), encode_word(9), "both copies are durable");
        assert_eq!(left.load_word(SECOND), encode_word(9));
    }
}
