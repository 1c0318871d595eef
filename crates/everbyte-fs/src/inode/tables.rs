//! Inode tables: the address and the state (used, free, orphaned) of each inode.
//!
//! Invariants:
//! - The bits of a table are the truth. DRAM also lists the free inodes, so no search reads the bits.
//! - One thread at a time takes an inode. Its bits change under the lock of its table's stripe. The batch
//!   holds that lock until it ends.
//! - A freed inode becomes free for other files once the free is durable. Before that, a crash may restore
//!   the inode.

use std::alloc::{Layout, handle_alloc_error};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::{Medium, PoolOffset};
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

/// Name of a table in errors.
const TABLE: &str = "inode table";
const STRIPES: usize = 64;
const SHARDS: usize = 16;
/// Tables whose heads are prefetched ahead of a scan over all tables.
const TABLES_AHEAD: u64 = 16;

/// The inode tables of an open file system.
pub(crate) struct InodeTables<M: Medium> {
    geometry: TableGeometry,
    tables_max: u64,
    index: Box<dyn TableIndex<M>>,
    tables_at: PoolOffset,
    tables: AtomicU64,
    used: AtomicU64,
    /// Held while a table is added.
    growing: Mutex<()>,
    stripes: [Mutex<()>; STRIPES],
    shards: [Mutex<Shard>; SHARDS],
    /// For each stripe, the newest epochs with a change of an inode.
    changed: Box<[Changes]>,
}

/// Epochs with changes of inodes.
#[derive(FromZeros)]
struct Changes {
    any: AtomicU64,
    /// The newest epoch with a change beyond the time of the last access.
    beyond_access: AtomicU64,
    /// The newest epoch with a change beyond times.
    beyond_times: AtomicU64,
}

/// Raises an epoch to `epoch` if it is lower.
fn raise(word: &AtomicU64, epoch: u64) {
    // In most calls the epoch is not lower. A locked instruction would wait for all streamed stores before
    // it.
    if word.load(Ordering::Acquire) < epoch {
        word.fetch_max(epoch, Ordering::AcqRel);
    }
}

/// Free inodes.
#[derive(Default)]
struct Shard {
    free: Vec<InodeNo>,
    /// Freed inodes with the epoch of the free, ascending.
    waiting: VecDeque<(u64, InodeNo)>,
}

/// A free inode reserved for one thread. A drop without [`AllocatedInode::keep`] frees it again.
pub(crate) struct AllocatedInode<'t, M: Medium> {
    tables: &'t InodeTables<M>,
    /// Its number.
    pub(crate) number: InodeNo,
    /// Its address.
    pub(crate) at: PoolOffset,
    is_used: bool,
}

