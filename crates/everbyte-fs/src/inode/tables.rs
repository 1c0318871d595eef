//! Inode tables: which inodes are used, free, or orphaned, and where they lie.
//!
//! Invariants:
//! - The bits of a table are the truth. What is free is also in DRAM, so that nobody looks for it.
//! - An inode is taken by one thread at a time. Its bits change under the lock of its table's stripe,
//!   which the batch holds until it has ended.
//! - An inode that was freed is free for others once that is durable: until then a crash may bring it
//!   back. So its slot is filled without a record.

use std::alloc::{Layout, handle_alloc_error};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::{Medium, PoolOffset};
use everbyte_plant::planted;
use everbyte_pool::format::{decode_word, encode_word};
use everbyte_pool::sync::{Mutex, MutexGuard};
use everbyte_pool::{Batch, Claim, Corrupt, UsedExtent, Volume, check_readable};
use zerocopy::FromZeros;

use crate::error::FsError;
use crate::format::number::InodeNo;
use crate::format::reader::Reader;
use crate::format::{
    Bit, Difference, FsSuperblock, INODE_BYTES, InodeWords, TABLES_AT, TableGeometry,
};
use crate::index::{self, TableIndex, Tables};
use crate::inode::locks;
use crate::inode::lookup_count;
use crate::plant::Bug;

/// Name of a table in errors.
const TABLE: &str = "inode table";
const STRIPES: usize = 64;
const SHARDS: usize = 16;
/// Tables whose heads are fetched before they are looked at, where all are.
const TABLES_AHEAD: u64 = 16;

/// The inode tables of a file system that is open.
pub(crate) struct InodeTables<M: Medium> {
    geometry: TableGeometry,
    tables_max: u64,
    index: Box<dyn TableIndex<M>>,
    tables_at: PoolOffset,
    tables: AtomicU64,
    used: AtomicU64,
    /// Whoever makes a table.
    growing: Mutex<()>,
    stripes: [Mutex<()>; STRIPES],
    shards: [Mutex<Shard>; SHARDS],
    /// The newest epochs in which any inode of a stripe was changed.
    changed: Box<[Changes]>,
}

/// Epochs in which inodes were changed.
#[derive(FromZeros)]
struct Changes {
    any: AtomicU64,
    /// The newest in which more than the time of the last access was changed.
    beyond_access: AtomicU64,
    /// The newest in which more than times was changed.
    beyond_times: AtomicU64,
}

/// Raises an epoch to `epoch`, if it is lower. Mostly it is not, and a locked instruction would wait for all that was
/// streamed before it.
fn raise(word: &AtomicU64, epoch: u64) {
    if word.load(Ordering::Acquire) < epoch {
        word.fetch_max(epoch, Ordering::AcqRel);
    }
}

/// Free inodes.
#[derive(Default)]
struct Shard {
    free: Vec<InodeNo>,
    /// Those that were freed, and the epoch of that, ascending.
    waiting: VecDeque<(u64, InodeNo)>,
}

/// A free inode that a thread has taken; free again when it is dropped, unless it was used.
pub(crate) struct AllocatedInode<'t, M: Medium> {
    tables: &'t InodeTables<M>,
    /// Its number.
    pub(crate) number: InodeNo,
    /// Its address.
    pub(crate) at: PoolOffset,
    is_used: bool,
}

impl<M: Medium> AllocatedInode<'_, M> {
    /// Says that the inode is in use now.
    pub(crate) fn keep(mut self) {
        self.is_used = true;
        self.tables.used.fetch_add(1, Ordering::Relaxed);
    }
}

impl<M: Medium> Drop for AllocatedInode<'_, M> {
    fn drop(&mut self) {
        if !self.is_used {
            self.tables.shard_of(self.number).lock().free.push(self.number);
        }
    }
}

