//! Space for the nodes of an index: runs of blocks, each filled from its start to its end.
//!
//! Two words of the superblock hold the newest run and the number of its taken bytes. The last line of a run
//! has its number and the word of the previous run.
//!
//! Invariants:
//! - Bytes after the taken ones were never reachable, so they are filled without a record.
//! - Space is freed only with the volume, so a lookup needs no lock: a replaced node stays unchanged. Tables
//!   are added in ascending order. Then no tree replaces a node, except CSB+ groups that double: the left
//!   groups take less than the present ones.

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, LINE_U64, Medium, PoolOffset};
use everbyte_pool::format::{decode_word, encode_word};
use everbyte_pool::{Batch, BlockRun, BlockUse, Claim, Corrupt, UsedExtent, check_readable};
use zerocopy::IntoBytes;

use crate::error::FsError;
use crate::format::reader::Reader;
use crate::format::{IndexRunTrailer, PREVIOUS_RUN_AT};

/// Blocks of a run, unless a larger request must fit.
const RUN_BLOCKS_MAX: u64 = 64;
/// Bits of a block number in the word of a run. Above it is the binary logarithm of its blocks.
const BLOCK_BITS: u32 = 40;
/// Limit of a run's blocks, as a binary logarithm.
const LOG_BLOCKS_MAX: u64 = 9;
/// Bytes at the end of a run without nodes.
const TRAILER_BYTES: u64 = LINE_U64;

/// The space of an index.
pub(super) struct Arena {
    structure: &'static str,
    /// The address of the word that names the newest run.
    newest_at: PoolOffset,
    /// The address of the word with the taken bytes of the newest run.
    used_at: PoolOffset,
}

/// The taken bytes of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeRun {
    start: PoolOffset,
    bytes: u64,
}

impl NodeRun {
    /// Returns true if `at .. at + bytes` is part of it.
    pub(super) fn has(&self, at: PoolOffset, bytes: u64) -> bool {
        at.0 >= self.start.0 && at.0 + bytes <= self.start.0 + self.bytes
    }

    /// Their number.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn run_word(run: BlockRun) -> u64 {
    encode_word(run.start.0 | u64::from(run.len.ilog2()) << BLOCK_BITS)
}

/// Bytes of a run for nodes.
fn room(run: BlockRun) -> u64 {
    run.len * BLOCK_U64 - TRAILER_BYTES
}

/// The address of the last line of a run: its number, then the word of the previous run.
fn trailer_at(run: BlockRun) -> PoolOffset {
    run.start.offset().plus(room(run))
}

impl Arena {
    /// The space of the index `structure`, whose two words in the superblock begin at `at`.
    pub(super) fn new(structure: &'static str, at: PoolOffset) -> Self {
        Self { structure, newest_at: at, used_at: at.plus(8) }
    }

