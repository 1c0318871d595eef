//! Damage to an image, done with knowledge of the format.
//!
//! A changed structure can get a right checksum, so that fuzzing reaches the code behind it. The
//! image is not trusted: earlier damage may have hit the target of later damage.

use std::mem::offset_of;

use arbitrary::Arbitrary;
use everbyte_media::{BLOCK_U64, BlockNo, LINE_U64, Medium, PoolOffset};
use everbyte_pool::format::{
    COMPLETED_A_AT, COMPLETED_B_AT, DESCRIPTOR_AT, Descriptor, Entry, EntryFlags, ROOT_AT,
    RecordHeader, SIZE_AT, STATE_AT, SUPERBLOCK_COPIES, Superblock, WordItem, decode_word,
    encode_word,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A field of a layout type: its offset and length in bytes.
type Field = (usize, usize);

macro_rules! fields {
    ($type:ty: $($field:ident $len:literal),+) => {
        [$((offset_of!($type, $field), $len)),+]
    };
}

const SUPERBLOCK: [Field; 15] = fields!(Superblock:
    version 4, block_bytes 4, compat 8, ro_compat 8, incompat 8, pool_uid 8, generation 8,
    size_blocks 8, table_start 8, table_slots 8, data_start 8, next_volume_uid 8, clean 8,
    saved_start 8, saved_bytes 8);
const DESCRIPTOR: [Field; 11] = fields!(Descriptor:
    uid 8, kind 4, map 4, name 8, log_start 8, lanes 4, half_blocks 4, threshold_lines 4, delta 4,
    log_key 8, checksum 4);
const RECORD: [Field; 11] = fields!(RecordHeader:
    log_key 8, epoch 8, seq 4, commit_start 4, position 4, lane 2, kind 2, count 4, order 4,
    target 8, old 8);

/// A change of a number.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(crate) enum Change {
    Set(u64),
    Small(u8),
    Add(i8),
    Flip(u8),
}

impl Change {
    fn of(self, old: u64) -> u64 {
        match self {
            Self::Set(value) => value,
            Self::Small(value) => value.into(),
            Self::Add(more) => old.wrapping_add_signed(more.into()),
            Self::Flip(bit) => old ^ (1 << (bit % 64)),
        }
    }
}

/// One of two copies.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(crate) enum Copies {
    Both,
    First,
    Second,
}

impl Copies {
    fn of<T: Copy>(self, [first, second]: [T; 2]) -> Vec<T> {
        match self {
            Self::Both => vec![first, second],
            Self::First => vec![first],
            Self::Second => vec![second],
        }
    }
}

/// A checked word of a volume header.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(crate) enum HeaderWord {
    State,
    Completed(Copies),
    Root,
    Size,
}

/// A replacement of an entry.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(crate) enum NewEntry {
    Hole,
    Block { block: u8, zero: bool, height: u8 },
    FarBlock { block: u64 },
    Raw(Change),
}

/// An address that a forged record restores to.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(crate) enum Target {
    Block { block: u8, word: u16 },
    Raw(u64),
}

/// A forged record.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(crate) struct Forged {
    /// Epochs after the completed one.
    epoch_ahead: u8,
    /// Line of the half for the record; `None` puts it behind the existing records.
    at_line: Option<u16>,
    seq_ahead: u8,
    commit_ahead: i8,
    /// Words, lines or redo.
    kind: u8,
    items: u8,
    target: Target,
    step: u8,
    old: Change,
}

/// One damage to an image.
#[derive(Debug, Arbitrary)]
pub(crate) enum Damage {
    Superblock { copies: Copies, field: u8, change: Change, sealed: bool },
    Descriptor { slot: u8, copies: Copies, field: u8, change: Change, sealed: bool },
    Word { slot: u8, word: HeaderWord, change: Change, sealed: bool },
    Entry { slot: u8, node: u8, index: u16, entry: NewEntry },
    Record { slot: u8, nth: u8, field: u8, change: Change, sealed: bool },
    Forge { slot: u8, forged: Forged },
    TearLogLine { slot: u8, line: u16, byte: u8 },
    SavedState { at: u16, flip: u8, sealed: bool },
    CopyBlock { from: u8, to: u8 },
    Byte { at: u32, flip: u8 },
}

/// The parts of an image that were damaged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extent {
    /// Any part was damaged.
    pub(crate) any: bool,
    /// Recovery's evidence was damaged, so each opening may find another past: a forged record may
    /// belong to an epoch that is still to come.
    pub(crate) past: bool,
}

