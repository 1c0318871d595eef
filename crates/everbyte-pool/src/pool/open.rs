//! Opening a pool: believe, recover, rebuild, and only then allow writing.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, Medium, PoolOffset};

use super::descriptors::read_descriptor;
use super::{Pool, PoolError, RecoverySummary};
use crate::alloc::{Allocator, BlockRun};
use crate::checkpoint_record::{damaged_copy, read_completed};
use crate::checkpoint_signal::CheckpointSignal;
use crate::data_area::DataArea;
use crate::epoch::BlockStates;
use crate::format::{
    Corrupt, Descriptor, STATE_AT, SUPERBLOCK_COPIES, Superblock, VolumeState, decode_word,
};
use crate::kind::{Claim, ClaimCollector, Kinds, VolumeView, unknown_kind};
use crate::readable::check_readable;
use crate::recover::{UndoScope, recover_volume};
use crate::shared::{Preallocator, Shared, header_at, write_superblock};
use crate::sync::{Mutex, RwLock};
use crate::volume::{Volume, read_size, read_used_blocks};

/// Blocks of a pool's possible growth while it is open: 1 TiB, or 16 times its size if that is more.
const CAPACITY_BLOCKS_MIN: u64 = 1 << 28;

/// Options of opening a pool.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Blocks of the pool's possible growth while it is open; 0 for a generous default.
    pub capacity_blocks: u64,
}

/// A used volume header.
struct Found {
    slot: u64,
    descriptor: Descriptor,
    completed: u64,
    read_only: Option<String>,
    /// Blocks in use, without the log, if known.
    used_blocks: Option<u64>,
}

impl Found {
    fn new(slot: u64, descriptor: Descriptor, completed: u64, read_only: Option<String>) -> Self {
        Self { slot, descriptor, completed, read_only, used_blocks: None }
    }
}

impl<M: Medium> Pool<M> {
    /// Opens the pool on `medium`, recovering every volume first. `kinds` interprets the volumes' maps.
    ///
    /// A damaged volume opens read-only, or not at all; every rejected write says why. Its blocks are then
    /// unknown: nothing can be allocated, but other volumes can still write to their present blocks. If only
    /// one superblock of a pool can be read, or two volumes own a block, the pool opens read-only.
    ///
    /// # Errors
    /// No superblock can be believed, or the medium fails.
    pub fn open(medium: Arc<M>, kinds: Kinds<M>, options: &OpenOptions) -> Result<Self, PoolError> {
        let mut summary = RecoverySummary::default();
        let known = kinds.known_features();
        let (sb, mut read_only) = read_superblock(&*medium, known, &mut summary)?;
        summary.was_clean = sb.clean == 1;
        if sb.forbids_writing(known) {
            let reason =
                format!("it has features {:#x} that this program cannot write", sb.ro_compat);
            if !summary.was_clean {
                return Err(PoolError::ReadOnly(format!(
                    "{reason}, and it needs recovery; open it with a newer program"
                )));
            }
            read_only = Some(reason);
        }
        // Before the allocator: undo restores words that name blocks.
        let Recovered { mut found, lost_headers } =
            recover_all(&*medium, &sb, &kinds, &mut summary)?;
        let mut space_unknown = why_unknown(&found, &lost_headers);
        let mut has_clash = false;
        let mut alloc = allocator(capacity(options, medium.len()), &sb);
        if load_if_clean(&*medium, &sb, &mut alloc, &mut summary) {
            space_unknown = None;
        } else if space_unknown.is_none() {
            // The clean shutdown's counts of volumes are not valid either.
            found.iter_mut().for_each(|volume| volume.used_blocks = None);
            match rebuild(&*medium, &sb, &mut found, &kinds, &alloc, &mut summary) {
                Ok(unknown) => space_unknown = unknown,
                Err(clash) => {
                    summary.remarks.push(clash.to_string());
                    has_clash = read_only.is_none();
                    read_only.get_or_insert(clash.to_string());
                }
            }
        }
        if space_unknown.is_some() {
            alloc = allocator(alloc.capacity(), &sb);
        }
        let shared = Arc::new(Shared {
            states: BlockStates::new(alloc.capacity()),
            data: DataArea::new(sb.data_start..sb.size_blocks),
            alloc,
            superblock: Mutex::new(sb),
            read_only,
            has_clash,
            space_unknown,
            lost_headers,
            checkpoint_signal: CheckpointSignal::default(),
            withheld: Mutex::default(),
            preallocators: Mutex::default(),
            medium,
        });
        // Durable before the first allocation: after a crash the saved free map is out of date.
        if shared.read_only.is_none() {
            shared.update_superblock(|sb| {
                sb.clean = 0;
                (sb.saved_start, sb.saved_bytes, sb.saved_crc) = (0, 0, 0);
            })?;
        }
        let volumes = open_volumes(&shared, &sb, found)?;
        Ok(Self {
            shared,
            kinds,
            volumes: RwLock::new(volumes),
            admin: Mutex::new(()),
            recovered: summary,
            on_copy: false,
            closed: OnceLock::new(),
        })
    }
}