impl<M: Medium> InodeTables<M> {
    /// The tables of the file system whose superblock is at `at`. Which inodes are free is not known
    /// yet.
    pub(crate) fn open(
        superblock: &FsSuperblock,
        at: PoolOffset,
        reader: Reader<'_, M>,
    ) -> Result<Self, Corrupt> {
        let tables_at = at.plus(TABLES_AT);
        let word = FsSuperblock::tables_word(reader, at)?;
        // Whoever judges them looks for each, so there are no more than fit.
        let (blocks, geometry) = (reader.data.blocks(), superblock.geometry());
        let max = superblock.tables_max.min((blocks.end - blocks.start) / geometry.blocks());
        let tables = decode_word(word).filter(|&tables| tables <= max);
        let wrong = || Corrupt::new("number of inode tables", tables_at, "there cannot be so many");
        Ok(Self {
            geometry,
            tables_max: superblock.tables_max,
            index: index::open(superblock, at, reader)?,
            tables_at,
            tables: AtomicU64::new(tables.ok_or_else(wrong)?),
            used: AtomicU64::new(0),
            growing: Mutex::new(()),
            stripes: std::array::from_fn(|_| Mutex::new(())),
            shards: std::array::from_fn(|_| Mutex::new(Shard::default())),
            changed: <[Changes]>::new_box_zeroed_with_elems(locks::STRIPES)
                .unwrap_or_else(|_| handle_alloc_error(Layout::new::<Changes>())),
        })
    }

    /// Number of tables.
    pub(crate) fn tables(&self) -> u64 {
        self.tables.load(Ordering::Acquire)
    }

    /// Inodes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Most inodes that there can be.
    pub(crate) fn inodes_max(&self) -> u64 {
        self.tables_max * self.geometry.usable()
    }

    /// Notes that a batch of `epoch` changes that much of `inode`.
    pub(crate) fn note_change(&self, inode: InodeNo, epoch: u64, difference: Difference) {
        let changes = &self.changed[locks::stripe_of(inode)];
        raise(&changes.any, epoch);
        if difference > Difference::Access {
            raise(&changes.beyond_access, epoch);
        }
        if difference > Difference::Times {
            raise(&changes.beyond_times, epoch);
        }
    }

    /// An epoch since which `inode` has not been changed. 0 if it was not since the opening.
    pub(crate) fn changed_in(&self, inode: InodeNo) -> u64 {
        self.changed[locks::stripe_of(inode)].any.load(Ordering::Acquire)
    }

    /// The same where changes of the time of the last access alone do not count.
    pub(crate) fn changed_beyond_access_in(&self, inode: InodeNo) -> u64 {
        self.changed[locks::stripe_of(inode)].beyond_access.load(Ordering::Acquire)
    }

    /// The same where changes of times alone do not count.
    pub(crate) fn changed_beyond_times_in(&self, inode: InodeNo) -> u64 {
        self.changed[locks::stripe_of(inode)].beyond_times.load(Ordering::Acquire)
    }

    fn shard_of(&self, inode: InodeNo) -> &Mutex<Shard> {
        &self.shards[place(self.geometry.table_of(inode), SHARDS)]
    }

    fn stripe_of(&self, inode: InodeNo) -> &Mutex<()> {
        &self.stripes[place(self.geometry.table_of(inode), STRIPES)]
    }

    /// The address of table number `table`.
    ///
    /// # Errors
    /// The index cannot be right, or has no such table.
    pub(crate) fn table_at(
        &self,
        reader: Reader<'_, M>,
        table: u64,
    ) -> Result<PoolOffset, Corrupt> {
        let at = self.index.find(reader, table)?.ok_or_else(|| self.counted().missing(table))?;
        if self.geometry.blocks() > 1 {
            index::check_place(reader, at, self.geometry.blocks())?;
        }
        Ok(at)
    }

    /// The same of a number that may be none of a table.
    ///
    /// # Errors
    /// There is no such table, or the index cannot be right.
    pub(crate) fn known_table_at(
        &self,
        reader: Reader<'_, M>,
        table: u64,
    ) -> Result<PoolOffset, Corrupt> {
        let counted = self.counted();
        if table >= counted.count {
            return Err(counted.missing(table));
        }
        self.table_at(reader, table)
    }

