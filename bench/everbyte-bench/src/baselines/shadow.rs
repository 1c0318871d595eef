//! Short-circuit shadow paging: BPFS.
//!
//! Source: Condit et al., "Better I/O through byte-addressable, persistent memory", SOSP 2009.
//! Blocks hang in a tree of pages of 512 pointers. A write within one aligned 8-byte word is made
//! in place. Any other write copies the changed blocks, and then the pages above, but only up to
//! the lowest page above all changes. One pointer of that page is stored in place and commits the
//! request. A write at or beyond the end of all written bytes is an append. Its bytes and pointers
//! are stored in place, invisible to readers, and an 8-byte size commits them.
//!
//! BPFS orders its commits by epoch barriers in the hardware. This hardware has only fences, so a
//! commit waits for a fence. The fence makes its copies and the preceding pointer durable: one
//! fence and one flushed line per request. A request with durability on answer pays a second fence.
//!
//! After a crash, in both modes: the device has the effects of a prefix of the requests. If each
//! request is committed, the prefix includes all answered requests. Otherwise it includes at least
//! the requests before the last flush. Instead of a log, shadow paging pays by copies, counted as
//! stored bytes.
//!
//! Beyond the size, data bytes are 0 and pointers name nothing. Opening the device clears the
//! appends interrupted by a crash, before anything else is written. The
//! size only grows ahead of other changes, to bytes that read as zeroes before and after; it
//! shrinks, once they are discarded, to where the last blocks begin.
//!
//! Invariants: only the pointer `pending` may not be durable yet. Every store of a pointer or word
//! comes after a fence that covers the preceding store, unless both lie in one line: a line keeps
//! the order of its stores. A block replaced by a pointer is free once the pointer is durable.

use std::sync::Arc;

use everbyte_extent::Delta;
use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, LINE_U64, MediaError, Medium, PoolOffset};
use everbyte_plant::planted;

use super::Kind;
use super::front::{Edit, Engine, Refused};
use super::plant::Bug;
use super::space::{HEAD, HOLE, Space, SpaceError, WORDS, index};

/// Code in the superblock.
pub(crate) const CODE: u64 = 6;
/// Edits in one go: 4 MiB.
const EDITS_MAX: usize = 1024;
const WORD: usize = 8;
/// Offset of the size in the head; the pointer to the root is at its start.
const SIZE_AT: PoolOffset = PoolOffset(HEAD.0 + 64);

/// Short-circuit shadow paging.
pub(crate) struct Shadow<M> {
    space: Space<M>,
    /// Places by level, as in the tree on the medium: data blocks first, then the pages of each
    /// level, at last the root alone.
    levels: Vec<Vec<u64>>,
    /// The size: from this byte on, nothing was written.
    size_bytes: u64,
    pending: Option<PoolOffset>,
    /// New places of the request at hand: index in its level, place.
    changes: Vec<(usize, u64)>,
    parents: Vec<(usize, u64)>,
    /// For each block, one more than the index of its change; 0 if it has none.
    change_of: Vec<u32>,
    /// Places that the changes of the request replace.
    replaced: Vec<u64>,
    scratch: Box<[u8; BLOCK]>,
}

/// Pages of each level of the tree over so many blocks, and the blocks first.
fn level_lens(blocks: usize) -> Vec<usize> {
    let mut lens = vec![blocks];
    let mut len = blocks;
    loop {
        len = len.div_ceil(WORDS);
        lens.push(len);
        if len == 1 {
            return lens;
        }
    }
}

