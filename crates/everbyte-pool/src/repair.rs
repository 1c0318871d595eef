//! Repair of structures that the pool stores twice or can compute from its maps.
//!
//! Owns the rules of repairable damage and the stores of repairs. Invariants: nothing is guessed: each store
//! restores another copy's contents, or removes a claim contradicted by the maps. Whole structures are not
//! touched: a pool without damage keeps every byte, the records of a crash among them. Each repair is one
//! copy of a doubled structure, or an update of the superblock in its usual order, and is fenced before the
//! next begins. A crash in between leaves a pool with less damage and nothing new, and repair can start over.
//!
//! Does not undo or redo anything, and does not look at data. `docs/repair.md` has the table of
//! all damage.

use everbyte_media::{BLOCK, BlockNo, Medium, PoolOffset};
use zerocopy::IntoBytes;

use crate::alloc::{Allocator, BlockRun};
use crate::checkpoint_record::{COMPLETED, read_completed};
use crate::format::{
    COMPLETED_A_AT, COMPLETED_B_AT, Corrupt, DESCRIPTOR_AT, Descriptor, STATE_AT,
    SUPERBLOCK_COPIES, Superblock, VolumeState, decode_word, encode_word,
};
use crate::kind::{ClaimCollector, Kinds, VolumeView};
use crate::persist::Dirty;
use crate::pool::{PoolError, load_saved, read_descriptor, read_superblock_copy};
use crate::readable::check_readable;
use crate::shared::{header_at, write_superblock};
use crate::volume::read_size;

/// Repairs everything repairable without guessing in the pool on `medium`. Requires: the pool is not open.
/// Returns a line for each repair, with structure and offset. A second repair finds nothing left to do.
///
/// # Errors
/// No superblock is valid, the pool needs a newer program to be written, or the medium fails. Earlier repairs
/// stay.
pub fn repair<M: Medium>(medium: &M, kinds: &Kinds<M>) -> Result<Vec<String>, PoolError> {
    let mut mended = Vec::new();
    // First, because the superblock states the place of the headers.
    let mut sb = mend_superblock(medium, kinds.known_features(), &mut mended)?;
    for slot in 0..sb.table_slots {
        mend_header(medium, &sb, header_at(&sb, slot), &mut mended)?;
    }
    // A torn update could destroy the only whole copy.
    let whole = |at: &PoolOffset| read_superblock_copy(medium, *at).is_ok();
    if SUPERBLOCK_COPIES.iter().all(whole)
        && let Some(reason) = saved_state_is_wrong(medium, &sb, kinds)
    {
        // The copy that is torn by a crash must not be the only one that is up to date.
        write_superblock(medium, &sb)?;
        (sb.saved_start, sb.saved_bytes, sb.saved_crc) = (0, 0, 0);
        sb.generation += 1;
        write_superblock(medium, &sb.sealed())?;
        mended.push(format!("{reason}; the maps decide which blocks are free"));
    }
    // A store to a range that has just failed is lost. Only the medium knows it.
    medium.check()?;
    Ok(mended)
}

/// The valid superblock. An invalid copy is rewritten from the other one.
fn mend_superblock<M: Medium>(
    medium: &M,
    known_features: u64,
    mended: &mut Vec<String>,
) -> Result<Superblock, PoolError> {
    let copies = SUPERBLOCK_COPIES.map(|at| read_superblock_copy(medium, at));
    let (good, bad) = match copies {
        [Ok(first), Ok(second)] => {
            // Different generations are not damage: a crash between the stores of an update leaves
            // them.
            let newest = if first.generation >= second.generation { first } else { second };
            writable(&newest, known_features)?;
            return Ok(newest);
        }
        [Ok(good), Err(bad)] | [Err(bad), Ok(good)] => (good, bad),
        [Err(first), Err(_)] => return Err(first.into()),
    };
    writable(&good, known_features)?;
    // A store to bad memory would fail the medium. The other copy stands for this one.
    if medium.check_range(bad.at, size_of::<Superblock>() as u64).is_ok() {
        put(medium, bad.at, good.as_bytes())?;
        mended.push(format!("{bad}; rewritten from the other copy"));
    }
    Ok(good)
}

