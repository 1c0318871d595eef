//! The end of files: what becomes of an inode that has lost its last name.
//!
//! One that somebody has open, or that has more blocks than are given up in one batch, is an orphan: in
//! use without a name. Opening the file system frees those that a crash left.

use everbyte_extent::{FirstEntries, MapKind, MapView, visit_first_entries};
use everbyte_media::{BLOCK_U64, Medium};
use everbyte_pool::{Batch, BlockRun, Claimed, Corrupt, Part};

use crate::attributes::block_of;
use crate::edits::{Edit, Edits};
use crate::error::FsError;
use crate::format::{FIRST_ENTRIES, Field, INLINE_TARGET_MAX, INODE_AREA_AT, InodeWords};
use crate::fs::FileSystem;
use crate::number::{FileType, InodeNo};

/// Most blocks that are given up in one batch: 256 MiB.
const BLOCKS_AT_ONCE: u64 = 1 << 16;

/// What became of an inode that lost a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unnamed {
    /// It has others.
    Linked,
    /// It is free.
    Freed(InodeNo),
    /// It is an orphan, because somebody has it open.
    Open,
    /// It is an orphan, because it is large.
    Large(InodeNo),
}

impl<M: Medium> FileSystem<M> {
    /// Plans that an inode has one name less, of a directory the only one. The caller holds its lock.
    pub(crate) fn plan_unname<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        edit: &mut Edit,
        now: u64,
    ) -> Result<Unnamed, FsError> {
        edit.words.set(Field::Changed, now);
        let is_directory = edit.words.file_type() == FileType::Directory;
        let links = if is_directory { 0 } else { edit.words.links().saturating_sub(1) };
        edit.words.set_links(links);
        if links > 0 {
            return Ok(Unnamed::Linked);
        }
        let number = edit.number;
        if self.files.is_open(number) {
            self.tables.plan_orphan(batch, number, true)?;
            return Ok(Unnamed::Open);
        }
        if edit.words.get(Field::Blocks) > BLOCKS_AT_ONCE {
            self.tables.plan_orphan(batch, number, true)?;
            return Ok(Unnamed::Large(number));
        }
        self.plan_give_blocks(batch, edit)?;
        self.tables.plan_free(batch, number)?;
        Ok(Unnamed::Freed(number))
    }

    /// Does in DRAM what a batch of `epoch` did to an inode that lost a name, and frees a large one.
    ///
    /// # Errors
    /// The volume's: the inode is an orphan then, and is freed when the file system is opened.
    pub(crate) fn unnamed(&self, unnamed: Unnamed, epoch: u64) -> Result<(), FsError> {
        match unnamed {
            Unnamed::Linked | Unnamed::Open => Ok(()),
            Unnamed::Freed(number) => {
                self.files.forget(number);
                self.tables.freed(number, epoch);
                Ok(())
            }
            Unnamed::Large(number) => self.reclaim_locked(number),
        }
    }

    /// Frees an orphan that nobody has open.
    ///
    /// # Errors
    /// The volume's, or the inode cannot be right.
    pub(crate) fn reclaim(&self, number: InodeNo) -> Result<(), FsError> {
        let _gate = self.volume().enter();
        let _locks = self.locks.write(&[number]);
        self.reclaim_locked(number)
    }

    fn reclaim_locked(&self, number: InodeNo) -> Result<(), FsError> {
        let (at, words) = self.load_inode(number)?;
        if words.file_type() == FileType::Regular {
            let size = words.get(Field::Size);
            let file = self.files.get(number, at, size);
            self.unmap_leaves(number, &file, (0, size))?;
        }
        let epoch = self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            let edit = edits.get(self.medium(), number)?;
            self.plan_give_blocks(batch, edit)?;
            self.tables.plan_free(batch, number)?;
            Ok::<(), FsError>(())
        })?;
        self.unnamed(Unnamed::Freed(number), epoch)
    }

    /// Plans to give up every block of an inode; the words that name them stay as they are.
    pub(crate) fn plan_give_blocks(
        &self,
        batch: &mut Batch<'_, '_, M>,
        edit: &Edit,
    ) -> Result<(), FsError> {
        let data = self.pool().data_bounds();
        let mut give = |claimed: Claimed| {
            if let Part::Blocks(run) = claimed.part {
                run.blocks().for_each(|block| batch.give(block));
            }
            Ok(())
        };
        visit_blocks(self.medium(), edit, &data, self.superblock.hash_key, &mut give)?;
        Ok(())
    }
}

/// Shows every block of the inode in `edit` once.
///
/// # Errors
/// A structure that cannot be right, or `claim`'s.
pub(crate) fn visit_blocks<M: Medium>(
    medium: &M,
    edit: &Edit,
    data: &std::ops::Range<u64>,
    hash_key: [u64; 2],
    claim: &mut everbyte_pool::Claim<'_>,
) -> Result<(), Corrupt> {
    let attributes = edit.words.get(Field::Attributes);
    if attributes != 0 {
        let named_at = Field::Attributes.at(edit.at);
        let block = block_of(medium, attributes).map(everbyte_media::PoolOffset::block);
        let block = block.filter(|block| data.contains(&block.0)).ok_or_else(|| {
            Corrupt::new("extended attributes", named_at, "the word names no block of a volume")
        })?;
        let part = Part::Blocks(BlockRun { start: block, len: 1 });
        claim(Claimed { part, named_at, holds: everbyte_pool::Holds::Map })?;
    }
    let root_at = Field::Root.at(edit.at);
    let first = FirstEntries { at: edit.at.plus(INODE_AREA_AT), count: FIRST_ENTRIES };
    match edit.words.file_type() {
        FileType::Regular => visit_map(medium, edit, data, claim),
        FileType::Directory => {
            let dir = crate::dir::Dir::new(medium, edit.number, root_at, hash_key);
            dir.each_block(&mut |named_at, block, _| {
                if !data.contains(&block.0) {
                    let what = "it names a block that no volume can have";
                    return Err(Corrupt::new("node of a directory", named_at, what));
                }
                let part = Part::Blocks(BlockRun { start: block, len: 1 });
                claim(Claimed { part, named_at, holds: everbyte_pool::Holds::Map })
            })
        }
        FileType::Symlink if has_long_target(&edit.words) => {
            visit_first_entries(medium, first, data, claim)
        }
        _ => Ok(()),
    }
}

/// Shows every block of the map of a regular file once.
pub(crate) fn visit_map<M: Medium>(
    medium: &M,
    edit: &Edit,
    data: &std::ops::Range<u64>,
    claim: &mut everbyte_pool::Claim<'_>,
) -> Result<(), Corrupt> {
    let first = FirstEntries { at: edit.at.plus(INODE_AREA_AT), count: FIRST_ENTRIES };
    visit_first_entries(medium, first, data, claim)?;
    let size_bytes = edit.words.get(Field::Size).next_multiple_of(BLOCK_U64);
    let view = MapView {
        kind: MapKind::Radix,
        root_at: Field::Root.at(edit.at),
        size_bytes,
        data: data.clone(),
    };
    view.visit(medium, claim)
}

/// Whether a symbolic link's target stands in a block of its own.
pub(crate) fn has_long_target(words: &InodeWords) -> bool {
    words.get(Field::Size) > INLINE_TARGET_MAX as u64
}