impl<M: Medium> Shadow<M> {
    /// Opens a device: walks the tree, complete at any moment, and clears the rest of an append
    /// beyond the size.
    ///
    /// # Errors The device is missing, or the tree is invalid.
    pub(crate) fn open(medium: Arc<M>, delta: Delta) -> Result<Self, SpaceError> {
        let space = Space::open(medium, CODE, delta)?;
        let lens = level_lens(space.layout.device_blocks());
        let size_bytes = space.medium().load_word(SIZE_AT);
        space.medium().check_range(HEAD, SIZE_AT.0 - HEAD.0 + 8)?;
        if size_bytes > lens[0] as u64 * BLOCK_U64 {
            return Err(SpaceError::corrupt("size", SIZE_AT, "it is beyond the device's end"));
        }
        let mut scheme = Self {
            change_of: vec![0; lens[0]],
            replaced: Vec::new(),
            levels: lens.into_iter().map(|len| vec![HOLE; len]).collect(),
            size_bytes,
            space,
            pending: None,
            changes: Vec::new(),
            parents: Vec::new(),
            scratch: Box::new([0; BLOCK]),
        };
        scheme.load_tree()?;
        scheme.clear_tail()?;
        scheme.space.medium().fence()?;
        scheme.space.claim(scheme.levels.iter().flatten().copied())?;
        Ok(scheme)
    }

    /// Pages of a level, or blocks, that hold bytes below the size.
    fn used(&self, level: usize) -> usize {
        let mut used = index(self.size_bytes.div_ceil(BLOCK_U64));
        for _ in 0..level {
            used = used.div_ceil(WORDS);
        }
        used
    }

    /// Loads the pointers to bytes below the size, and clears the others.
    fn load_tree(&mut self) -> Result<(), SpaceError> {
        let top = self.levels.len() - 1;
        let root = [self.space.medium().load_word(HEAD)];
        self.take_pointers(top, 0, HEAD, &root)?;
        for level in (0..top).rev() {
            for page in 0..self.levels[level + 1].len() {
                let place = self.levels[level + 1][page];
                if place == HOLE {
                    continue;
                }
                let at = BlockNo(place).offset();
                let count = (self.levels[level].len() - page * WORDS).min(WORDS);
                let medium = self.space.medium();
                let load = |slot: usize| medium.load_word(at.plus((slot * WORD) as u64));
                let pointers: Vec<u64> = (0..count).map(load).collect();
                medium.check_range(at, (count * WORD) as u64)?;
                self.take_pointers(level, page * WORDS, at, &pointers)?;
            }
        }
        Ok(())
    }

    /// Takes over pointers `first ..` of a level, stored from `at` on.
    fn take_pointers(
        &mut self,
        level: usize,
        first: usize,
        at: PoolOffset,
        pointers: &[u64],
    ) -> Result<(), SpaceError> {
        let used = self.used(level);
        for (slot, &pointer) in pointers.iter().enumerate() {
            let at = at.plus((slot * WORD) as u64);
            if first + slot < used {
                self.space.check_place(pointer, "page of pointers", at)?;
                self.levels[level][first + slot] = pointer;
            } else if pointer != HOLE {
                self.space.medium().store_word(at, HOLE);
                self.space.medium().flush(at, WORD as u64);
            }
        }
        Ok(())
    }

    /// Clears the bytes beyond the size in its block.
    fn clear_tail(&mut self) -> Result<(), SpaceError> {
        let start = index(self.size_bytes % BLOCK_U64);
        let block = index(self.size_bytes / BLOCK_U64);
        if start == 0 || self.levels[0][block] == HOLE || planted(Bug::ShadowTailKept) {
            return Ok(());
        }
        let at = BlockNo(self.levels[0][block]).offset().plus(start as u64);
        let tail = &mut self.scratch[start..];
        self.space.medium().read(at, tail);
        self.space.medium().check_range(at, tail.len() as u64)?;
        if tail.iter().any(|&byte| byte != 0) {
            tail.fill(0);
            self.space.medium().store(at, tail);
            self.space.medium().flush(at, tail.len() as u64);
        }
        Ok(())
    }

    /// Makes the last commit and all streams durable.
    fn settle(&mut self) -> Result<(), MediaError> {
        if let Some(at) = self.pending.take() {
            self.space.medium().flush(at, WORD as u64);
        }
        // The pointer is durable after this fence, so no durable pointer names the replaced blocks.
        self.space.medium().fence()?;
        self.space.release();
        Ok(())
    }