    /// Takes `bytes`, a multiple of a node's bytes and at most 1 MiB, at a multiple of a node's bytes. The
    /// caller fills them with [`fill`].
    ///
    /// # Errors
    /// `NoSpace`, or damaged space.
    pub(super) fn take<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        bytes: u64,
    ) -> Result<PoolOffset, FsError> {
        let reader = reader_of(batch);
        let newest = self.run(reader, batch.word(self.newest_at), self.newest_at)?;
        // The planned values, because a batch can take space several times.
        let used = self.value(reader, batch.word(self.used_at), self.used_at)?;
        let (run, used) = match newest {
            Some(run) if used + bytes <= room(run) => (run, used),
            _ => (self.add_run(batch, newest, bytes)?, 0),
        };
        batch.change_word(self.used_at, encode_word(used + bytes));
        Ok(run.start.offset().plus(used))
    }

    fn add_run<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        newest: Option<BlockRun>,
        bytes: u64,
    ) -> Result<BlockRun, FsError> {
        let number = match newest {
            Some(run) => self.load(reader_of(batch), trailer_at(run))? + 1,
            None => 0,
        };
        // The trailer takes the last line of the run.
        let least = (bytes + TRAILER_BYTES).div_ceil(BLOCK_U64).next_power_of_two();
        let mut blocks = newest.map_or(1, |run| (2 * run.len).min(RUN_BLOCKS_MAX)).max(least);
        let run = loop {
            match batch.alloc_run(blocks) {
                Some(run) => break run,
                // A fragmented pool may have shorter runs only.
                None if blocks > least => blocks /= 2,
                None => return Err(FsError::NoSpace),
            }
        };
        let (number, previous) = (encode_word(number), newest.map_or(0, run_word));
        let trailer = IndexRunTrailer { number, previous, ..IndexRunTrailer::default() };
        // Unlogged: nothing durable names the run before this batch.
        batch.stream(trailer_at(run), trailer.as_bytes());
        batch.change_word(self.newest_at, run_word(run));
        Ok(run)
    }

    /// Claims every run, and returns the taken bytes of each.
    ///
    /// # Errors
    /// A damaged word or run, or `claim`'s.
    pub(super) fn visit<M: Medium>(
        &self,
        reader: Reader<'_, M>,
        claim: &mut Claim<'_>,
    ) -> Result<Vec<NodeRun>, Corrupt> {
        let mut all = Vec::new();
        let mut named_at = self.newest_at;
        let mut below: Option<u64> = None;
        let mut bytes = self.load(reader, self.used_at)?;
        let mut next = self.run(reader, reader.medium.load_word(named_at), named_at)?;
        while let Some(run) = next {
            if bytes > room(run) {
                let what = format!("{bytes} bytes of a run of {} blocks are taken", run.len);
                return Err(Corrupt::new(self.structure, self.used_at, what));
            }
            let trailer = trailer_at(run);
            let number = self.load(reader, trailer)?;
            // Falling numbers end the walk, so a cycle of runs cannot trap it.
            if below.is_some_and(|below| below != number + 1) {
                return Err(Corrupt::new(self.structure, trailer, "the run has a wrong number"));
            }
            claim(UsedExtent { run, named_at, holds: BlockUse::Map })?;
            all.push(NodeRun { start: run.start.offset(), bytes });
            (named_at, below) = (trailer.plus(PREVIOUS_RUN_AT), Some(number));
            next = self.run(reader, reader.medium.load_word(named_at), named_at)?;
            // An older run counts as full: the rest of its bytes is unused for ever.
            bytes = next.map_or(0, room);
        }
        if below.is_some_and(|number| number != 0) {
            return Err(Corrupt::new(self.structure, named_at, "the run before is missing"));
        }
        Ok(all)
    }

    fn load<M: Medium>(&self, reader: Reader<'_, M>, at: PoolOffset) -> Result<u64, Corrupt> {
        self.value(reader, reader.medium.load_word(at), at)
    }

    /// The value of `word`, read at `at`.
    fn value<M: Medium>(
        &self,
        reader: Reader<'_, M>,
        word: u64,
        at: PoolOffset,
    ) -> Result<u64, Corrupt> {
        check_readable(reader.medium, self.structure, at, 8)?;
        decode_word(word)
            .filter(|&value| value < 1 << BLOCK_BITS)
            .ok_or_else(|| Corrupt::new(self.structure, at, "the word cannot be right"))
    }

    /// The run in `word`, read at `at`.
    fn run<M: Medium>(
        &self,
        reader: Reader<'_, M>,
        word: u64,
        at: PoolOffset,
    ) -> Result<Option<BlockRun>, Corrupt> {
        check_readable(reader.medium, self.structure, at, 8)?;
        if word == 0 {
            return Ok(None);
        }
        let wrong = |what: &str| Corrupt::new(self.structure, at, what);
        let value = decode_word(word).ok_or_else(|| wrong("its check bits are wrong"))?;
        let (start, log_blocks) = (value & ((1 << BLOCK_BITS) - 1), value >> BLOCK_BITS);
        if log_blocks > LOG_BLOCKS_MAX {
            return Err(wrong("no run is so long"));
        }
        let run = BlockRun { start: BlockNo(start), len: 1 << log_blocks };
        let last = BlockNo(start + run.len - 1);
        if !reader.data.contains(run.start) || !reader.data.contains(last) {
            return Err(wrong("the run leads outside the pool's data"));
        }
        Ok(Some(run))
    }
}

/// A reader of the batch's volume.
pub(super) fn reader_of<'v, M: Medium>(batch: &Batch<'v, '_, M>) -> Reader<'v, M> {
    Reader::new(batch.volume().medium(), batch.volume().data_area())
}

/// Fills unreachable space with `bytes`.
pub(super) fn fill<M: Medium>(batch: &mut Batch<'_, '_, M>, at: PoolOffset, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let at = at.plus(done as u64);
        let len = (bytes.len() - done).min(BLOCK - at.in_block());
        if !batch.writer().is_fresh(at.block()) {
            batch.claim_lines(at, len);
        }
        batch.stream(at, &bytes[done..done + len]);
        done += len;
    }
}
