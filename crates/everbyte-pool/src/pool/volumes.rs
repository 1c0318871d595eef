//! Making and renaming volumes while others are in use.
//!
//! The order of a creation: the UID is used up durably; the header's contents are fenced while its state is
//! empty; then the state becomes ACTIVE, durably. A crash in between leaves either a volume or none, and
//! never two owners of a block. The order of a renaming: the invalid copy of the descriptor becomes the new
//! one, durably; then the other does. A crash in between leaves a whole copy, and opening makes the other
//! like it.

use std::sync::{Arc, Weak};

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, MediaError, Medium, PoolOffset};
use zerocopy::IntoBytes;

use super::descriptors::store_descriptor;
use super::{Pool, PoolError};
use crate::alloc::BlockRun;
use crate::checkpoint_record::write_completed;
use crate::format::{
    CHECKPOINT_LINES_AT, DESCRIPTOR_AT, Descriptor, Entry, HALF_BLOCKS, LANES, NAME_BYTES_MAX,
    RO_COMPAT_CHECKSUMS, ROOT_AT, SIZE_AT, STATE_AT, THRESHOLD_LINES_MAX, VolumeKind, VolumeState,
    decode_word, encode_word,
};
use crate::kind::unknown_kind;
use crate::persist::{Dirty, InFlight};
use crate::shared::{Preallocator, header_at};
use crate::volume::Volume;

/// Default number of lanes of a new volume's log.
pub const LANES_DEFAULT: u32 = 8;
/// Default number of lines to log from which on a block is replaced: half a block.
pub const THRESHOLD_LINES_DEFAULT: u32 = 32;
const LOG_BYTES_MIN: u64 = 2 << 20;
const LOG_BYTES_MAX: u64 = 128 << 20;
/// A volume's default log is this part of its size.
const LOG_SHARE: u64 = 32;
/// Half a lane of a default log at least: 10,237 words. A request of 32 MiB, the largest of NBD, changes up
/// to 8193 entries, and with checksums a link for each missing node of their tree. A pool of 4 GiB has 2048
/// of these nodes in all.
const HALF_BYTES_MIN: u64 = 160 << 10;

/// Settings of a new volume.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Name: 1 to 64 bytes of letters, digits, `.`, `_` and `-`, not beginning with `.` or `-`.
    pub name: String,
    /// Kind.
    pub kind: VolumeKind,
    /// Size in bytes, a multiple of 512, at least 512.
    pub size_bytes: u64,
    /// The kind's choice of map.
    pub map: u32,
    /// The kind's choice of translation.
    pub delta: u32,
    /// Checksum of every block of data: 0 none, 1 CRC-32C.
    pub checksum: u32,
    /// Lines to log from which on a block is replaced: 0 always, 65 never.
    pub threshold_lines: u32,
    /// Lanes of the log: the number of concurrent writers.
    pub lanes: u32,
    /// Bytes of the log over all lanes; `None` for a size in proportion to the volume's.
    pub log_bytes: Option<u64>,
    /// Dirty lines of 64 bytes at which a background checkpoint begins; writers wait for it at twice as many.
    /// 0 for [`CHECKPOINT_LINES_DEFAULT`](crate::format::CHECKPOINT_LINES_DEFAULT).
    pub checkpoint_lines: u32,
    /// Features of the superblock required by this volume, in addition to those of its kind.
    pub ro_compat: u64,
}

impl VolumeSpec {
    /// A volume with default settings.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: VolumeKind, size_bytes: u64) -> Self {
        Self {
            name: name.into(),
            kind,
            size_bytes,
            map: 0,
            delta: 0,
            checksum: 0,
            threshold_lines: THRESHOLD_LINES_DEFAULT,
            lanes: LANES_DEFAULT,
            log_bytes: None,
            checkpoint_lines: 0,
            ro_compat: 0,
        }
    }

    /// Blocks in half a lane; 0 without lanes.
    fn half_blocks(&self) -> u64 {
        if self.lanes == 0 {
            return 0;
        }
        let halves = 2 * u64::from(self.lanes);
        let half_bytes = self.log_bytes.map_or_else(
            || {
                let log = (self.size_bytes / LOG_SHARE).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX);
                (log / halves).max(HALF_BYTES_MIN)
            },
            |log| log / halves,
        );
        half_bytes.div_ceil(BLOCK_U64)
    }

    fn check(&self, has_log: bool) -> Result<(), PoolError> {
        let invalid = |what: String| Err(PoolError::Invalid(what));
        check_name(&self.name)?;
        check_size(self.size_bytes)?;
        if !has_log {
            return Ok(());
        }
        if !LANES.contains(&self.lanes) || self.threshold_lines > THRESHOLD_LINES_MAX {
            return invalid(format!(
                "{} lanes or a threshold of {} lines is out of range (1 to 1024; 0 to 65)",
                self.lanes, self.threshold_lines
            ));
        }
        if !HALF_BLOCKS.contains(&self.half_blocks()) {
            return invalid(format!(
                "half a lane would have {} bytes; it must be from 16 KiB to 4 GiB: change the log \
                 size or the number of lanes",
                self.half_blocks() * BLOCK_U64
            ));
        }
        Ok(())
    }
}

