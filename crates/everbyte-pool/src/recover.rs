//! Recovery of one volume: undo of the epochs open at the crash, and redo of their FUA fast-path writes.
//!
//! The order, with c as the last completed epoch: undo of epoch c + 2, undo of c + 1, redo of the short
//! writes in their original order, flush and fence, store of `completed = c + 2`. The next epoch is c + 3.
//! Until the store is durable, recovery can be run again from the start, any number of times: it writes only
//! old bytes of live records.
//!
//! Invariants: undo records of one epoch are disjoint, so their order does not matter. Memory is taken for
//! the records and, in proportion to them, for the check of their disjointness and for the ranges to flush.

use everbyte_media::{BLOCK_U64, BlockNo, LINE, LineMask, MediaError, Medium, PoolOffset};
use everbyte_plant::planted;

use crate::checkpoint_record::{read_completed, write_completed};
use crate::format::{Corrupt, Descriptor, WordItem};
use crate::log::{LogGeometry, Logged, Restore, SavedLines, scan_half};
use crate::persist::{Dirty, InFlight};
use crate::plant::Bug;

/// Outcome of recovering a volume.
#[derive(Clone, Debug)]
pub(crate) struct Recovered {
    /// The epoch to count as completed.
    pub(crate) completed: u64,
    /// Records undone or redone.
    pub(crate) records: usize,
    /// The reason for the ban on writes to the volume, if its log is invalid.
    pub(crate) read_only: Option<String>,
}

/// Ranges that the records of a volume may name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UndoScope {
    geometry: LogGeometry,
    header: BlockNo,
    data_start: u64,
    data_end: u64,
}

impl UndoScope {
    /// The scope of the volume with this descriptor and header, in a pool with the data blocks `bounds`.
    pub(crate) fn new(
        descriptor: &Descriptor,
        header_at: PoolOffset,
        bounds: std::ops::Range<u64>,
    ) -> Self {
        Self {
            geometry: LogGeometry::of(descriptor),
            header: header_at.block(),
            data_start: bounds.start,
            data_end: bounds.end,
        }
    }

    fn allows(&self, block: BlockNo) -> bool {
        block == self.header || self.allows_data(block)
    }

    fn allows_data(&self, block: BlockNo) -> bool {
        (self.data_start..self.data_end).contains(&block.0)
    }
}

/// The records of one epoch, read and judged.
pub(crate) struct Undo {
    restores: Vec<Restore>,
    /// FUA fast-path writes, in the order they were made.
    redo: Vec<(u32, Restore)>,
}

impl Undo {
    /// Reads the records of `epoch` from every lane.
    ///
    /// # Errors
    /// A durable record is damaged, two records overlap, or one points outside the pool's data.
    pub(crate) fn read<M: Medium>(
        medium: &M,
        scope: &UndoScope,
        epoch: u64,
    ) -> Result<Self, Corrupt> {
        let mut undo = Self { restores: Vec::new(), redo: Vec::new() };
        for lane in 0..scope.geometry.lanes {
            for logged in scan_half(medium, &scope.geometry, lane, epoch)? {
                match logged {
                    Logged::Undo(restore) => undo.restores.push(restore),
                    Logged::Redo(order, contents) => undo.redo.push((order, contents)),
                }
            }
        }
        // Lanes have no common order. The numbers do: they were taken under the locks of the
        // blocks.
        if !planted(Bug::RedoInLaneOrder) {
            undo.redo.sort_by_key(|&(order, _)| order);
        }
        undo.check(scope, epoch)?;
        Ok(undo)
    }

    fn check(&self, scope: &UndoScope, epoch: u64) -> Result<(), Corrupt> {
        let wrong = |at: PoolOffset, what: &str| {
            let name =
                format!("undo record of epoch {epoch}, volume {}", scope.geometry.volume_uid);
            Err(Corrupt::new(name, at, what))
        };
        let mut words: Vec<PoolOffset> = Vec::new();
        let mut lines: Vec<(BlockNo, LineMask)> = Vec::new();
        for restore in &self.restores {
            match restore {
                Restore::Words(items) => words.extend(items.iter().map(|i| PoolOffset(i.target))),
                Restore::Lines(saved) => lines.push((saved.block, saved.lines)),
            }
        }
        let redone = self.redo.iter().flat_map(|(_, contents)| match contents {
            Restore::Words(items) => items.iter().map(|item| PoolOffset(item.target)).collect(),
            Restore::Lines(saved) => vec![saved.block.offset()],
        });
        // Recovery stores to these places. No damage of the log may reach a superblock or another log.
        let is_outside = |at: &&PoolOffset| !at.0.is_multiple_of(8) || !scope.allows(at.block());
        if let Some(&at) = words.iter().find(is_outside) {
            return wrong(at, "it points outside the pool's data");
        }
        let of_lines = lines.iter().map(|&(block, _)| block.offset());
        // A redo record changes data and maps, never a header.
        let is_foreign =
            |at: &PoolOffset| !at.0.is_multiple_of(8) || !scope.allows_data(at.block());
        if let Some(at) = of_lines.chain(redone).filter(is_foreign).min() {
            return wrong(at, "it points outside the pool's data");
        }
        // With two old values of one word the order of the undo would decide, and lanes have no order.
        words.sort_unstable();
        if let Some(pair) = words.windows(2).find(|pair| pair[0] == pair[1]) {
            return wrong(pair[0], "another record saves the same word");
        }
        lines.sort_unstable_by_key(|&(block, _)| block);
        let mut saved_twice = None;
        lines.dedup_by(|(block, later), (kept_block, kept)| {
            let same = block == kept_block;
            if same && !kept.and(*later).is_empty() {
                saved_twice = Some(*block);
            }
            *kept = if same { kept.or(*later) } else { *kept };
            same
        });
        if let Some(block) = saved_twice {
            return wrong(block.offset(), "another record saves the same line");
        }
        // A word in a saved line would have two old values.
        let mixed = words.iter().find(|at| {
            let mask = LineMask::covering(at.in_block(), 8);
            let place = lines.binary_search_by_key(&at.block(), |&(block, _)| block);
            place.is_ok_and(|place| !lines[place].1.and(mask).is_empty())
        });
        mixed.map_or(Ok(()), |&at| wrong(at, "one record saves a word of a line of another"))
    }

