//! Scrubbing a file system: reading every block that it owns, and judging every inode and name.
//!
//! Works beside those who use it: an inode is looked at under its lock, and no other meanwhile.

use everbyte_media::{BLOCK_U64, Medium};
use everbyte_pool::{Corrupt, Part, ScrubReport, UsedExtent};

use crate::blocks::visit_blocks;
use crate::edits::Edit;
use crate::error::FsError;
use crate::format::Field;
use crate::fs::FileSystem;
use crate::number::{FileType, InodeNo};
use crate::tables::SlotState;

/// Bytes after which a part of a scrub ends.
const PART_BYTES: u64 = 64 << 20;
/// Inode tables after which it ends although little was read.
const PART_TABLES: u64 = 1 << 12;

impl<M: Medium> FileSystem<M> {
    /// Reads the inodes from table number `from` on, and all that they own, until a good deal was read.
    /// Also returns the table to go on with, or `None` at the end.
    #[must_use]
    pub fn scrub(&self, from: u64) -> (ScrubReport, Option<u64>) {
        let mut report = ScrubReport::default();
        let reader = self.reader();
        let name = self.volume().name().to_owned();
        if from == 0 {
            let visited = self.tables.visit(reader, &mut |used| {
                self.scrub_blocks(&mut report, &used);
                Ok(())
            });
            report.note(Some(&name), visited);
        }
        let end = self.tables.tables().min(from.saturating_add(PART_TABLES));
        for table in from..end {
            let mut used = Vec::new();
            let judged = self.tables.each_slot_of(reader, table, &mut |inode, _, state| {
                if state != SlotState::Free {
                    used.push(inode);
                }
                Ok(())
            });
            report.note(Some(&name), judged);
            for inode in used {
                let judged = self.scrub_inode(&mut report, inode);
                report.note(Some(&name), judged);
            }
            if report.read_bytes >= PART_BYTES {
                return (report, Some(table + 1));
            }
        }
        (report, Some(end).filter(|&end| end < self.tables.tables()))
    }

    /// Reads all that `inode` owns, unless it has been freed a moment ago.
    fn scrub_inode(&self, report: &mut ScrubReport, inode: InodeNo) -> Result<(), Corrupt> {
        let reader = self.reader();
        {
            let _lock = self.locks.read(inode);
            let Some((at, words)) = self.tables.load(reader, inode)? else { return Ok(()) };
            let edit = Edit::new(inode, at, words);
            visit_blocks(reader, &edit, self.superblock.hash_key, &mut |used| {
                self.scrub_blocks(report, &used);
                Ok(())
            })?;
            if words.file_type() == FileType::Directory {
                let root_at = Field::Root.at(at);
                let dir = crate::dir::Dir::new(reader, inode, root_at, self.superblock.hash_key);
                let mut from = Some(0);
                while let Some(hash) = from {
                    from = dir.entries_from(hash)?.1;
                }
            }
        }
        match self.read_link(inode) {
            Err(FsError::Corrupt(corrupt)) => Err(corrupt),
            // It is none, or is gone.
            _ => Ok(()),
        }
    }

    fn scrub_blocks(&self, report: &mut ScrubReport, used: &UsedExtent) {
        if let Part::Blocks(run) = used.part {
            let (at, len) = (run.start.offset(), run.len * BLOCK_U64);
            let structure = used.holds.to_string();
            report.read(self.medium(), Some(self.volume().name()), &structure, at, len);
        }
    }
}
