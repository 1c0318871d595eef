//! The scrub of a file system: reads every owned block, and checks every inode and name.
//!
//! Users can work during a scrub: it holds the lock of one inode at a time.

use everbyte_media::Medium;
use everbyte_pool::{Corrupt, ScrubReport, UsedExtent};
use hashbrown::HashSet;

use crate::dir::Dir;
use crate::error::FsError;
use crate::format::Field;
use crate::format::number::{FileType, InodeNo};
use crate::fs::FileSystem;
use crate::inode::blocks::{VisitedExtents, visit_blocks};
use crate::inode::edits::Edit;
use crate::inode::tables::SlotState;

/// Bytes in a part of a scrub.
const PART_BYTES: u64 = 64 << 20;
/// Files of a part with a search for their path, which takes a walk through the tree.
const PATHS_MAX: usize = 8;
/// Inode tables in a part.
const PART_TABLES: u64 = 1 << 12;

impl<M: Medium> FileSystem<M> {
    /// Reads the inodes from table number `from` on and everything that they own, up to the limits of a part.
    /// Also returns the next table, or `None` at the end. Reports nothing for a deleted file system.
    #[must_use]
    pub fn scrub(&self, from: u64) -> (ScrubReport, Option<u64>) {
        let scrubbed = self.scrub_from(from);
        // The blocks can belong to another volume by now.
        if self.volume().is_gone() { (ScrubReport::default(), None) } else { scrubbed }
    }

    fn scrub_from(&self, from: u64) -> (ScrubReport, Option<u64>) {
        let mut report = ScrubReport::default();
        let mut paths = 0;
        let reader = self.reader();
        let name = self.volume().name().to_owned();
        if from == 0 {
            let mut shown = VisitedExtents::new(reader, &"index of inode tables");
            // Collected first: the reads take long, and the lock for adding a table is held during
            // the walk.
            let (extents, visited) = self.tables.extents(reader, |used| shown.note(used));
            // Tables are never freed, so they are readable while others are added.
            extents.iter().for_each(|used| self.scrub_blocks(&mut report, used));
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
                let before = report.findings.len();
                let judged = self.scrub_inode(&mut report, inode);
                report.note(Some(&name), judged);
                if report.findings.len() > before && paths < PATHS_MAX {
                    paths += 1;
                    let path = self.path_to(inode);
                    let path = path.unwrap_or_else(|| format!("{inode}, to which no name leads"));
                    let found = report.findings[before..].iter_mut();
                    found.for_each(|found| found.what = format!("{}; it is of {path}", found.what));
                }
            }
            // After a whole table, so a part can exceed the limit by the files of one table.
            if report.read_bytes >= PART_BYTES {
                return (report, Some(table + 1));
            }
        }
        (report, Some(end).filter(|&end| end < self.tables.tables()))
    }

    /// A readable path to `inode`, if there is one. Walks the whole tree, each directory once: names in a
    /// damaged directory can lead back to it.
    fn path_to(&self, inode: InodeNo) -> Option<String> {
        if inode == self.root() {
            return Some("/".to_owned());
        }
        let mut seen: HashSet<InodeNo> = HashSet::from([self.root()]);
        // Directories, with the index of the parent and the name there.
        let mut known: Vec<(InodeNo, usize, Vec<u8>)> = vec![(self.root(), 0, Vec::new())];
        let mut at = 0;
        while let Some(directory) = known.get(at).map(|(directory, ..)| *directory) {
            let mut place = 0;
            while let Ok(entries) = self.list(directory, place) {
                let Some(last) = entries.last() else { break };
                place = last.next;
                for entry in entries {
                    if entry.inode == inode {
                        return Some(path_of(&known, at, &entry.name));
                    }
                    if entry.kind == FileType::Directory && seen.insert(entry.inode) {
                        known.push((entry.inode, at, entry.name));
                    }
                }
            }
            at += 1;
        }
        None
    }

    /// Reads everything that `inode` owns, unless it was freed in between.
    fn scrub_inode(&self, report: &mut ScrubReport, inode: InodeNo) -> Result<(), Corrupt> {
        let reader = self.reader();
        {
            let _lock = self.locks.read(inode);
            let Some((at, words)) = self.tables.load(reader, inode)? else { return Ok(()) };
            let edit = Edit::new(inode, at, words);
            let hash_key = self.superblock.hash_key;
            let mut shown = VisitedExtents::new(reader, &inode);
            visit_blocks(reader, &edit, hash_key, &mut |used| {
                shown.note(&used)?;
                self.scrub_blocks(report, &used);
                Ok(())
            })?;
            if words.file_type() == FileType::Directory {
                let root_at = Field::Root.at(at);
                let dir = Dir::new(reader, inode, root_at, hash_key);
                let (mut from, mut count) = (Some(0), 0);
                while let Some(place) = from {
                    let (entries, next) = dir.entries_from(place)?;
                    count += entries.len() as u64;
                    from = next;
                }
                let said = words.get(Field::Size);
                if count != said {
                    let what = format!("it has {count} entries, and says that it has {said}");
                    return Err(Corrupt::new(inode.to_string(), at, what));
                }
            }
            // Under the inode's lock, because names and orphan bit change in one batch under it.
            self.tables.state_of(reader, inode)?.check_names(inode, at, &words)?;
        }
        // After the unlock: it takes the lock itself.
        match self.read_link(inode) {
            Err(FsError::Corrupt(corrupt)) => Err(corrupt),
            // Another type, or a freed inode.
            _ => Ok(()),
        }
    }

    fn scrub_blocks(&self, report: &mut ScrubReport, used: &UsedExtent) {
        let (at, len) = used.bytes();
        let structure = used.holds.to_string();
        report.read(self.medium(), Some(self.volume().name()), &structure, at, len);
    }
}

/// The path of `name` in the directory at index `at` of `known`.
fn path_of(known: &[(InodeNo, usize, Vec<u8>)], mut at: usize, name: &[u8]) -> String {
    let mut names = vec![name];
    while at > 0 {
        names.push(&known[at].2);
        at = known[at].1;
    }
    names.iter().rev().fold(String::new(), |path, name| format!("{path}/{}", name.escape_ascii()))
}