fn check_name(name: &str) -> Result<(), PoolError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with(['.', '-'])
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if fits {
        return Ok(());
    }
    Err(PoolError::Invalid(format!(
        "{name:?} is no volume name: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or '-', \
         beginning with a letter, digit or '_'"
    )))
}

/// Sizes of volumes are less, in bytes: 128 PiB.
const SIZE_BYTES_END: u64 = 512 << 48;

fn check_size(size_bytes: u64) -> Result<(), PoolError> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(512) || size_bytes >= SIZE_BYTES_END {
        return Err(PoolError::Invalid(format!(
            "a volume of {size_bytes} bytes cannot be: the size is a positive multiple of 512, less \
             than {SIZE_BYTES_END}"
        )));
    }
    Ok(())
}

/// The root of a new volume's map.
#[derive(Clone, Copy, Debug)]
pub enum NewRoot<'a> {
    /// Nothing yet.
    Empty,
    /// So many adjacent blocks of zeroes.
    Zeroes {
        /// Number of blocks, at least 1.
        blocks: u64,
    },
    /// Adjacent blocks with this contents, such as the kind's own settings; a multiple of 4096 bytes.
    Blocks(&'a [u8]),
}

impl NewRoot<'_> {
    fn blocks(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Zeroes { blocks } => *blocks,
            Self::Blocks(bytes) => bytes.len() as u64 / BLOCK_U64,
        }
    }
}

impl<M: Medium> Pool<M> {
    /// Makes a volume with that root, of a kind known to this open pool. A kind without a log ignores the
    /// specification's log.
    ///
    /// # Errors
    /// The name is taken or not a name; the kind is unknown; a size is out of range; the volume
    /// table or the pool is full; the medium's.
    pub fn create_volume(
        &self,
        spec: &VolumeSpec,
        root: NewRoot<'_>,
    ) -> Result<Arc<Volume<M>>, PoolError> {
        let _admin = self.admin.lock();
        self.writable()?;
        let Some(kind) = self.kinds.get(spec.kind) else {
            return Err(PoolError::Invalid(unknown_kind(spec.kind)));
        };
        let mut spec = spec.clone();
        if !kind.has_log() {
            spec.lanes = 0;
        }
        spec.check(kind.has_log())?;
        if self.volumes.read().contains_key(&spec.name) {
            return Err(PoolError::VolumeExists { name: spec.name });
        }
        let slot = self.free_slot()?;
        let runs = self.take_runs(&spec, root)?;
        let features = kind.ro_compat() | spec.ro_compat;
        let descriptor = match self.write_header(&spec, slot, &runs, root, features) {
            Ok(descriptor) => descriptor,
            Err(error) => {
                // A failed fence may leave the header active. No later store becomes durable then,
                // so no second owner of the runs does.
                runs.into_iter().flatten().for_each(|run| self.return_run(run));
                return Err(error);
            }
        };
        let at = header_at(&self.shared.superblock.lock(), slot);
        let shared = Arc::clone(&self.shared);
        let volume = Arc::new(Volume::open(shared, at, descriptor, spec.kind, 0, None));
        volume.usage.set(Some(root.blocks()));
        self.shared.note_preallocator(Arc::downgrade(&volume) as Weak<dyn Preallocator>);
        self.volumes.write().insert(spec.name, Arc::clone(&volume));
        Ok(volume)
    }

    /// Takes the initial runs of a new volume: its log and its root, if it has them.
    fn take_runs(
        &self,
        spec: &VolumeSpec,
        root: NewRoot<'_>,
    ) -> Result<[Option<BlockRun>; 2], PoolError> {
        let take = |what, blocks| match blocks {
            0 => Ok(None),
            blocks => self.take_run(what, blocks).map(Some),
        };
        let log = take("the volume's log", spec.half_blocks() * 2 * u64::from(spec.lanes))?;
        match take("the volume's map", root.blocks()) {
            Ok(table) => Ok([log, table]),
            Err(error) => {
                // No header names the log yet, so it is free without a checkpoint.
                log.into_iter().for_each(|run| self.return_run(run));
                Err(error)
            }
        }
    }

