//! The checkpoint record: the word, stored twice, that says which epoch of a volume is durable.

use everbyte_media::{MediaError, Medium, PoolOffset};

use crate::bad::sound;
use crate::format::{COMPLETED_A_AT, COMPLETED_B_AT, Corrupt, decode_word, encode_word};
use crate::persist::{Dirty, Durable};
use crate::plant::{Bug, planted};

/// No volume gets as far as this epoch, so a mark beyond it is wrong; those that follow must fit
/// in a checked word.
const COMPLETED_MAX: u64 = 1 << 47;

/// The last completed epoch of the volume whose header is at `header_at`.
///
/// # Errors
/// Neither copy of the mark is valid, or it cannot be.
pub(crate) fn read_completed<M: Medium>(medium: &M, header_at: PoolOffset) -> Result<u64, Corrupt> {
    let copy = |at: u64| {
        let at = header_at.plus(at);
        let word = medium.load_word(at);
        sound(medium, COMPLETED, at, 8)?;
        decode_word(word).ok_or_else(|| Corrupt::new(COMPLETED, at, "its check bits are wrong"))
    };
    if planted(Bug::FirstCompletedBelieved) {
        let word = medium.load_word(header_at.plus(COMPLETED_A_AT));
        return Ok(word & ((1 << 48) - 1));
    }
    let newest = match [copy(COMPLETED_A_AT), copy(COMPLETED_B_AT)] {
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

pub(crate) const COMPLETED: &str = "completed mark";

/// Stores both copies of the completed mark in the header at `header_at`, durably: everything of
/// the volume up to that epoch is durable. A copy that is
/// in bad memory is left out: the other one is a single word, so no crash can tear it.
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
    dirty.flush(medium).fence(medium)?;
    Ok(())
}