    /// The tables that there are.
    fn counted(&self) -> Tables {
        let (count, blocks) = (self.tables(), self.geometry.blocks());
        Tables { count, counted_at: self.tables_at, blocks }
    }

    /// The address of `inode`, if it is in use.
    ///
    /// # Errors
    /// The index cannot be right.
    pub(crate) fn find(
        &self,
        reader: Reader<'_, M>,
        inode: InodeNo,
    ) -> Result<Option<PoolOffset>, Corrupt> {
        let table = self.geometry.table_of(inode);
        if table >= self.tables.load(Ordering::Acquire) || !self.geometry.is_inode(inode) {
            return Ok(None);
        }
        lookup_count::count();
        let table_at = self.table_at(reader, table)?;
        let used = self.geometry.used(table_at, inode);
        let word = match self.index.window() {
            Some(window) => {
                let place = self.geometry.used(self.place_of(table), inode).at;
                reader.medium.load_word_in(window, place.0)
            }
            None => reader.medium.load_word(used.at),
        };
        check_readable(reader.medium, TABLE, used.at, 8)?;
        let is_used = word & used.mask != 0;
        Ok(is_used.then(|| self.geometry.inode_at(table_at, inode)))
    }

    /// The address of `inode` and its words, if it is in use.
    ///
    /// # Errors
    /// The index cannot be right, or the inode.
    pub(crate) fn load(
        &self,
        reader: Reader<'_, M>,
        inode: InodeNo,
    ) -> Result<Option<(PoolOffset, InodeWords)>, Corrupt> {
        let mut words = InodeWords::EMPTY;
        let at = self.load_into(reader, inode, &mut words)?;
        Ok(at.map(|at| (at, words)))
    }

    /// The same with the words in `words`, which may hold anything if it fails.
    ///
    /// # Errors
    /// As [`InodeTables::load`].
    pub(crate) fn load_into(
        &self,
        reader: Reader<'_, M>,
        inode: InodeNo,
        words: &mut InodeWords,
    ) -> Result<Option<PoolOffset>, Corrupt> {
        let Some(at) = self.find(reader, inode)? else { return Ok(None) };
        let medium = reader.medium;
        match self.index.window() {
            Some(window) => words.load_by(medium, at, inode, |words| {
                medium.read_in(window, inode.0 * INODE_BYTES, words);
            })?,
            None => words.load_by(medium, at, inode, |words| medium.read(at, words))?,
        }
        Ok(Some(at))
    }

    /// The place of a table in a window.
    fn place_of(&self, table: u64) -> PoolOffset {
        PoolOffset(self.geometry.inode(table, 0).0 * INODE_BYTES)
    }