    fn free_slot(&self) -> Result<u64, PoolError> {
        let sb = *self.shared.superblock.lock();
        (0..sb.table_slots)
            .find(|&slot| {
                let header = header_at(&sb, slot);
                let state = self.shared.medium.load_word(header.plus(STATE_AT));
                // A header in bad memory would lose its volume.
                decode_word(state) == Some(VolumeState::Free.code())
                    && self.shared.medium.check_range(header, BLOCK_U64).is_ok()
            })
            .ok_or_else(|| {
                PoolError::Invalid(format!("the pool has its {} volumes already", sb.table_slots))
            })
    }

    /// Takes `blocks` adjacent free blocks for `what`, outside any epoch. A caller that names them in a map
    /// makes the name durable before anyone else can write through it.
    ///
    /// # Errors
    /// `NoSpace` without such a run.
    pub fn take_run(&self, what: &'static str, blocks: u64) -> Result<BlockRun, PoolError> {
        self.take(what, blocks, || self.shared.alloc.alloc_run(blocks))
    }

    /// The same at a multiple of `blocks`, a power of two up to 512 (2 MiB).
    ///
    /// # Errors
    /// As [`Pool::take_run`].
    pub fn take_aligned_run(&self, what: &'static str, blocks: u64) -> Result<BlockRun, PoolError> {
        self.take(what, blocks, || self.shared.alloc.alloc_aligned(blocks, 0))
    }

    fn take(
        &self,
        what: &'static str,
        blocks: u64,
        find: impl Fn() -> Option<BlockRun>,
    ) -> Result<BlockRun, PoolError> {
        let take = || self.shared.take_sound_run(&find);
        // Preallocated blocks need no checkpoint, so they are tried first.
        let run = take().or_else(|| {
            self.shared.reclaim_preallocated();
            take()
        });
        // This costs a checkpoint of each volume with deferred frees, so it comes last.
        let run = run.or_else(|| {
            self.shared.free_deferred();
            take()
        });
        let run = run.ok_or_else(|| PoolError::NoSpace {
            what,
            needed_blocks: blocks,
            free_blocks: self.shared.alloc.free_blocks(),
        })?;
        for block in run.start.0..run.start.0 + run.len {
            // The state of an earlier owner's epochs must not apply to the new owner.
            self.shared.states.get(BlockNo(block)).set_fresh(0);
        }
        Ok(run)
    }

    /// Returns blocks of [`Pool::take_run`] without a name and without stores in flight to them.
    pub fn return_run(&self, run: BlockRun) {
        // Only the bad blocks of a run are withheld.
        if self.shared.medium.has_poison() && run.len > 1 {
            let blocks = run.start.0..run.start.0 + run.len;
            return blocks.for_each(|b| self.return_run(BlockRun { start: BlockNo(b), len: 1 }));
        }
        if run.len == 1 && self.shared.withhold_if_bad(run.start) {
            return;
        }
        if let Err(error) = self.shared.alloc.free_run(run) {
            tracing::error!(%error, "blocks were freed twice");
        }
    }

