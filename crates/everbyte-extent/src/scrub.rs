//! Scrubbing an extent: its map and every block of its data, a bounded piece at a time.
//!
//! Invariants: a piece is read under the shared locks of its blocks, at most 1 MiB of them together: writers
//! wait no longer than for any reader. Neither the quiesce lock nor a lane is taken, so no checkpoint waits.
//! The locks keep the nodes on the way in place.

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::{Corrupt, ScrubFinding, ScrubReport, WriteError, check_readable};

use crate::address::{BlockRange, LogicalBlock};
use crate::extent::Extent;
use crate::map::{self, ENTRIES, MapSlot};

/// Number of blocks locked together: 1 MiB. Divides the blocks of a leaf.
const BLOCKS_AT_ONCE: u64 = 256;
/// Bytes after which a part of a scrub ends.
const PART_BYTES: u64 = 64 << 20;
/// Pieces after which it ends although little was read, because most of the volume is holes.
const PIECES_MAX: u64 = 1 << 14;

impl<M: Medium> Extent<M> {
    /// Reads the extent from byte `from` on, until a good deal was read. Also returns where to go
    /// on, or `None` at the end.
    ///
    /// # Errors
    /// `Gone`.
    pub fn scrub(&self, from: u64) -> Result<(ScrubReport, Option<u64>), WriteError> {
        let mut report = ScrubReport::default();
        // Rounded down, so that no block between two calls is missed.
        let mut at = from / BLOCK_U64 / BLOCKS_AT_ONCE * BLOCKS_AT_ONCE;
        // Once for each pass: the slots of all blocks have one tree.
        if at == 0 {
            self.scrub_slots(&mut report)?;
        }
        // Bounded: holes add no bytes, so the count of bytes alone might not end the call.
        for _ in 0..PIECES_MAX {
            // The size may change between two pieces.
            let end = self.size_blocks();
            if at >= end {
                return Ok((report, None));
            }
            let first = LogicalBlock(at);
            let range = BlockRange { first, count: BLOCKS_AT_ONCE.min(end - at) };
            at = self.scrub_piece(range, &mut report)?.0;
            if report.read_bytes >= PART_BYTES {
                break;
            }
        }
        Ok((report, Some(at * BLOCK_U64)))
    }

    /// Reads the blocks of `range`; returns the next one worth reading.
    fn scrub_piece(
        &self,
        range: BlockRange,
        report: &mut ScrubReport,
    ) -> Result<LogicalBlock, WriteError> {
        let _blocks = self.locks().read(range);
        // Under the locks: a deletion marks the volume, and then takes all of them.
        if self.volume().is_gone() {
            return Err(WriteError::Gone);
        }
        let end = range.end().min(LogicalBlock(self.size_blocks()));
        match self.scrub_way(range.first, report) {
            Err(corrupt) => self.note_map(range.first, corrupt, report),
            Ok(false) => return Ok(self.next_leaf(range.first)),
            Ok(true) => {
                for block in range.first.0..end.0 {
                    self.scrub_block(LogicalBlock(block), report);
                }
            }
        }
        Ok(end)
    }

    /// Reads the nodes of the checksums' tree. They stay in place during any read.
    fn scrub_slots(&self, report: &mut ScrubReport) -> Result<(), WriteError> {
        let Some(root_at) = self.checksum_root_at() else { return Ok(()) };
        // One lock suffices: nodes of checksums are never unlinked, and a deletion takes all locks.
        let _blocks = self.locks().read(BlockRange { first: LogicalBlock(0), count: 1 });
        if self.volume().is_gone() {
            return Err(WriteError::Gone);
        }
        let name = Some(self.volume().name());
        let mut nodes = Vec::new();
        let walked = map::each_slot_node(&self.entries(), root_at, &mut |_, entry| {
            nodes.push(entry.block);
            Ok(())
        });
        report.note(name, walked);
        // The nodes found before any damage are read in any case.
        for node in nodes {
            report.read(self.medium(), name, "checksum node", node.offset(), BLOCK_U64);
        }
        Ok(())
    }

    /// Reads the nodes on the way to `block`. Returns true if they lead there.
    fn scrub_way(&self, block: LogicalBlock, report: &mut ScrubReport) -> Result<bool, Corrupt> {
        let mut nodes: Vec<BlockNo> = Vec::new();
        let path = self.look_up_seeing(block, |node| nodes.push(node));
        // The blocks of a leaf share the nodes, so one of them reads these for all.
        let first_of_leaf = block.0.is_multiple_of(ENTRIES);
        for node in nodes.into_iter().filter(|_| first_of_leaf) {
            let mut bytes = [0; BLOCK];
            self.medium().read(node.offset(), &mut bytes);
            report.read_bytes += BLOCK_U64;
            check_readable(self.medium(), "map node", node.offset(), BLOCK_U64)?;
        }
        // After the nodes: bad memory of a node is the cause of a failed lookup.
        Ok(!matches!(path?, MapSlot::Missing(_)))
    }

    fn scrub_block(&self, block: LogicalBlock, report: &mut ScrubReport) {
        let entry = match self.look_up(block) {
            Ok(MapSlot::At(at)) => self.entries().load(at),
            Ok(MapSlot::Missing(_)) => Ok(None),
            Err(corrupt) => Err(corrupt),
        };
        match entry {
            Err(corrupt) => self.note_map(block, corrupt, report),
            Ok(Some(entry)) if !entry.flags.zero => {
                self.scrub_data(block, entry.block.offset(), report);
            }
            Ok(_) => {}
        }
    }

    /// Notes damage of the map on the way to `block`, once for everything behind it.
    fn note_map(&self, block: LogicalBlock, corrupt: Corrupt, report: &mut ScrubReport) {
        // The blocks below one damaged word make one finding.
        if report.findings.last().is_none_or(|last| last.at != corrupt.at) {
            let finding = ScrubFinding::of(Some(self.volume().name()), corrupt);
            report.findings.push(ScrubFinding { offset: Some(block.offset().0), ..finding });
        }
    }

    fn scrub_data(&self, block: LogicalBlock, at: PoolOffset, report: &mut ScrubReport) {
        let offset = block.offset();
        let mut bytes = [0; BLOCK];
        self.medium().read(at, &mut bytes);
        report.read_bytes += BLOCK_U64;
        let mut checked = self.check_data(at, BLOCK, offset);
        if self.has_checksums() {
            // Zeroes of bad memory are not compared with the checksum.
            checked = checked.and_then(|()| self.verify(at.block(), &bytes));
            report.verified_blocks += 1;
        }
        if let Err(error) = checked {
            report.findings.push(ScrubFinding {
                volume: Some(self.volume().name().to_owned()),
                structure: "data".to_owned(),
                offset: Some(offset.0),
                at,
                what: error.to_string(),
            });
        }
    }
}