impl<M: Medium> AllocatedInode<'_, M> {
    /// Marks the inode as used.
    pub(crate) fn keep(mut self) {
        self.is_used = true;
        // Relaxed, because it is a figure of reports. The free lists decide.
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
    /// The tables of the file system whose superblock is at `at`. The list of free inodes stays empty until
    /// [`InodeTables::gather`].
    pub(crate) fn open(
        superblock: &FsSuperblock,
        at: PoolOffset,
        reader: Reader<'_, M>,
    ) -> Result<Self, Corrupt> {
        let tables_at = at.plus(TABLES_AT);
        let word = FsSuperblock::tables_word(reader, at)?;
        // A check looks up each table, so a damaged count must be bounded by the pool's size.
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

    /// Limit of inodes.
    pub(crate) fn inodes_max(&self) -> u64 {
        self.tables_max * self.geometry.usable()
    }

    /// Notes that a batch of `epoch` changes `inode` to the extent of `difference`.
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

    /// An epoch since which `inode` has not changed; 0 if it has not changed since the opening.
    pub(crate) fn changed_in(&self, inode: InodeNo) -> u64 {
        self.changed[locks::stripe_of(inode)].any.load(Ordering::Acquire)
    }

    /// As [`InodeTables::changed_in`], without changes of only the time of the last access.
    pub(crate) fn changed_beyond_access_in(&self, inode: InodeNo) -> u64 {
        self.changed[locks::stripe_of(inode)].beyond_access.load(Ordering::Acquire)
    }

    /// As [`InodeTables::changed_in`], without changes of only times.
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
    /// The index is damaged or lacks the table.
    pub(crate) fn table_at(
        &self,
        reader: Reader<'_, M>,
        table: u64,
    ) -> Result<PoolOffset, Corrupt> {
        let at = self.index.find(reader, table)?.ok_or_else(|| self.counted().missing(table))?;
        if self.geometry.blocks() > 1 {
            // The index checks single blocks. A table of several blocks could leave the data area.
            index::check_place(reader, at, self.geometry.blocks())?;
        }
        Ok(at)
    }

    /// As [`InodeTables::table_at`], for a number that may exceed the number of tables.
    ///
    /// # Errors
    /// There is no such table, or the index is damaged.
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

    /// The number of tables, with the address of its word.
    fn counted(&self) -> Tables {
        let (count, blocks) = (self.tables(), self.geometry.blocks());
        Tables { count, counted_at: self.tables_at, blocks }
    }

    /// The address of `inode`, if the inode is in use.
    ///
    /// # Errors
    /// The index is damaged.
    pub(crate) fn find(
        &self,
        reader: Reader<'_, M>,
        inode: InodeNo,
    ) -> Result<Option<PoolOffset>, Corrupt> {
        let table = self.geometry.table_of(inode);
        // Numbers come from handles of clients, so any number is possible here.
        if table >= self.tables.load(Ordering::Acquire) || !self.geometry.is_inode(inode) {
            return Ok(None);
        }
        let table_at = self.table_at(reader, table)?;
        let used = self.geometry.used(table_at, inode);
        let word = match self.index.window() {
            Some(window) => {
                // The window maps all tables at fixed addresses, so no table address is needed for the load.
                let place = self.geometry.used(self.place_of(table), inode).at;
                reader.medium.load_word_in(window, place.0)
            }
            None => reader.medium.load_word(used.at),
        };
        check_readable(reader.medium, TABLE, used.at, 8)?;
        let is_used = word & used.mask != 0;
        Ok(is_used.then(|| self.geometry.inode_at(table_at, inode)))
    }

    /// The address and the words of `inode`, if the inode is in use.
    ///
    /// # Errors
    /// The index or the inode is damaged.
    pub(crate) fn load(
        &self,
        reader: Reader<'_, M>,
        inode: InodeNo,
    ) -> Result<Option<(PoolOffset, InodeWords)>, Corrupt> {
        let mut words = InodeWords::EMPTY;
        let at = self.load_into(reader, inode, &mut words)?;
        Ok(at.map(|at| (at, words)))
    }

    /// As [`InodeTables::load`], into `words`. After an error `words` has any contents.
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

    /// The address of a table in a window.
    fn place_of(&self, table: u64) -> PoolOffset {
        PoolOffset(self.geometry.inode(table, 0).0 * INODE_BYTES)
    }

    /// Takes a free inode. Adds a table if no inode is free. If no table can be added, makes deletions
    /// durable, because these free inodes.
    ///
    /// # Errors
    /// `NoInodes`, `NoSpace`, or the volume's.
    pub(crate) fn take<'t>(
        &'t self,
        volume: &'t Volume<M>,
    ) -> Result<AllocatedInode<'t, M>, FsError> {
        loop {
            if let Some(number) = self.pop(volume) {
                let table_at = self.table_at(reader_of(volume), self.geometry.table_of(number))?;
                let at = self.geometry.inode_at(table_at, number);
                return Ok(AllocatedInode { tables: self, number, at, is_used: false });
            }
            match self.grow_if_none(volume) {
                // Freed inodes become reusable by a flush, so the caller need not fail.
                Err(FsError::NoInodes { .. } | FsError::NoSpace) if self.any_wait() => {
                    volume.flush()?;
                }
                grown => grown?,
            }
        }
    }

    /// Returns true if freed inodes wait for their epoch to become durable.
    fn any_wait(&self) -> bool {
        self.shards.iter().any(|shard| !shard.lock().waiting.is_empty())
    }

    fn pop(&self, volume: &Volume<M>) -> Option<InodeNo> {
        let completed = volume.completed_epoch();
        self.shards.iter().find_map(|shard| {
            let shard = &mut *shard.lock();
            // A crash may restore an inode of an open epoch, so it waits.
            while shard.waiting.front().is_some_and(|(epoch, _)| *epoch <= completed) {
                shard.free.extend(shard.waiting.pop_front().map(|(_, inode)| inode));
            }
            shard.free.pop()
        })
    }

    /// Adds a table in a separate batch.
    ///
    /// # Errors
    /// `NoInodes`, `NoSpace`, or the volume's.
    pub(crate) fn grow(&self, volume: &Volume<M>) -> Result<(), FsError> {
        self.make_table(volume, &self.growing.lock())
    }

    /// As [`InodeTables::grow`], unless another thread's table has made an inode free.
    fn grow_if_none(&self, volume: &Volume<M>) -> Result<(), FsError> {
        let growing = self.growing.lock();
        // The previous holder of the lock may have added a table.
        if self.shards.iter().any(|shard| !shard.lock().free.is_empty()) {
            return Ok(());
        }
        self.make_table(volume, &growing)
    }

    /// Adds a table. Holds the lock until the inodes of the table are free for other threads: they wait for
    /// the lock and do not poll the free lists.
    fn make_table(&self, volume: &Volume<M>, _growing: &MutexGuard<'_, ()>) -> Result<(), FsError> {
        let table = self.tables();
        // In a separate batch, before the inode's: a batch that fails later leaves the table for
        // others.
        volume.change(|batch, _| self.plan_table(batch, table))?;
        let free = (self.geometry.head_slots()..self.geometry.slots()).rev();
        let free = free.map(|slot| self.geometry.inode(table, slot));
        // A thread that takes one of these inodes must find its table, so the count comes first.
        self.tables.fetch_max(table + 1, Ordering::AcqRel);
        self.shards[place(table, SHARDS)].lock().free.extend(free);
        Ok(())
    }

    /// Plans the addition of table number `table`, the next one.
    fn plan_table(&self, batch: &mut Batch<'_, '_, M>, table: u64) -> Result<(), FsError> {
        if table >= self.tables_max {
            return Err(FsError::NoInodes { max: self.inodes_max() });
        }
        let start = self.index.take_table(batch, table, self.geometry.blocks())?;
        // Unlogged: nothing durable counts or names the table before this batch.
        batch.stream(start.offset(), &self.geometry.head(table, &[]));
        self.index.plan_insert(batch, table, start)?;
        batch.change_word(self.tables_at, encode_word(table + 1));
        Ok(())
    }

    /// Plans that `inode`, with a filled slot, is in use; without a name if `is_orphan`.
    pub(crate) fn plan_use<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        inode: InodeNo,
        is_orphan: bool,
    ) -> Result<(), Corrupt> {
        // A sync of the new file looks for this epoch.
        self.note_change(inode, batch.writer().epoch(), Difference::More);
        let table_at = self.hold_table(batch, inode)?;
        plan_bit(batch, self.geometry.used(table_at, inode), true)?;
        // The orphan bit of a free inode has no meaning, so a flipped one is not damage.
        plan_bit(batch, self.geometry.orphan(table_at, inode), is_orphan)
    }

    /// Plans that `inode` is in use without a name, or is so no longer.
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
        // Frees of several threads arrive out of order.
        let place = shard.waiting.partition_point(|(other, _)| *other <= epoch);
        shard.waiting.insert(place, (epoch, inode));
    }

    /// Locks the tables of all inodes with bits that a batch may change, if there are several. Each batch
    /// uses the same order, so a deadlock cannot occur.
    pub(crate) fn hold_tables<'t>(&'t self, batch: &mut Batch<'t, '_, M>, inodes: [InodeNo; 2]) {
        let mut stripes = inodes.map(|inode| place(self.geometry.table_of(inode), STRIPES));
        // Ascending order in every batch excludes a deadlock.
        stripes.sort_unstable();
        for stripe in stripes {
            batch.hold(&self.stripes[stripe]);
        }
    }

    /// The address of the table of `inode`. The batch holds the table's lock until it ends.
    fn hold_table<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        inode: InodeNo,
    ) -> Result<PoolOffset, Corrupt> {
        // Two batches may change bits in one word, so the lock outlives the plan.
        batch.hold(self.stripe_of(inode));
        self.table_at(reader_of(batch.volume()), self.geometry.table_of(inode))
    }

    /// Collects the free inodes, and returns the inodes in use without a name.
    ///
    /// # Errors
    /// A table is damaged.
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

    /// Calls `on_slot` with number, address and state of each slot of each table, without the slots of the
    /// head.
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

    /// As [`InodeTables::each_slot`], for one table.
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

    /// The state of `inode` in an existing table. The caller excludes batches that change it.
    ///
    /// # Errors
    /// The index is damaged, or the bits cannot be read.
    pub(crate) fn state_of(
        &self,
        reader: Reader<'_, M>,
        inode: InodeNo,
    ) -> Result<SlotState, Corrupt> {
        // A batch of another inode can change the same words at this moment.
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
    /// The first damaged structure, or `claim`'s.
    pub(crate) fn visit(
        &self,
        reader: Reader<'_, M>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        // The index first: the walk of the tables relies on its checked nodes.
        self.index.visit(reader, claim)?;
        self.index.visit_tables(reader, self.counted(), claim)
    }

    /// The extents of the index and the tables as a snapshot: no table is added during the walk, because
    /// later extents could contradict earlier ones. Also returns the end of the walk: a damaged structure, or
    /// `note`'s error.
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

    /// Compares the link count of the used inode `inode` at `at` with the state: an orphan has no names,
    /// another inode has names. The bits of a table have no check bits.
    ///
    /// # Errors
    /// The two disagree.
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

/// Plans the value of a bit, if it differs.
fn plan_bit<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    bit: Bit,
    is_set: bool,
) -> Result<(), Corrupt> {
    let old = batch.word(bit.at);
    check_readable(batch.volume().medium(), TABLE, bit.at, 8)?;
    let new = if is_set { old | bit.mask } else { old & !bit.mask };
    // An unchanged word needs no record.
    if new != old {
        batch.change_word(bit.at, new);
    }
    Ok(())
}

/// Maps a table to one of `places` shared places.
fn place(table: u64, places: usize) -> usize {
    usize::try_from(table % places as u64).expect("less than there are places")
}

/// A reader of structures in an open volume.
pub(crate) fn reader_of<M: Medium>(volume: &Volume<M>) -> Reader<'_, M> {
    Reader::new(volume.medium(), volume.data_area())
}