    /// Takes a free inode, and makes a table if there is none. Where there can be no further table, or is no space for
    /// one, it makes durable what was deleted, whose inodes are free then.
    ///
    /// # Errors
    /// `NoInodes`, `NoSpace`, or the volume's.
    pub(crate) fn take<'t>(
        &'t self,
        volume: &'t Volume<M>,
    ) -> Result<AllocatedInode<'t, M>, FsError> {
        loop {
            if let Some(number) = self.pop(volume) {
                lookup_count::count();
                let table_at = self.table_at(reader_of(volume), self.geometry.table_of(number))?;
                let at = self.geometry.inode_at(table_at, number);
                return Ok(AllocatedInode { tables: self, number, at, is_used: false });
            }
            match self.grow_if_none(volume) {
                Err(FsError::NoInodes { .. } | FsError::NoSpace) if self.any_wait() => {
                    volume.flush()?;
                }
                grown => grown?,
            }
        }
    }

    /// Returns true if there are inodes that were freed, and are not yet free for others.
    fn any_wait(&self) -> bool {
        self.shards.iter().any(|shard| !shard.lock().waiting.is_empty())
    }

    fn pop(&self, volume: &Volume<M>) -> Option<InodeNo> {
        let completed = volume.completed_epoch();
        self.shards.iter().find_map(|shard| {
            let shard = &mut *shard.lock();
            while shard.waiting.front().is_some_and(|(epoch, _)| *epoch <= completed) {
                shard.free.extend(shard.waiting.pop_front().map(|(_, inode)| inode));
            }
            shard.free.pop()
        })
    }

    /// Makes a table, in a batch of its own.
    ///
    /// # Errors
    /// `NoInodes`, `NoSpace`, or the volume's.
    pub(crate) fn grow(&self, volume: &Volume<M>) -> Result<(), FsError> {
        self.make_table(volume, &self.growing.lock())
    }

    /// The same unless an inode is free by now, of a table that somebody else made meanwhile.
    fn grow_if_none(&self, volume: &Volume<M>) -> Result<(), FsError> {
        let growing = self.growing.lock();
        if self.shards.iter().any(|shard| !shard.lock().free.is_empty()) {
            return Ok(());
        }
        self.make_table(volume, &growing)
    }

    /// Makes a table. The lock is held until its inodes are free for others, who wait for it instead of
    /// looking for them again and again.
    fn make_table(&self, volume: &Volume<M>, _growing: &MutexGuard<'_, ()>) -> Result<(), FsError> {
        let table = self.tables();
        volume.change(|batch, _| self.plan_table(batch, table))?;
        let free = (self.geometry.head_slots()..self.geometry.slots()).rev();
        let free = free.map(|slot| self.geometry.inode(table, slot));
        let count = || self.tables.fetch_max(table + 1, Ordering::AcqRel);
        // Whoever takes one of them must find its table.
        if !planted(Bug::TableCountedLate) {
            count();
        }
        self.shards[place(table, SHARDS)].lock().free.extend(free);
        if planted(Bug::TableCountedLate) {
            count();
        }
        Ok(())
    }

    /// Plans that there is table number `table`, the next one.
    fn plan_table(&self, batch: &mut Batch<'_, '_, M>, table: u64) -> Result<(), FsError> {
        if table >= self.tables_max {
            return Err(FsError::NoInodes { max: self.inodes_max() });
        }
        let start = self.index.take_table(batch, table, self.geometry.blocks())?;
        batch.stream(start.offset(), &self.geometry.head(table, &[]));
        self.index.plan_insert(batch, table, start)?;
        if planted(Bug::TableUnlogged) {
            batch.fill_word(self.tables_at, encode_word(table + 1));
            return Ok(());
        }
        batch.change_word(self.tables_at, encode_word(table + 1));
        Ok(())
    }

    /// Plans that `inode`, whose slot is filled, is in use; without a name if `is_orphan`.
    pub(crate) fn plan_use<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        inode: InodeNo,
        is_orphan: bool,
    ) -> Result<(), Corrupt> {
        self.note_change(inode, batch.writer().epoch(), Difference::More);
        let table_at = self.hold_table(batch, inode)?;
        plan_bit(batch, self.geometry.used(table_at, inode), true)?;
        // Of an inode that was free this one means nothing, and a bit that has flipped there was no damage.
        plan_bit(batch, self.geometry.orphan(table_at, inode), is_orphan)
    }

    /// Plans that `inode` is, or is not any more, in use without a name.
    pub(crate) fn plan_orphan<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        inode: InodeNo,
        is_orphan: bool,
    ) -> Result<(), Corrupt> {
        let table_at = self.hold_table(batch, inode)?;
        plan_bit(batch, self.geometry.orphan(table_at, inode), is_orphan)
    }

    /// Plans that `inode` is free.
    pub(crate) fn plan_free<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        inode: InodeNo,
    ) -> Result<(), Corrupt> {
        let table_at = self.hold_table(batch, inode)?;
        plan_bit(batch, self.geometry.used(table_at, inode), false)?;
        plan_bit(batch, self.geometry.orphan(table_at, inode), false)
    }

    /// Notes that `inode` was freed in `epoch`.
    pub(crate) fn freed(&self, inode: InodeNo, epoch: u64) {
        self.used.fetch_sub(1, Ordering::Relaxed);
        let shard = &mut *self.shard_of(inode).lock();
        if planted(Bug::InodeReusedEarly) {
            shard.free.push(inode);
            return;
        }
        let place = shard.waiting.partition_point(|(other, _)| *other <= epoch);
        shard.waiting.insert(place, (epoch, inode));
    }

    /// Locks the tables of all inodes whose bits a batch may change, where that is more than one, in the order in which
    /// every such batch does it: none waits for another that waits for it.
    pub(crate) fn hold_tables<'t>(&'t self, batch: &mut Batch<'t, '_, M>, inodes: [InodeNo; 2]) {
        let mut stripes = inodes.map(|inode| place(self.geometry.table_of(inode), STRIPES));
        stripes.sort_unstable();
        for stripe in stripes {
            batch.hold(&self.stripes[stripe]);
        }
    }

    /// The address of the table of `inode`, whose bits nobody else changes until the batch has ended.
    fn hold_table<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        inode: InodeNo,
    ) -> Result<PoolOffset, Corrupt> {
        batch.hold(self.stripe_of(inode));
        lookup_count::count();
        self.table_at(reader_of(batch.volume()), self.geometry.table_of(inode))
    }

    /// Finds out which inodes are free, and returns those that are in use without a name.
    ///
    /// # Errors
    /// A table cannot be right.
    pub(crate) fn gather(&self, reader: Reader<'_, M>) -> Result<Vec<InodeNo>, Corrupt> {
        let (mut orphans, mut used) = (Vec::new(), 0);
        self.each_slot(reader, &mut |inode, _, state| {
            match state {
                SlotState::Free => self.shard_of(inode).lock().free.push(inode),
                SlotState::Used => used += 1,
                SlotState::Orphan => {
                    used += 1;
                    orphans.push(inode);
                }
            }
            Ok(())
        })?;
        self.used.fetch_add(used, Ordering::Relaxed);
        // The lowest numbers are taken first.
        self.shards.iter().for_each(|shard| shard.lock().free.reverse());
        Ok(orphans)
    }

    /// Shows every slot of every table that can be an inode, with its address and state.
    pub(crate) fn each_slot(
        &self,
        reader: Reader<'_, M>,
        on_slot: &mut dyn FnMut(InodeNo, PoolOffset, SlotState) -> Result<(), Corrupt>,
    ) -> Result<(), Corrupt> {
        let tables = self.tables();
        for table in 0..tables {
            if table + TABLES_AHEAD < tables {
                let at = self.table_at(reader, table + TABLES_AHEAD)?;
                reader.medium.prefetch(at, self.geometry.head_bytes_first());
            }
            self.each_slot_of(reader, table, on_slot)?;
        }
        Ok(())
    }

    /// The same for one table.
    pub(crate) fn each_slot_of(
        &self,
        reader: Reader<'_, M>,
        table: u64,
        on_slot: &mut dyn FnMut(InodeNo, PoolOffset, SlotState) -> Result<(), Corrupt>,
    ) -> Result<(), Corrupt> {
        let table_at = self.table_at(reader, table)?;
        self.geometry.check(reader.medium, table_at, table)?;
        let (mut used, mut orphans) = (0, 0);
        for slot in self.geometry.head_slots()..self.geometry.slots() {
            let inode = self.geometry.inode(table, slot);
            let bit = self.geometry.used(table_at, inode);
            if slot == self.geometry.head_slots() || bit.mask == 1 {
                let orphan_at = self.geometry.orphan(table_at, inode).at;
                used = bits_at(reader.medium, bit.at)?;
                orphans = bits_at(reader.medium, orphan_at)?;
            }
            let state = SlotState::of(used & bit.mask != 0, orphans & bit.mask != 0);
            on_slot(inode, self.geometry.inode_at(table_at, inode), state)?;
        }
        Ok(())
    }

    /// The state of `inode`, of a table that there is. No batch is in the midst of changing it.
    ///
    /// # Errors
    /// The index cannot be right, or the bits cannot be read.
    pub(crate) fn state_of(
        &self,
        reader: Reader<'_, M>,
        inode: InodeNo,
    ) -> Result<SlotState, Corrupt> {
        let _bits = self.stripe_of(inode).lock();
        let table_at = self.table_at(reader, self.geometry.table_of(inode))?;
        let is_set = |bit: Bit| bits_at(reader.medium, bit.at).map(|bits| bits & bit.mask != 0);
        let is_used = is_set(self.geometry.used(table_at, inode))?;
        let is_orphan = is_set(self.geometry.orphan(table_at, inode))?;
        Ok(SlotState::of(is_used, is_orphan))
    }

    /// Claims the index and the tables.
    ///
    /// # Errors
    /// The first structure that cannot be right, or `claim`'s.
    pub(crate) fn visit(
        &self,
        reader: Reader<'_, M>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        self.index.visit(reader, claim)?;
        self.index.visit_tables(reader, self.counted(), claim)
    }

    /// The extents of the index and the tables at one moment, in which none is added: else what a walk meets later may not
    /// agree with what it has met before. Also returns what ended the walk: a structure that cannot be right, or `note`'s error.
    pub(crate) fn extents(
        &self,
        reader: Reader<'_, M>,
        mut note: impl FnMut(&UsedExtent) -> Result<(), Corrupt>,
    ) -> (Vec<UsedExtent>, Result<(), Corrupt>) {
        let mut extents = Vec::new();
        let _no_other = self.growing.lock();
        let visited = self.visit(reader, &mut |used| {
            note(&used)?;
            extents.push(used);
            Ok(())
        });
        (extents, visited)
    }
}