    /// Restores all old contents and writes them back; durable after a fence. Skips stores to bad memory: a
    /// reader there gets an error.
    pub(crate) fn apply<M: Medium>(&self, medium: &M) -> InFlight<usize> {
        put_all(medium, self.restores.iter()).with(self.restores.len())
    }

    /// Does the FUA fast-path writes again and writes them back; durable after a fence.
    fn redo<M: Medium>(&self, medium: &M) -> InFlight<usize> {
        put_all(medium, self.redo.iter().map(|(_, contents)| contents)).with(self.redo.len())
    }
}

/// Stores `all` in this order, and writes them back.
fn put_all<'r, M: Medium>(medium: &M, all: impl Iterator<Item = &'r Restore>) -> InFlight<()> {
    let mut dirty = Dirty::default();
    for contents in all {
        match contents {
            Restore::Words(items) => {
                let at = |item: &WordItem| PoolOffset(item.target).block();
                for item in items.iter().filter(|item| !is_poisoned(medium, at(item))) {
                    dirty.store_word(medium, PoolOffset(item.target), item.old);
                }
            }
            Restore::Lines(saved) => put(medium, saved, &mut dirty),
        }
    }
    dirty.flush(medium)
}

/// Returns true if a store to `block` would be lost. Probes it first.
fn is_poisoned<M: Medium>(medium: &M, block: BlockNo) -> bool {
    // The system reports bad memory only after an access.
    medium.probe(block.offset(), BLOCK_U64);
    medium.check_range(block.offset(), BLOCK_U64).is_err()
}

/// Stores the bytes of lines.
fn put<M: Medium>(medium: &M, saved: &SavedLines, dirty: &mut Dirty) {
    if is_poisoned(medium, saved.block) {
        return;
    }
    let mut from = 0;
    for (start, len) in saved.lines.runs() {
        let at = saved.block.offset().plus(start as u64);
        dirty.store(medium, at, &saved.bytes[from..from + len]);
        from += len;
    }
    debug_assert_eq!(from, saved.lines.count() as usize * LINE, "one payload line a bit");
}

/// Undoes the epochs open at the crash, redoes their FUA fast-path writes, and durably marks them completed.
/// A volume with a damaged log is left untouched and is to be opened read-only.
///
/// # Errors
/// The medium's.
pub(crate) fn recover_volume<M: Medium>(
    medium: &M,
    scope: &UndoScope,
    header_at: PoolOffset,
) -> Result<Recovered, MediaError> {
    let read = || -> Result<(u64, Undo, Undo), Corrupt> {
        let completed = read_completed(medium, header_at)?;
        // Both epochs are read and checked before the first store, so a refusal leaves the volume untouched.
        let later = Undo::read(medium, scope, completed + 2)?;
        let earlier = Undo::read(medium, scope, completed + 1)?;
        Ok((completed, later, earlier))
    };
    let (completed, later, earlier) = match read() {
        Ok(read) => read,
        Err(corrupt) => {
            // `completed` is not stored, so the records stay alive for a later opening.
            let read_only = Some(format!("its log cannot be undone: {corrupt}"));
            return Ok(Recovered { completed: 0, records: 0, read_only });
        }
    };
    let mut records = 0;
    // Epoch c + 2 may have taken writes during the flush of c + 1. It saved bytes written by c + 1, so the
    // later epoch is undone first.
    for undo in [&later, &earlier] {
        records += undo.apply(medium).fence(medium)?.get();
    }
    // A short write may not have reached its place before the crash. No undo takes it back: it was only
    // allowed where neither epoch had a record, and a later record saved its bytes as the old ones.
    records += earlier.redo(medium).fence(medium)?.get();
    let restored = later.redo(medium).fence(medium)?;
    records += restored.get();
    // This store kills the records, so anything not yet on the medium would be lost permanently. The next
    // epoch is then c + 3: no record of c + 1 or c + 2 can be taken for a record of it.
    write_completed(medium, header_at, &restored.with(completed + 2))?;
    Ok(Recovered { completed: completed + 2, records, read_only: None })
}