/// Applies `damage` to the image on `medium`.
pub(crate) fn apply<'d, M: Medium>(medium: &M, damage: impl Iterator<Item = &'d Damage>) -> Extent {
    let image = Image { medium, blocks: medium.len() / BLOCK_U64 };
    let mut extent = Extent::default();
    for damage in damage {
        extent.any = true;
        // Judged before the damage is made: it may destroy the descriptor that tells the place of
        // the log.
        extent.past |= image.is_past(damage);
        image.apply(damage);
    }
    extent
}

struct Image<'m, M> {
    medium: &'m M,
    blocks: u64,
}

impl<M: Medium> Image<'_, M> {
    fn apply(&self, damage: &Damage) {
        match *damage {
            Damage::Superblock { copies, field, change, sealed } => {
                for at in copies.of(SUPERBLOCK_COPIES) {
                    self.change(at, pick(&SUPERBLOCK, field), change);
                    if sealed {
                        self.rewrite(at, Superblock::sealed);
                    }
                }
            }
            Damage::Descriptor { slot, copies, field, change, sealed } => {
                for copy in copies.of(DESCRIPTOR_AT) {
                    let at = header(slot).plus(copy);
                    self.change(at, pick(&DESCRIPTOR, field), change);
                    if sealed {
                        self.rewrite(at, Descriptor::sealed);
                    }
                }
            }
            Damage::Word { slot, word, change, sealed } => self.word(slot, word, change, sealed),
            Damage::Entry { slot, node, index, entry } => self.entry(slot, node, index, entry),
            Damage::Record { slot, nth, field, change, sealed } => {
                let records = self.records(slot);
                let Some(&at) = records.get(usize::from(nth) % records.len().max(1)) else {
                    return;
                };
                self.change(at, pick(&RECORD, field), change);
                if sealed {
                    self.rewrite(at, RecordHeader::sealed);
                }
            }
            Damage::Forge { slot, forged } => self.forge(slot, forged),
            Damage::TearLogLine { slot, line, byte } => {
                let Some(log) = self.log(slot) else { return };
                let line = u64::from(line) % (2 * log.half_bytes / LINE_U64);
                self.medium.store(log.start.plus(line * LINE_U64), &[byte; 64]);
            }
            Damage::SavedState { at, flip, sealed } => self.saved_state(at, flip, sealed),
            Damage::CopyBlock { from, to } => {
                let block = |number: u8| BlockNo(u64::from(number) % self.blocks).offset();
                let mut bytes = [0; 4096];
                self.medium.read(block(from), &mut bytes);
                self.medium.store(block(to), &bytes);
            }
            Damage::Byte { at, flip } => {
                let at = PoolOffset(u64::from(at) % self.medium.len());
                self.flip(at, flip);
            }
        }
    }

    /// Returns true if `damage` touches recovery's evidence in a way that its checks may not
    /// notice.
    fn is_past(&self, damage: &Damage) -> bool {
        match *damage {
            Damage::Descriptor { .. }
            | Damage::Word { word: HeaderWord::Completed(_), .. }
            | Damage::Record { .. }
            | Damage::Forge { .. }
            | Damage::CopyBlock { .. } => true,
            Damage::Byte { at, .. } => {
                let block = PoolOffset(u64::from(at) % self.medium.len()).block().0;
                let in_log = |log: Log| (log.start.block().0..log.end.block().0).contains(&block);
                let slots = 0..super::origin::SLOTS as u8;
                // Superblocks and headers state completed epochs and places of logs.
                block < 2 + super::origin::SLOTS
                    || slots.filter_map(|slot| self.log(slot)).any(in_log)
            }
            Damage::Superblock { .. }
            | Damage::Word { .. }
            | Damage::Entry { .. }
            | Damage::TearLogLine { .. }
            | Damage::SavedState { .. } => false,
        }
    }

    fn flip(&self, at: PoolOffset, flip: u8) {
        let mut byte = [0];
        self.medium.read(at, &mut byte);
        self.medium.store(at, &[byte[0] ^ flip]);
    }

    /// Changes the little-endian number in a field of the structure at `at`.
    fn change(&self, at: PoolOffset, (offset, len): Field, change: Change) {
        let at = at.plus(offset as u64);
        let mut bytes = [0; 8];
        self.medium.read(at, &mut bytes[..len]);
        let changed = change.of(u64::from_le_bytes(bytes)).to_le_bytes();
        self.medium.store(at, &changed[..len]);
    }

    fn read<T: FromBytes + IntoBytes>(&self, at: PoolOffset) -> T {
        let mut value = T::new_zeroed();
        self.medium.read(at, value.as_mut_bytes());
        value
    }

    fn rewrite<T: FromBytes + IntoBytes + Immutable>(
        &self,
        at: PoolOffset,
        change: impl FnOnce(T) -> T,
    ) {
        self.medium.store(at, change(self.read(at)).as_bytes());
    }

    fn word(&self, slot: u8, word: HeaderWord, change: Change, sealed: bool) {
        let places = match word {
            HeaderWord::State => vec![STATE_AT],
            HeaderWord::Completed(copies) => copies.of([COMPLETED_A_AT, COMPLETED_B_AT]),
            HeaderWord::Root => vec![ROOT_AT],
            HeaderWord::Size => vec![SIZE_AT],
        };
        for at in places.into_iter().map(|place| header(slot).plus(place)) {
            self.medium.store_word(at, changed_word(self.medium.load_word(at), change, sealed));
        }
    }

    /// Puts an entry into a node of the map; node 0 is the header with the root.
    fn entry(&self, slot: u8, node: u8, index: u16, entry: NewEntry) {
        let nodes = self.nodes(slot);
        let at = match nodes.get((usize::from(node) % (nodes.len() + 1)).wrapping_sub(1)) {
            Some(block) => block.offset().plus(u64::from(index) % 512 * 8),
            None => header(slot).plus(ROOT_AT),
        };
        let word = match entry {
            NewEntry::Hole => 0,
            NewEntry::Block { block, zero, height } => {
                entry_word(u64::from(block) % self.blocks, zero, height)
            }
            NewEntry::FarBlock { block } => entry_word(block, false, 0),
            NewEntry::Raw(change) => changed_word(self.medium.load_word(at), change, true),
        };
        self.medium.store_word(at, word);
    }

    /// Returns the blocks of the map that can be found.
    fn nodes(&self, slot: u8) -> Vec<BlockNo> {
        let root = Entry::decode(self.medium.load_word(header(slot).plus(ROOT_AT)));
        let Ok(Some(root)) = root else { return Vec::new() };
        let mut nodes = vec![];
        let mut level = vec![root.block];
        for height in (0..=root.flags.height.clamp(1, 3)).rev() {
            // Entries may be damaged already and lead out of the pool.
            level.retain(|block| block.0 < self.blocks);
            if height == 0 {
                break;
            }
            nodes.extend(&level);
            let words = level.iter().flat_map(|node| (0..512).map(|i| node.offset().plus(i * 8)));
            let entries = words.filter_map(|at| Entry::decode(self.medium.load_word(at)).ok()?);
            // Bounded, because damaged nodes may name each other.
            level = entries.map(|entry| entry.block).take(8).collect();
        }
        nodes
    }

    /// Returns the log of the volume in `slot`, if its descriptor can be true.
    fn log(&self, slot: u8) -> Option<Log> {
        let descriptor: Descriptor = self.read(header(slot).plus(DESCRIPTOR_AT[0]));
        // The descriptor may be damaged already, so its log may lie anywhere.
        let end = descriptor.log_start.checked_add(descriptor.log_blocks())?;
        let fits = descriptor.half_blocks > 0 && descriptor.lanes > 0 && end <= self.blocks;
        fits.then(|| Log {
            key: descriptor.log_key,
            start: BlockNo(descriptor.log_start).offset(),
            end: BlockNo(end).offset(),
            half_bytes: u64::from(descriptor.half_blocks) * BLOCK_U64,
        })
    }

    /// Returns the offsets of the records in the first lane, both halves.
    fn records(&self, slot: u8) -> Vec<PoolOffset> {
        let Some(log) = self.log(slot) else { return Vec::new() };
        let halves = [0, log.half_bytes].map(|half| log.start.plus(half));
        halves.into_iter().flat_map(|start| self.records_from(start, log.half_bytes)).collect()
    }

    fn records_from(&self, start: PoolOffset, half_bytes: u64) -> Vec<PoolOffset> {
        let mut found = Vec::new();
        let mut position = 0;
        while position + LINE_U64 <= half_bytes {
            let record: RecordHeader = self.read(start.plus(position));
            // Later records cannot be found: each one begins at the end of the record before.
            if record.known_kind().is_none() || record.crc != record.expected_crc() {
                break;
            }
            found.push(start.plus(position));
            position += LINE_U64 + record.payload_bytes();
        }
        found
    }

    fn forge(&self, slot: u8, forged: Forged) {
        let Some(log) = self.log(slot) else { return };
        let completed = self.medium.load_word(header(slot).plus(COMPLETED_A_AT));
        let completed = decode_word(completed).unwrap_or(0);
        // Recovery reads epochs c+1 and c+2. The others must be ignored.
        let epoch = completed + u64::from(forged.epoch_ahead % 4);
        // Epochs take the two halves in turn.
        let half = log.start.plus(epoch % 2 * log.half_bytes);
        let records = self.records_from(half, log.half_bytes);
        let last = records.last().map(|&at| {
            let record: RecordHeader = self.read(at);
            (at.0 - half.0 + LINE_U64 + record.payload_bytes(), record)
        });
        // Records of a dead epoch are written over from the start.
        let live = last.filter(|(_, record)| record.epoch == epoch);
        let (behind, seq) = live.map_or((0, 0), |(end, record)| (end, record.seq.wrapping_add(1)));
        let position = forged.at_line.map_or(behind, |line| u64::from(line) * LINE_U64);
        let target = self.target(forged.target);
        let old = forged.old.of(self.word_at(target));
        let kind = u16::from(forged.kind % 3) + 1;
        // A record of lines has the count of its mask `old`.
        let count = if kind == 1 { u32::from(forged.items) + 1 } else { old.count_ones() };
        let seq = seq.wrapping_add(forged.seq_ahead.into());
        let mut record = RecordHeader {
            crc: 0,
            payload_crc: 0,
            log_key: log.key,
            epoch,
            seq,
            commit_start: seq.wrapping_add_signed(forged.commit_ahead.into()),
            position: u32::try_from(position / LINE_U64).unwrap_or(u32::MAX),
            lane: 0,
            kind,
            count,
            order: forged.step.into(),
            target,
            old,
        };
        let mut payload = vec![forged.step; record.payload_bytes() as usize];
        if kind == 1 {
            for (nth, bytes) in payload.chunks_exact_mut(16).enumerate() {
                let step = u64::from(forged.step) * (nth as u64 + 1);
                let item = WordItem { target: target.wrapping_add(step), old };
                bytes.copy_from_slice(item.as_bytes());
            }
        }
        record.payload_crc = crc32c::crc32c(&payload);
        let end = position + LINE_U64 + payload.len() as u64;
        if end <= log.half_bytes {
            self.medium.store(half.plus(position), record.sealed().as_bytes());
            self.medium.store(half.plus(position + LINE_U64), &payload);
        }
    }

    fn target(&self, target: Target) -> u64 {
        match target {
            Target::Block { block, word } => {
                u64::from(block) % self.blocks * BLOCK_U64 + u64::from(word) % 512 * 8
            }
            Target::Raw(address) => address,
        }
    }

    /// Returns the word at `address`, or 0 if there is none.
    fn word_at(&self, address: u64) -> u64 {
        let fits = address.is_multiple_of(8) && address < self.medium.len();
        if fits { self.medium.load_word(PoolOffset(address)) } else { 0 }
    }

    fn saved_state(&self, at: u16, flip: u8, sealed: bool) {
        let superblock: Superblock = self.read(SUPERBLOCK_COPIES[0]);
        let start = superblock.saved_start;
        let len = superblock.saved_bytes;
        // Without a saved state, or with damaged numbers, there is nothing to change.
        if start == 0 || start >= self.blocks || len == 0 || len > BLOCK_U64 {
            return;
        }
        let start = BlockNo(start).offset();
        self.flip(start.plus(u64::from(at) % len), flip);
        if sealed {
            let mut bytes = vec![0; len as usize];
            self.medium.read(start, &mut bytes);
            for copy in SUPERBLOCK_COPIES {
                self.rewrite(copy, |mut superblock: Superblock| {
                    superblock.saved_crc = crc32c::crc32c(&bytes);
                    superblock.sealed()
                });
            }
        }
    }
}

struct Log {
    key: u64,
    start: PoolOffset,
    end: PoolOffset,
    half_bytes: u64,
}

fn pick(fields: &[Field], nth: u8) -> Field {
    fields[usize::from(nth) % fields.len()]
}

fn header(slot: u8) -> PoolOffset {
    BlockNo(2 + u64::from(slot) % super::origin::SLOTS).offset()
}

fn changed_word(old: u64, change: Change, sealed: bool) -> u64 {
    const VALUE: u64 = (1 << 48) - 1;
    // A right check value hides the change from the word's own check.
    if sealed { encode_word(change.of(old & VALUE) & VALUE) } else { change.of(old) }
}

fn entry_word(block: u64, zero: bool, height: u8) -> u64 {
    let block = BlockNo((block & ((1 << 40) - 1)).max(1));
    Entry { block, flags: EntryFlags { zero, height: height % 8 } }.encode()
}