    /// Stores the commit word of a request.
    fn commit_word(&mut self, at: PoolOffset, value: u64) {
        self.space.medium().store_word(at, value);
        self.pending = Some(at);
    }

    /// Returns the offset of the pointer to a place of a level, if there is a page for it.
    fn pointer_at(&self, level: usize, number: usize) -> Option<PoolOffset> {
        let Some(parents) = self.levels.get(level + 1) else { return Some(HEAD) };
        let page = parents[number / WORDS];
        let at = |page| BlockNo(page).offset().plus((number % WORDS * WORD) as u64);
        (page != HOLE).then_some(page).map(at)
    }

    /// Writes within one word of an existing block.
    fn write_word(&mut self, block: usize, start: usize, data: &[u8]) -> Result<(), MediaError> {
        let place = self.levels[0][block];
        let at = BlockNo(place).offset().plus((start / WORD * WORD) as u64);
        if planted(Bug::ShadowTwoWords) {
            self.settle()?;
            self.space.medium().store(BlockNo(place).offset().plus(start as u64), data);
            self.pending = Some(at);
            return Ok(());
        }
        let mut word = self.space.medium().load_word(at).to_le_bytes();
        self.space.medium().check_range(at, WORD as u64)?;
        word[start % WORD..start % WORD + data.len()].copy_from_slice(data);
        // A line's own stores keep their order.
        let same_line = |pending: PoolOffset| pending.0 / LINE_U64 == at.0 / LINE_U64;
        if self.pending.is_some_and(|pending| !same_line(pending)) {
            self.settle()?;
        }
        self.commit_word(at, u64::from_le_bytes(word));
        Ok(())
    }

    /// Writes the result of an edit to a new block, or to the new block of this request.
    fn copy(&mut self, edit: Edit<'_>) -> Result<(), MediaError> {
        let (Edit::Write { block, .. } | Edit::Unmap { block }) = edit;
        let again = self.change_of[block].checked_sub(1).map(|at| at as usize);
        let old = again.map_or(self.levels[0][block], |at| self.changes[at].1);
        let new = match edit {
            Edit::Write { start, data, .. }
                if old != HOLE
                    && again.is_none()
                    && self.space.compares()
                    && self.space.changed(old, start, data)?.is_empty() =>
            {
                return Ok(());
            }
            Edit::Write { start, data, .. } => {
                let fresh = again.is_some() && old != HOLE;
                let new = if fresh { BlockNo(old) } else { self.space.take() };
                let whole = self.space.merged(old, start, data, &mut self.scratch)?;
                self.space.medium().stream(new.offset(), whole);
                new.0
            }
            Edit::Unmap { .. } if old == HOLE => return Ok(()),
            Edit::Unmap { .. } => HOLE,
        };
        if let Some(at) = again {
            if new == HOLE {
                self.space.free_unused(old);
            }
            self.changes[at].1 = new;
        } else {
            self.changes.push((block, new));
            self.change_of[block] = u32::try_from(self.changes.len()).unwrap_or(u32::MAX);
        }
        Ok(())
    }

    /// The byte after the last written byte of the edits, if they write anything.
    fn end_of(edits: &[Edit<'_>]) -> u64 {
        let end = |edit: &Edit<'_>| match *edit {
            Edit::Write { block, start, data } => {
                block as u64 * BLOCK_U64 + (start + data.len()) as u64
            }
            Edit::Unmap { .. } => 0,
        };
        edits.iter().map(end).max().unwrap_or(0)
    }