/// The state of a slot of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotState {
    Free,
    Used,
    /// Used without a name.
    Orphan,
}

impl SlotState {
    fn of(is_used: bool, is_orphan: bool) -> Self {
        match (is_used, is_orphan) {
            (false, _) => Self::Free,
            (true, false) => Self::Used,
            (true, true) => Self::Orphan,
        }
    }

    /// Checks that `inode` at `at`, which is used, has names if it is no orphan, and none if it is one. Its bits have no
    /// check bits of their own.
    ///
    /// # Errors
    /// That is not so.
    pub(crate) fn check_names(
        self,
        inode: InodeNo,
        at: PoolOffset,
        words: &InodeWords,
    ) -> Result<(), Corrupt> {
        if (words.links() == 0) == (self == Self::Orphan) {
            return Ok(());
        }
        Err(Corrupt::new(inode.to_string(), at, "only an orphan has no name"))
    }
}

/// The bits in the word at `at`.
fn bits_at<M: Medium>(medium: &M, at: PoolOffset) -> Result<u64, Corrupt> {
    let bits = medium.load_word(at);
    check_readable(medium, TABLE, at, 8)?;
    Ok(bits)
}

/// Plans that a bit is set or not, if that is a change.
fn plan_bit<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    bit: Bit,
    is_set: bool,
) -> Result<(), Corrupt> {
    let old = batch.word(bit.at);
    check_readable(batch.volume().medium(), TABLE, bit.at, 8)?;
    let new = if is_set { old | bit.mask } else { old & !bit.mask };
    if new != old {
        batch.change_word(bit.at, new);
    }
    Ok(())
}

/// The place of a table among `places` that tables share.
fn place(table: u64, places: usize) -> usize {
    usize::try_from(table % places as u64).expect("less than there are places")
}

/// Reads what lies in an open volume.
pub(crate) fn reader_of<M: Medium>(volume: &Volume<M>) -> Reader<'_, M> {
    Reader::new(volume.medium(), volume.data_area())
}
