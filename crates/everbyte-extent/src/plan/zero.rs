//! Plans for bytes to read as zeroes: blocks are unmapped, or keep their space.

use everbyte_media::{BLOCK, BLOCK_U64, Medium};
use everbyte_plant::planted;
use everbyte_pool::Corrupt;
use everbyte_pool::format::Entry;
use everbyte_pool::plant::Bug;

use super::{EntryWord, Planner};
use crate::address::{DeviceOffset, LogicalBlock};
use crate::error::ExtentError;
use crate::leaf::LeafPart;
use crate::map::{self, ENTRIES, MapSlot};

static ZEROES: [u8; BLOCK] = [0; BLOCK];

impl<M: Medium> Planner<'_, '_, '_, M> {
    /// Plans to unmap one part of a range: its whole blocks, and the last one of the extent; bytes of other
    /// blocks become zeroes.
    ///
    /// # Errors
    /// As [`Planner::write`].
    pub fn unmap(&mut self, part: LeafPart) -> Result<(), ExtentError> {
        if part.is_whole_leaf() {
            return self.unlink_leaf(part.offset.block());
        }
        self.zero(part.offset, part.end(), false)
    }

    /// Plans to give blocks `from .. to` space of their own; their contents stay.
    ///
    /// # Errors
    /// As [`Planner::write`].
    pub fn reserve(&mut self, from: LogicalBlock, to: LogicalBlock) -> Result<(), ExtentError> {
        let mut block = from;
        while block < to {
            self.take_leaf_run(block, to.0)?;
            let at = self.extent.entry_for_write(self.batch, block)?;
            // A mapped block keeps its contents, or is reserved already.
            if self.extent.entries().load(at)?.is_none() {
                self.zero_block(block, true)?;
            }
            block.0 += 1;
        }
        Ok(())
    }

    /// Plans to zero bytes `from .. to`. Whole blocks, and the last one of the extent, are unmapped, or with
    /// `reserve` keep their space.
    ///
    /// # Errors
    /// As [`Planner::write`].
    pub fn zero(
        &mut self,
        from: DeviceOffset,
        to: DeviceOffset,
        reserve: bool,
    ) -> Result<(), ExtentError> {
        self.planned(|own| own.zero_parts(from, to, reserve))
    }

    fn zero_parts(
        &mut self,
        from: DeviceOffset,
        to: DeviceOffset,
        reserve: bool,
    ) -> Result<(), ExtentError> {
        let mut at = from;
        while at < to {
            let block = at.block();
            let end = LogicalBlock(block.0 + 1).offset().min(to);
            // Behind the end of the extent the last block has no bytes to keep.
            let is_whole =
                at.in_block() == 0 && (end.in_block() == 0 || end.0 >= self.extent.size_bytes());
            if reserve {
                self.take_leaf_run(block, to.0 / BLOCK_U64)?;
            }
            if is_whole {
                self.zero_block(block, reserve)?;
            } else if reserve || self.extent.has_data(block)? {
                let len = usize::try_from(end.0 - at.0).expect("at most a block");
                // A partial edge keeps the other bytes of its block. A hole reads as zeroes
                // already.
                self.write_pieces(at, &ZEROES[..len])?;
            }
            at = end;
        }
        Ok(())
    }

    /// Plans to unmap `block`, or with `reserve` to make it read as zeroes with its space kept.
    fn zero_block(&mut self, block: LogicalBlock, reserve: bool) -> Result<(), ExtentError> {
        let at = match self.extent.look_up_in(self.batch, block)? {
            MapSlot::At(at) => at,
            MapSlot::Missing(_) if !reserve => return Ok(()),
            MapSlot::Missing(_) => self.extent.entry_for_write(self.batch, block)?,
        };
        let word = EntryWord { at, word: self.extent.medium().load_word(at) };
        match (self.extent.entries().decode(word.word, at)?, reserve) {
            (None, false) => {}
            (None, true) => {
                let to = self.take_data(block)?.ok_or(ExtentError::NoSpace)?;
                self.name(&word, Some(Entry::zero(to)));
            }
            (Some(entry), true) if entry.flags.zero => {}
            (Some(entry), true) => self.name(&word, Some(Entry::zero(entry.block))),
            (Some(entry), false) => {
                self.name(&word, None);
                self.batch.free(entry.block);
            }
        }
        Ok(())
    }

    /// Plans to unmap the blocks with entries next to the root word.
    fn zero_first_entries(&mut self) -> Result<(), ExtentError> {
        let first = self.extent.first_entries();
        for block in 0..first.map_or(0, |first| first.count) {
            self.zero_block(LogicalBlock(block), false)?;
        }
        Ok(())
    }

    /// Plans to unlink the leaf of a radix map from `first` on, and everything below it.
    pub(crate) fn unlink_leaf(&mut self, first: LogicalBlock) -> Result<(), ExtentError> {
        let extent = self.extent;
        // No other thread may attach a node below the link in between.
        self.batch.hold(extent.structure());
        if first.0 == 0 {
            self.zero_first_entries()?;
        }
        let found = map::find_leaf_link(&extent.entries(), extent.root_at(), first.0)?;
        let Some((link, leaf)) = found else { return Ok(()) };
        // The caller holds the locks of all blocks of the leaf, so no thread uses a remembered
        // entry of it.
        if !planted(Bug::UnlinkedLeafKnown) {
            extent.leaves.forget(first);
        }
        let mut blocks = Vec::new();
        for index in 0..ENTRIES {
            let at = map::slot_at(leaf, index);
            blocks.extend(extent.entries().load(at)?.map(|entry| (entry.block, at)));
        }
        blocks.push((leaf, link));
        blocks.sort_unstable();
        // A second free of a block would give it two owners.
        if let Some([_, (block, at)]) = blocks.array_windows().find(|[(a, _), (b, _)]| a == b) {
            let what = format!("{block} is named a second time");
            return Err(Corrupt::new("map entry", *at, what).into());
        }
        self.batch.free_all(blocks.iter().map(|(block, _)| *block).filter(|block| *block != leaf));
        self.batch.free(leaf);
        // One word unlinks the whole leaf, so no crash leaves a part of it.
        self.batch.change_word(link, 0);
        Ok(())
    }
}