/// An allocator for the data area, without a free block.
fn allocator(capacity_blocks: u64, sb: &Superblock) -> Allocator {
    let alloc = Allocator::new(capacity_blocks);
    alloc.set_total_blocks(sb.size_blocks - sb.data_start);
    alloc
}

/// Contents of the volume table.
#[derive(Default)]
struct Recovered {
    found: Vec<Found>,
    lost_headers: Vec<Corrupt>,
}

/// Recovers every volume.
fn recover_all<M: Medium>(
    medium: &M,
    sb: &Superblock,
    kinds: &Kinds<M>,
    summary: &mut RecoverySummary,
) -> Result<Recovered, PoolError> {
    let mut recovered = Recovered::default();
    for slot in 0..sb.table_slots {
        // Before the recovery, which completes epochs.
        let kept = if sb.clean == 1 { read_used_blocks(medium, header_at(sb, slot)) } else { None };
        match recover_slot(medium, sb, slot, kinds, summary) {
            Ok(volume) => {
                let counted = volume.map(|volume| Found { used_blocks: kept, ..volume });
                recovered.found.extend(counted);
            }
            Err(SlotError::Pool(error)) => return Err(error),
            // The other volumes still open. Without a saved state, the free blocks are unknown.
            Err(SlotError::Unusable(corrupt)) => {
                summary.remarks.push(corrupt.to_string());
                recovered.lost_headers.push(corrupt);
            }
        }
    }
    Ok(recovered)
}

/// Returns the reason if the volumes' maps do not show the free blocks.
fn why_unknown(found: &[Found], lost_headers: &[Corrupt]) -> Option<String> {
    let damaged = found.iter().find_map(|volume| {
        let reason = volume.read_only.as_ref()?;
        Some(format!("volume {}: {reason}", volume.descriptor.name()))
    });
    lost_headers.first().map(Corrupt::to_string).or(damaged)
}

/// Blocks with state in DRAM, at least the present blocks.
fn capacity(options: &OpenOptions, medium_bytes: u64) -> u64 {
    let medium_blocks = medium_bytes / BLOCK_U64;
    match options.capacity_blocks {
        0 => CAPACITY_BLOCKS_MIN.max(medium_blocks.saturating_mul(16)),
        asked => asked.max(medium_blocks),
    }
}

fn open_volumes<M: Medium>(
    shared: &Arc<Shared<M>>,
    sb: &Superblock,
    found: Vec<Found>,
) -> Result<BTreeMap<String, Arc<Volume<M>>>, PoolError> {
    let mut volumes = BTreeMap::new();
    for volume in found {
        let at = header_at(sb, volume.slot);
        let kind = volume.descriptor.volume_kind();
        let name = volume.descriptor.name().to_owned();
        let open = Arc::new(Volume::open(
            Arc::clone(shared),
            at,
            volume.descriptor,
            kind,
            volume.completed,
            volume.read_only,
        ));
        open.usage.set(volume.used_blocks);
        shared.note_preallocator(Arc::downgrade(&open) as Weak<dyn Preallocator>);
        volumes.insert(name, open);
    }
    Ok(volumes)
}

/// The newest valid superblock. Repairs the other copy if necessary. If that copy's memory is bad, the pool
/// must stay as it is, and the reason is returned as well.
fn read_superblock<M: Medium>(
    medium: &M,
    known_features: u64,
    summary: &mut RecoverySummary,
) -> Result<(Superblock, Option<String>), PoolError> {
    let copies = SUPERBLOCK_COPIES.map(|at| read_superblock_copy(medium, at));
    let newest = match copies {
        [Ok(a), Ok(b)] if a == b => return Ok((a, None)),
        [Ok(a), Ok(b)] => {
            if a.generation >= b.generation {
                a
            } else {
                b
            }
        }
        [Ok(good), Err(bad)] | [Err(bad), Ok(good)] if medium.has_poison() => {
            summary.remarks.push(bad.to_string());
            return Ok((good, Some(format!("only one superblock is left: {bad}"))));
        }
        [Ok(good), Err(bad)] | [Err(bad), Ok(good)] => {
            summary.note_copy(bad);
            good
        }
        // A copy of a pool says more than a block of foreign data.
        [Err(first), Err(second)] if first.is_foreign() && !second.is_foreign() => {
            return Err(second.into());
        }
        [Err(first), Err(_)] => return Err(first.into()),
    };
    // A program that must not write leaves the copies as they are.
    if !newest.forbids_writing(known_features) {
        write_superblock(medium, &newest)?;
    }
    Ok((newest, None))
}