fn writable(sb: &Superblock, known_features: u64) -> Result<(), PoolError> {
    if sb.forbids_writing(known_features) {
        return Err(PoolError::ReadOnly(format!(
            "it has features {:#x} that this program cannot write; repair it with a newer one",
            sb.ro_compat
        )));
    }
    Ok(())
}

/// Stores `bytes` durably.
fn put<M: Medium>(medium: &M, at: PoolOffset, bytes: &[u8]) -> Result<(), PoolError> {
    let mut dirty = Dirty::default();
    dirty.store(medium, at, bytes);
    dirty.flush(medium).fence(medium)?;
    Ok(())
}

/// Repairs the header of an active volume, and the state of a never used slot.
fn mend_header<M: Medium>(
    medium: &M,
    sb: &Superblock,
    header: PoolOffset,
    mended: &mut Vec<String>,
) -> Result<(), PoolError> {
    let state_at = header.plus(STATE_AT);
    let word = medium.load_word(state_at);
    // The state cannot be known, and bad memory cannot take another one.
    if check_readable(medium, "volume state", state_at, 8).is_err() {
        return Ok(());
    }
    match decode_word(word).and_then(VolumeState::from_code) {
        Some(VolumeState::Active) => {
            mend_completed(medium, header, mended)?;
            mend_descriptor(medium, sb, header, mended)
        }
        Some(VolumeState::Free | VolumeState::Deleting) => Ok(()),
        // A created volume leaves descriptors, so without any bytes the slot is certainly free.
        None if never_used(medium, header) => {
            put(medium, state_at, &encode_word(VolumeState::Free.code()).to_le_bytes())?;
            let bad = Corrupt::new("volume state", state_at, "its check bits are wrong");
            mended.push(format!("{bad}; no volume was ever there, so it is free"));
            Ok(())
        }
        // Active or free would be a guess, and could give the blocks of a volume to another one.
        None => Ok(()),
    }
}

/// Returns true if nothing but the state was ever stored in the header: a volume's descriptors stay
/// when it is deleted.
fn never_used<M: Medium>(medium: &M, header: PoolOffset) -> bool {
    let mut bytes = [0; BLOCK];
    medium.read(header, &mut bytes);
    let rest = &bytes[size_of::<u64>()..];
    check_readable(medium, "volume header", header, bytes.len() as u64).is_ok()
        && rest.iter().all(|&byte| byte == 0)
}

/// Rewrites an unreadable checkpoint record from the other one. If that one was the older of the two, the
/// checkpoint of the newer had not ended and was not reported as done.
fn mend_completed<M: Medium>(
    medium: &M,
    header: PoolOffset,
    mended: &mut Vec<String>,
) -> Result<(), PoolError> {
    // With both copies damaged, no other place states the epoch.
    let Ok(completed) = read_completed(medium, header) else { return Ok(()) };
    for at in [COMPLETED_A_AT, COMPLETED_B_AT].map(|at| header.plus(at)) {
        let word = medium.load_word(at);
        // Opening and checkpoints skip a poisoned copy, so it can stay.
        if decode_word(word).is_none() && medium.check_range(at, 8).is_ok() {
            put(medium, at, &encode_word(completed).to_le_bytes())?;
            let bad = Corrupt::new(COMPLETED, at, "its check bits are wrong");
            mended.push(format!("{bad}; rewritten from the other copy"));
        }
    }
    Ok(())
}