    /// Writes the header of a new volume: its contents are fenced before its state becomes active.
    fn write_header(
        &self,
        spec: &VolumeSpec,
        slot: u64,
        [log, table]: &[Option<BlockRun>; 2],
        root: NewRoot<'_>,
        ro_compat: u64,
    ) -> Result<Descriptor, PoolError> {
        let medium = &*self.shared.medium;
        // Durable first: no crash may reuse the UID, or let a program without the features write.
        let sb = self.shared.update_superblock(|sb| {
            sb.next_volume_uid += 1;
            sb.ro_compat |= ro_compat;
            if spec.checksum != 0 {
                sb.ro_compat |= RO_COMPAT_CHECKSUMS;
            }
        })?;
        let at = header_at(&sb, slot);
        let name = padded(&spec.name);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let descriptor = Descriptor {
            uid: sb.next_volume_uid - 1,
            kind: spec.kind.0,
            map: spec.map,
            name,
            log_start: log.map_or(0, |log| log.start.0),
            lanes: spec.lanes,
            half_blocks: u32::try_from(spec.half_blocks()).expect("the specification was checked"),
            threshold_lines: spec.threshold_lines,
            delta: spec.delta,
            created_s: now.map_or(0, |elapsed| elapsed.as_secs()),
            // Random: old bytes in the log's blocks, such as another volume's records, are never
            // valid here.
            log_key: rand::random(),
            checksum: spec.checksum,
            crc: 0,
        }
        .sealed();
        // The state word is zero, which means free: a crash from here to the last store leaves no
        // volume.
        let mut header = vec![0; BLOCK];
        for copy in DESCRIPTOR_AT {
            put(&mut header, copy, descriptor.as_bytes());
        }
        put(&mut header, SIZE_AT, &encode_word(spec.size_bytes / 512).to_le_bytes());
        let checkpoint_lines = encode_word(u64::from(spec.checkpoint_lines));
        put(&mut header, CHECKPOINT_LINES_AT, &checkpoint_lines.to_le_bytes());
        if let Some(run) = *table {
            match root {
                NewRoot::Blocks(bytes) => medium.stream(run.start.offset(), bytes),
                NewRoot::Empty | NewRoot::Zeroes { .. } => self.zero(run),
            }
            put(&mut header, ROOT_AT, &Entry::data(run.start).encode().to_le_bytes());
        }
        // One fence covers header and root. Both may be torn before, since the state says free.
        let contents = InFlight::stream(medium, at, &header).fence(medium)?;
        // Before ACTIVE, because recovery of an active volume reads the epoch.
        write_completed(medium, at, &contents.with(0))?;
        // A single word, so a crash leaves a whole volume or none.
        store_state(medium, at, VolumeState::Active)?;
        Ok(descriptor)
    }

    /// Streams zeroes over a run of blocks; durable after the next fence.
    pub(crate) fn zero(&self, run: BlockRun) {
        let zeroes = vec![0; BLOCK];
        for block in run.start.0..run.start.0 + run.len {
            self.shared.medium.stream(BlockNo(block).offset(), &zeroes);
        }
    }

    /// Gives the volume `name` the name `new_name`, durably. Its users continue, under the new name.
    ///
    /// # Errors
    /// `NoSuchVolume`; `VolumeExists`; `new_name` is not a valid name; the pool or the volume is read-only; a
    /// descriptor of it cannot be read; the medium's, after which the next opening finds one of the two
    /// names.
    pub fn rename_volume(&self, name: &str, new_name: &str) -> Result<(), PoolError> {
        let _admin = self.admin.lock();
        self.writable()?;
        check_name(new_name)?;
        let volume = self.volume(name)?;
        if let Some(reason) = volume.damage() {
            return Err(PoolError::Damaged { volume: name.to_owned(), reason: reason.to_owned() });
        }
        if volume.read_only_reason().is_some() {
            return Err(PoolError::ReadOnly("its volumes cannot be renamed".into()));
        }
        if self.volumes.read().contains_key(new_name) {
            return Err(PoolError::VolumeExists { name: new_name.to_owned() });
        }
        let descriptor = Descriptor { name: padded(new_name), ..*volume.descriptor() }.sealed();
        let sb = *self.shared.superblock.lock();
        // Durable before the name is visible: its users may rely on it after a crash.
        store_descriptor(&*self.shared.medium, &sb, volume.header_at, &descriptor)?;
        // One lock for both changes: no thread finds the volume under both names or under none.
        let mut volumes = self.volumes.write();
        volume.set_name(descriptor);
        volumes.remove(name);
        volumes.insert(new_name.to_owned(), volume);
        Ok(())
    }

    /// Checks that `size_bytes` can be a volume's size.
    ///
    /// # Errors
    /// `Invalid` if not.
    pub fn check_volume_size(&self, size_bytes: u64) -> Result<(), PoolError> {
        check_size(size_bytes)
    }
}

fn put(header: &mut [u8], at: u64, bytes: &[u8]) {
    let at = usize::try_from(at).expect("a place in a header");
    header[at..at + bytes.len()].copy_from_slice(bytes);
}

/// `name` as a descriptor has it.
fn padded(name: &str) -> [u8; NAME_BYTES_MAX] {
    let mut padded = [0; NAME_BYTES_MAX];
    padded[..name.len()].copy_from_slice(name.as_bytes());
    padded
}

/// Stores a volume's state durably.
pub(super) fn store_state<M: Medium>(
    medium: &M,
    header_at: PoolOffset,
    state: VolumeState,
) -> Result<(), MediaError> {
    let at = header_at.plus(STATE_AT);
    let mut dirty = Dirty::default();
    dirty.store_word(medium, at, encode_word(state.code()));
    dirty.flush(medium).fence(medium)?;
    Ok(())
}