    /// Returns true if all edits are writes at or beyond the size, each behind the preceding edit.
    fn is_append(&self, edits: &[Edit<'_>]) -> bool {
        let mut from = self.size_bytes;
        edits.iter().all(|edit| match *edit {
            Edit::Write { block, start, data } => {
                let at = block as u64 * BLOCK_U64 + start as u64;
                let behind = at >= from;
                from = at + data.len() as u64;
                behind
            }
            Edit::Unmap { .. } => false,
        })
    }

    /// Stores the bytes beyond the size in place, and then the size.
    fn append(&mut self, edits: &[Edit<'_>]) -> Result<(), MediaError> {
        for &edit in edits {
            let Edit::Write { block, start, data } = edit else { continue };
            let place = self.levels[0][block];
            if place == HOLE {
                let new = self.space.take();
                let whole = self.space.merged(HOLE, start, data, &mut self.scratch)?;
                self.space.medium().stream(new.offset(), whole);
                self.attach(0, block, new.0);
            } else {
                let at = BlockNo(place).offset().plus(start as u64);
                self.space.medium().store(at, data);
                self.space.medium().flush(at, data.len() as u64);
            }
        }
        self.grow(Self::end_of(edits))
    }

    /// Stores a pointer beyond the size in place, with new pages above it where there are none.
    fn attach(&mut self, level: usize, number: usize, place: u64) {
        self.levels[level][number] = place;
        if let Some(at) = self.pointer_at(level, number) {
            self.space.medium().store_word(at, place);
            self.space.medium().flush(at, WORD as u64);
            return;
        }
        let page = self.space.take();
        self.scratch.fill(0);
        let slot = number % WORDS * WORD;
        self.scratch[slot..slot + WORD].copy_from_slice(&place.to_le_bytes());
        self.space.medium().stream(page.offset(), &self.scratch[..]);
        self.attach(level + 1, number / WORDS, page.0);
    }

    /// Commits a larger size.
    fn grow(&mut self, size_bytes: u64) -> Result<(), MediaError> {
        // Appended bytes and pointers are durable before the size exposes them.
        if !planted(Bug::ShadowSizeEarly) {
            self.settle()?;
        }
        self.size_bytes = size_bytes;
        self.commit_word(SIZE_AT, size_bytes);
        Ok(())
    }

    /// Commits a smaller size if the last blocks were discarded.
    fn shrink(&mut self) -> Result<(), MediaError> {
        let mapped = self.levels[0][..self.used(0)].iter().rposition(|&place| place != HOLE);
        let end = mapped.map_or(0, |block| (block as u64 + 1) * BLOCK_U64);
        if end < self.size_bytes {
            self.settle()?;
            self.size_bytes = end;
            self.commit_word(SIZE_AT, end);
            // Before an append stores in place what the old size would show.
            self.settle()?;
        }
        Ok(())
    }

    /// Forgets the copies of a failed request.
    fn abandon(&mut self) {
        for (block, place) in self.changes.drain(..) {
            self.change_of[block] = 0;
            if place != HOLE {
                self.space.free_unused(place);
            }
        }
    }

    /// Commits the changed blocks: copies pages until one pointer is left to be stored.
    fn commit_changes(&mut self) -> Result<(), MediaError> {
        self.changes.sort_unstable();
        for &(block, _) in &self.changes {
            self.change_of[block] = 0;
        }
        for level in 0.. {
            if let [(number, place)] = self.changes[..]
                && let Some(at) = self.pointer_at(level, number)
            {
                self.replace(level, number, place);
                return self.commit_pointer(at, place);
            }
            if planted(Bug::ShadowNoCommonRoot) && level == 0 && self.all_have_pages() {
                return self.commit_one_by_one();
            }
            self.copy_pages(level);
            std::mem::swap(&mut self.changes, &mut self.parents);
        }
        Ok(())
    }

    /// Stores the commit pointer of a request, once its copies and the preceding pointer are
    /// durable.
    fn commit_pointer(&mut self, at: PoolOffset, place: u64) -> Result<(), MediaError> {
        if planted(Bug::ShadowFreedEarly) {
            let old = self.replaced.drain(..).filter(|&place| place != HOLE);
            old.for_each(|place| self.space.free_unused(place));
        }
        self.settle()?;
        self.commit_word(at, place);
        // Only now: `settle` has freed what earlier pointers replaced.
        self.replaced.drain(..).for_each(|place| self.space.free_later(place));
        Ok(())
    }

    fn replace(&mut self, level: usize, number: usize, place: u64) {
        let old = std::mem::replace(&mut self.levels[level][number], place);
        self.replaced.push(old);
    }

    /// Copies the pages above the changes of a level, which become changes of the next.
    fn copy_pages(&mut self, level: usize) {
        self.parents.clear();
        let changes = std::mem::take(&mut self.changes);
        for page_changes in changes.chunk_by(|(a, _), (b, _)| a / WORDS == b / WORDS) {
            for &(number, place) in page_changes {
                self.replace(level, number, place);
            }
            let parent = page_changes[0].0 / WORDS;
            let end = ((parent + 1) * WORDS).min(self.levels[level].len());
            self.scratch.fill(0);
            let pointers = &self.levels[level][parent * WORDS..end];
            for (bytes, pointer) in self.scratch.chunks_exact_mut(WORD).zip(pointers) {
                bytes.copy_from_slice(&pointer.to_le_bytes());
            }
            let page = self.space.take();
            self.space.medium().stream(page.offset(), &self.scratch[..]);
            self.parents.push((parent, page.0));
        }
        self.changes = changes;
    }

    fn all_have_pages(&self) -> bool {
        self.changes.iter().all(|&(number, _)| self.pointer_at(0, number).is_some())
    }

    /// The mistake of `ShadowNoCommonRoot`.
    fn commit_one_by_one(&mut self) -> Result<(), MediaError> {
        for (number, place) in std::mem::take(&mut self.changes) {
            self.replace(0, number, place);
            if let Some(at) = self.pointer_at(0, number) {
                self.commit_pointer(at, place)?;
            }
        }
        Ok(())
    }

    /// Blocks that edits may need: their own, and every page above them.
    fn blocks_needed(&self, edits: usize) -> usize {
        self.levels.iter().map(|level| level.len().min(edits)).sum()
    }

    fn is_one_word(&self, edit: Edit<'_>) -> bool {
        match edit {
            Edit::Write { block, start, data } => {
                let last = start + data.len() - 1;
                let words = last / WORD - start / WORD;
                let words_max = usize::from(planted(Bug::ShadowTwoWords));
                let end = block as u64 * BLOCK_U64 + (start + data.len()) as u64;
                self.levels[0][block] != HOLE && words <= words_max && end <= self.size_bytes
            }
            Edit::Unmap { .. } => false,
        }
    }
}

impl<M: Medium> Engine for Shadow<M> {
    type Medium = M;

    fn name(&self) -> &'static str {
        Kind::Shadow.name()
    }

    fn space(&self) -> &Space<M> {
        &self.space
    }

    fn places(&self) -> &[u64] {
        &self.levels[0]
    }

    fn edits_max(&self) -> usize {
        EDITS_MAX
    }

    fn apply(&mut self, edits: &[Edit<'_>]) -> Result<(), Refused> {
        if let &[edit] = edits
            && let Edit::Write { block, start, data } = edit
            && self.is_one_word(edit)
        {
            return Ok(self.write_word(block, start, data)?);
        }
        let needed = self.blocks_needed(edits.len());
        if !self.space.reserve(needed) {
            self.commit()?;
            if !self.space.reserve(needed) {
                return Err(Refused::NoSpace);
            }
        }
        if self.is_append(edits) {
            return Ok(self.append(edits)?);
        }
        let end = Self::end_of(edits);
        if end > self.size_bytes {
            self.grow(end)?;
        }
        self.changes.clear();
        if let Err(error) = edits.iter().try_for_each(|&edit| self.copy(edit)) {
            self.abandon();
            return Err(error.into());
        }
        if self.changes.is_empty() {
            return Ok(());
        }
        self.commit_changes()?;
        let discards = edits.iter().any(|edit| matches!(edit, Edit::Unmap { .. }));
        if discards { Ok(self.shrink()?) } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<(), SpaceError> {
        match self.pending {
            Some(_) => Ok(self.settle()?),
            None => Ok(()),
        }
    }

    fn checkpoint(&mut self) -> Result<(), SpaceError> {
        self.commit()
    }

    fn log_bytes(&self) -> u64 {
        0
    }
}