fn mend_descriptor<M: Medium>(
    medium: &M,
    sb: &Superblock,
    header: PoolOffset,
    mended: &mut Vec<String>,
) -> Result<(), PoolError> {
    let Ok(good) = read_descriptor(medium, sb, header) else { return Ok(()) };
    for at in DESCRIPTOR_AT.map(|at| header.plus(at)) {
        let mut bytes = [0; size_of::<Descriptor>()];
        medium.read(at, &mut bytes);
        let judged = Descriptor::parse(&bytes, at, sb.data_start, sb.size_blocks);
        if let Err(bad) = judged
            && medium.check_range(at, bytes.len() as u64).is_ok()
        {
            put(medium, at, good.as_bytes())?;
            mended.push(format!("{bad}; rewritten from the other copy"));
        }
    }
    Ok(())
}

/// Returns the reason if the saved allocator state is wrong. The state is believed only after a clean
/// shutdown. No volume has then anything to undo, so the maps can be compared with it.
fn saved_state_is_wrong<M: Medium>(
    medium: &M,
    sb: &Superblock,
    kinds: &Kinds<M>,
) -> Option<Corrupt> {
    // Without the clean mark, opening ignores the saved state and walks the maps.
    if sb.clean != 1 || sb.saved_start == 0 {
        return None;
    }
    let mut saved = Allocator::new(sb.size_blocks);
    if let Err(wrong) = load_saved(medium, sb, &mut saved) {
        return Some(wrong);
    }
    let at = BlockNo(sb.saved_start).offset();
    let wrong_because = |what: String| Some(Corrupt::new("saved allocator state", at, what));
    // Maps that cannot be read prove nothing.
    let owned = match free_by_maps(medium, sb, kinds).ok()? {
        ByMaps::Free(owned) => owned,
        // One owner could give it up, and a third one get it, before anybody walks the maps again.
        ByMaps::TwoOwners(clash) => {
            return wrong_because(format!("it counts a block once that has two owners: {clash}"));
        }
    };
    let wrong = (sb.data_start..sb.size_blocks)
        .map(BlockNo)
        .find(|&block| owned.is_free(block) != saved.is_free(block))?;
    wrong_because(if owned.is_free(wrong) {
        format!("it calls {wrong} used, which nobody owns")
    } else {
        format!("it calls {wrong} free, which has an owner")
    })
}

/// The sum of all maps.
enum ByMaps {
    /// The blocks left free by the maps.
    Free(Box<Allocator>),
    /// Two words name one block.
    TwoOwners(Corrupt),
}

/// Returns the free blocks by the maps. The volumes need no recovery.
fn free_by_maps<M: Medium>(
    medium: &M,
    sb: &Superblock,
    kinds: &Kinds<M>,
) -> Result<ByMaps, Corrupt> {
    let start = BlockNo(sb.data_start);
    let free = Allocator::new(sb.size_blocks);
    free.add(BlockRun { start, len: sb.size_blocks - sb.data_start })
        .map_err(|error| Corrupt::new("free blocks", start.offset(), error.to_string()))?;
    for slot in 0..sb.table_slots {
        let header = header_at(sb, slot);
        let at = header.plus(STATE_AT);
        let state = decode_word(medium.load_word(at)).and_then(VolumeState::from_code);
        // A poisoned word reads as zero, and zero means free.
        check_readable(medium, "volume state", at, 8)?;
        match state {
            Some(VolumeState::Active) => {}
            Some(VolumeState::Free | VolumeState::Deleting) => continue,
            // A volume may own blocks here. They would look free, and the saved state wrong.
            None => return Err(Corrupt::new("volume state", at, "its check bits are wrong")),
        }
        let descriptor = read_descriptor(medium, sb, header)?;
        let size_bytes = read_size(medium, header)?;
        let view = VolumeView::new(&descriptor, header, size_bytes, sb.data_start..sb.size_blocks);
        let mut taker = ClaimCollector::new(&free, descriptor.name());
        // A clash is damage. After any other error the walk is incomplete, and proves nothing.
        if let Err(error) = taker.take_all(|claim| kinds.visit(medium, &view, claim)) {
            return taker
                .into_clash()
                .map(|clash| ByMaps::TwoOwners(clash.into_corrupt()))
                .ok_or(error);
        }
    }
    Ok(ByMaps::Free(Box::new(free)))
}