/// The copy of the superblock at `at`.
///
/// # Errors
/// `Corrupt`, if the copy is damaged or cannot be read.
pub(crate) fn read_superblock_copy<M: Medium>(
    medium: &M,
    at: PoolOffset,
) -> Result<Superblock, Corrupt> {
    if at.0 + size_of::<Superblock>() as u64 > medium.len() {
        return Err(Corrupt::new("superblock", at, "the file is too short to hold it"));
    }
    let mut bytes = [0; size_of::<Superblock>()];
    medium.read(at, &mut bytes);
    check_readable(medium, "superblock", at, bytes.len() as u64)?;
    Superblock::parse(&bytes, at, medium.len())
}

enum SlotError {
    Pool(PoolError),
    Unusable(Corrupt),
}

impl<E: Into<PoolError>> From<E> for SlotError {
    fn from(error: E) -> Self {
        Self::Pool(error.into())
    }
}

/// Recovers the volume in `slot`, if there is one.
fn recover_slot<M: Medium>(
    medium: &M,
    sb: &Superblock,
    slot: u64,
    kinds: &Kinds<M>,
    summary: &mut RecoverySummary,
) -> Result<Option<Found>, SlotError> {
    let at = header_at(sb, slot);
    let state_at = at.plus(STATE_AT);
    let state = decode_word(medium.load_word(state_at)).and_then(VolumeState::from_code);
    // Before the state is used: a poisoned word reads as zero, and zero means free.
    check_readable(medium, "volume state", state_at, 8).map_err(SlotError::Unusable)?;
    let forbidden = sb.forbids_writing(kinds.known_features());
    match state {
        Some(VolumeState::Free) => return Ok(None),
        Some(VolumeState::Deleting) if forbidden => return Ok(None),
        Some(VolumeState::Deleting) => {
            // Its blocks are in no live map any more. Only the slot is still taken.
            super::volumes::store_state(medium, at, VolumeState::Free)?;
            return Ok(None);
        }
        Some(VolumeState::Active) => {}
        None => {
            let what = "its check bits are wrong";
            return Err(SlotError::Unusable(Corrupt::new("volume state", state_at, what)));
        }
    }
    let descriptor = read_descriptor(medium, sb, at).map_err(SlotError::Unusable)?;
    // After a clean shutdown different copies are damage, for a scrub to report.
    if sb.clean != 1
        && !forbidden
        && let Some(bad) = super::descriptors::mend_descriptor(medium, sb, at)?
    {
        summary.note_copy(bad);
    }
    let kind = descriptor.volume_kind();
    let unusable = match kinds.get(kind) {
        None => Some(unknown_kind(kind)),
        Some(known) if known.has_log() != descriptor.has_log() => {
            let what = "whether it has a log is not as its kind says";
            return Err(SlotError::Unusable(Corrupt::new("volume descriptor", at, what)));
        }
        Some(_) => None,
    };
    if let Some(reason) = unusable {
        summary.remarks.push(format!("volume {}: {reason}", descriptor.name()));
        return Ok(Some(Found::new(slot, descriptor, 0, Some(reason))));
    }
    if !descriptor.has_log() {
        return Ok(Some(Found::new(slot, descriptor, 0, None)));
    }
    // The shutdown was clean, or `open` had refused, so there is nothing to undo.
    if forbidden {
        let completed = read_completed(medium, at).map_err(SlotError::Unusable)?;
        return Ok(Some(Found::new(slot, descriptor, completed, None)));
    }
    // Before the recovery, which rewrites both copies.
    if let Some(bad) = damaged_copy(medium, at) {
        summary.note_copy(bad);
    }
    let scope = UndoScope::new(&descriptor, at, sb.data_start..sb.size_blocks);
    let recovered = recover_volume(medium, &scope, at)?;
    summary.records_undone += recovered.records as u64;
    if let Some(reason) = &recovered.read_only {
        summary.remarks.push(format!("volume {}: {reason}", descriptor.name()));
    }
    let (completed, read_only) = (recovered.completed, recovered.read_only);
    Ok(Some(Found::new(slot, descriptor, completed, read_only)))
}

/// Loads the free blocks of a clean shutdown into `alloc`. Returns true if it did.
fn load_if_clean<M: Medium>(
    medium: &M,
    sb: &Superblock,
    alloc: &mut Allocator,
    summary: &mut RecoverySummary,
) -> bool {
    if sb.clean != 1 || sb.saved_start == 0 {
        return false;
    }
    let loaded = load_saved(medium, sb, alloc);
    if let Err(corrupt) = &loaded {
        summary.remarks.push(format!("{corrupt}; rebuilt from the maps"));
    }
    loaded.is_ok()
}

/// Rebuilds the free blocks of `alloc` from the maps. If a volume's map cannot be read, the volume is to be
/// opened read-only; `alloc` is then useless, and the reason is returned.
///
/// # Errors
/// Two volumes own a block.
fn rebuild<M: Medium>(
    medium: &M,
    sb: &Superblock,
    found: &mut [Found],
    kinds: &Kinds<M>,
    alloc: &Allocator,
    summary: &mut RecoverySummary,
) -> Result<Option<String>, Corrupt> {
    let all = BlockRun { start: BlockNo(sb.data_start), len: sb.size_blocks - sb.data_start };
    add(alloc, all)?;
    let mut unknown = None;
    let visit = |volume: &Found, claim: &mut Claim<'_>| {
        kinds.visit(medium, &view(medium, sb, volume)?, claim)
    };
    for index in 0..found.len() {
        let volume = &found[index];
        let free_before = alloc.free_blocks();
        let mut taker = ClaimCollector::new(alloc, volume.descriptor.name());
        let walked = taker.take_all(|claim| visit(volume, claim));
        if let Some(mut clash) = taker.into_clash() {
            // The first owner is a volume walked before, or this one itself.
            for owner in &found[..=index] {
                clash.look_in(owner.descriptor.name(), |claim| visit(owner, claim));
            }
            let owners = [clash.first_volume(), Some(volume.descriptor.name())];
            let is_owner: Vec<bool> = found
                .iter()
                .map(|volume| owners.contains(&Some(volume.descriptor.name())))
                .collect();
            let corrupt = clash.into_corrupt();
            // Neither owner may store to the shared block.
            for (volume, _) in found.iter_mut().zip(is_owner).filter(|(_, is_owner)| *is_owner) {
                volume.read_only.get_or_insert(corrupt.to_string());
            }
            return Err(corrupt);
        }
        let volume = &mut found[index];
        // The walk continues: the other volumes still get their counts, or their damage.
        if let Err(corrupt) = walked {
            let name = volume.descriptor.name();
            let reason = format!("volume {name}: its map cannot be read: {corrupt}");
            summary.remarks.push(reason.clone());
            unknown.get_or_insert(reason);
            volume.read_only = Some(format!("its map cannot be read: {corrupt}"));
        } else {
            let log_blocks = volume.descriptor.log_blocks();
            volume.used_blocks = Some(free_before - alloc.free_blocks() - log_blocks);
        }
    }
    Ok(unknown)
}

fn view<'v, M: Medium>(
    medium: &M,
    sb: &Superblock,
    volume: &'v Found,
) -> Result<VolumeView<'v>, Corrupt> {
    let at = header_at(sb, volume.slot);
    let data = sb.data_start..sb.size_blocks;
    Ok(VolumeView::new(&volume.descriptor, at, read_size(medium, at)?, data))
}

fn add(alloc: &Allocator, run: BlockRun) -> Result<(), Corrupt> {
    alloc
        .free_run(run)
        .map_err(|error| Corrupt::new("free blocks", run.start.offset(), error.to_string()))
}

/// Loads the free map of a clean shutdown. Nothing is added unless all of it is right.
///
/// # Errors
/// `Corrupt`, with a description of the damage.
pub(crate) fn load_saved<M: Medium>(
    medium: &M,
    sb: &Superblock,
    alloc: &mut Allocator,
) -> Result<(), Corrupt> {
    let at = BlockNo(sb.saved_start).offset();
    let wrong = |what: &str| Corrupt::new("saved allocator state", at, what);
    if sb.saved_bytes != sb.size_blocks.div_ceil(64) * 8 {
        return Err(wrong("its size does not fit the pool's"));
    }
    let len = usize::try_from(sb.saved_bytes).map_err(|_| wrong("it is too large"))?;
    let mut bytes = vec![0; len];
    for (index, chunk) in bytes.chunks_mut(BLOCK).enumerate() {
        medium.read(at.plus(index as u64 * BLOCK_U64), chunk);
    }
    if crc32c::crc32c(&bytes) != sb.saved_crc {
        return Err(wrong("its checksum is wrong"));
    }
    // Everything is judged before anything is loaded.
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
        .collect();
    // Such a block would be allocated over a superblock or a header, or beyond the pool.
    let outside = (0..sb.data_start).chain(sb.size_blocks..words.len() as u64 * 64);
    let is_free = |block: u64| {
        usize::try_from(block / 64).is_ok_and(|word| words[word] >> (block % 64) & 1 == 1)
    };
    if outside.into_iter().any(is_free) {
        return Err(wrong("it calls blocks free that are not the allocator's"));
    }
    alloc.load_words(&words).map_err(|error| wrong(&error.to_string()))
}
