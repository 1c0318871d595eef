//! A block volume as far as wear is concerned: which lines of which frames are written.
//!
//! The model is the block volume's. A write of less than half of a block's lines goes in place, another
//! one to a new frame, whole, and the old frame is free after the next checkpoint. A frame that was taken
//! since the last checkpoint is written in place. Lines that are stored in place reach the medium at the
//! checkpoint, once, which comes after so many changed lines: it stands for a client's flushes, which
//! traces of pages do not have. Left out: the log, whose area is written round and round, the map, and
//! what change detection saves.

use anyhow::Result;

use super::placement::{FreeFrames, Rule};

/// Lines of 64 bytes in a block.
const LINES: u32 = 64;
/// Lines from which on a block is replaced: half of them.
const REPLACED_LINES: u32 = LINES / 2;
/// Changed lines at which a checkpoint is made: those of 4 MiB.
const CHANGED_LINES_MAX: u64 = 4 << 14;
const NO_FRAME: u32 = u32::MAX;

/// A write to a part of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Write {
    pub(super) block: u32,
    /// Its first byte in the block, and its bytes.
    pub(super) start: u16,
    pub(super) len: u16,
}

impl Write {
    /// Lines that it touches, a bit each.
    fn lines(self) -> u64 {
        let first = u32::from(self.start) / 64;
        let last = (u32::from(self.start) + u32::from(self.len) - 1) / 64;
        let count = last.min(LINES - 1) - first + 1;
        (u64::MAX >> (LINES - count)) << first
    }
}

/// Blocks and the frames that they lie in.
pub(super) struct Model {
    free: FreeFrames,
    /// Frame of each block.
    frames: Vec<u32>,
    /// Time of the last write of each block, in writes.
    written_at: Vec<u64>,
    /// Lines written so far, by frame.
    pub(super) wear: Vec<u64>,
    /// Of them, lines that were stored in place.
    pub(super) in_place: Vec<u64>,
    /// Dirty lines of each frame, and the frames that have some.
    dirty: Vec<u64>,
    dirty_frames: Vec<u32>,
    /// Lines that changed since the last checkpoint.
    changed_lines: u64,
    /// True for frames taken since the last checkpoint.
    is_fresh: Vec<bool>,
    fresh: Vec<u32>,
    /// Frames that are free after the next checkpoint.
    deferred: Vec<u32>,
    now: u64,
    /// Bytes that were asked to be written.
    pub(super) asked_bytes: u64,
}

impl Model {
    /// An empty volume of `blocks` blocks in `frames` frames, more than those.
    ///
    /// # Errors
    /// None.
    pub(super) fn new(rule: Rule, blocks: u32, frames: u32) -> Result<Self> {
        let (blocks, frames) = (blocks as usize, frames as usize);
        Ok(Self {
            free: FreeFrames::new(rule, u32::try_from(frames)?)?,
            frames: vec![NO_FRAME; blocks],
            written_at: vec![0; blocks],
            wear: vec![0; frames],
            in_place: vec![0; frames],
            dirty: vec![0; frames],
            dirty_frames: Vec::new(),
            changed_lines: 0,
            is_fresh: vec![false; frames],
            fresh: Vec::new(),
            deferred: Vec::new(),
            now: 0,
            asked_bytes: 0,
        })
    }

    /// Does a write.
    ///
    /// # Errors
    /// No frame is free even after a checkpoint.
    pub(super) fn write(&mut self, write: Write) -> Result<()> {
        let lines = write.lines();
        let block = write.block as usize;
        let old = self.frames[block];
        self.now += 1;
        self.asked_bytes += u64::from(write.len);
        let stays =
            old != NO_FRAME && (self.is_fresh[old as usize] || lines.count_ones() < REPLACED_LINES);
        if stays {
            self.store_in_place(old, lines);
        } else {
            let frame = self.take(block)?;
            // A block is filled whole: the request, and what was there or zeroes.
            self.wear[frame as usize] += u64::from(LINES);
            self.changed_lines += u64::from(LINES);
            self.is_fresh[frame as usize] = true;
            self.fresh.push(frame);
            self.frames[block] = frame;
            if old != NO_FRAME {
                self.deferred.push(old);
            }
        }
        self.written_at[block] = self.now;
        if self.changed_lines >= CHANGED_LINES_MAX {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// A frame for a block; a checkpoint is made where there is none else.
    fn take(&mut self, block: usize) -> Result<u32> {
        // Written again within as many writes as there are blocks: soon.
        let age = self.now - self.written_at[block];
        let is_hot = self.written_at[block] > 0 && age <= self.frames.len() as u64;
        if let Ok(frame) = self.free.take(is_hot) {
            return Ok(frame);
        }
        self.checkpoint()?;
        self.free.take(is_hot)
    }

    fn store_in_place(&mut self, frame: u32, lines: u64) {
        let dirty = &mut self.dirty[frame as usize];
        if *dirty == 0 {
            self.dirty_frames.push(frame);
        }
        self.changed_lines += u64::from((lines & !*dirty).count_ones());
        *dirty |= lines;
    }

    /// Writes what is dirty, and frees what was replaced.
    ///
    /// # Errors
    /// None: a frame is replaced once.
    pub(super) fn checkpoint(&mut self) -> Result<()> {
        for frame in self.dirty_frames.drain(..) {
            let lines = std::mem::take(&mut self.dirty[frame as usize]).count_ones();
            self.wear[frame as usize] += u64::from(lines);
            self.in_place[frame as usize] += u64::from(lines);
        }
        self.changed_lines = 0;
        for frame in self.fresh.drain(..) {
            self.is_fresh[frame as usize] = false;
        }
        for frame in self.deferred.drain(..) {
            self.free.give(frame, self.wear[frame as usize])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(block: u32, start: u16, len: u16) -> Write {
        Write { block, start, len }
    }

    #[test]
    fn small_writes_wear_their_lines_once_a_checkpoint_and_large_ones_a_new_frame() {
        let mut model = Model::new(Rule::NextFit, 2, 4).unwrap();
        model.write(write(0, 0, 4096)).unwrap();
        model.checkpoint().unwrap();
        assert_eq!(model.wear, [64, 0, 0, 0]);
        for _ in 0..5 {
            model.write(write(0, 100, 64)).unwrap();
        }
        assert_eq!(model.wear, [64, 0, 0, 0], "nothing is flushed yet");
        model.checkpoint().unwrap();
        assert_eq!((model.wear[0], model.in_place[0]), (66, 2));
        model.write(write(0, 0, 2048)).unwrap();
        model.write(write(0, 0, 4096)).unwrap();
        model.checkpoint().unwrap();
        assert_eq!(model.wear, [66, 128, 0, 0], "a fresh frame is not replaced");
        assert_eq!(model.asked_bytes, 4096 + 5 * 64 + 2048 + 4096);
    }

    #[test]
    fn what_is_written_does_not_depend_on_the_rule() {
        let sums: Vec<u64> = Rule::ALL
            .map(|rule| {
                let mut model = Model::new(rule, 100, 125).unwrap();
                for n in 0..20_000_u32 {
                    let block = n * 7 % 100 * (n % 3) / 2;
                    let len = if n % 5 == 0 { 4096 } else { 512 };
                    model.write(write(block, 0, len)).unwrap();
                    if n % 50 == 0 {
                        model.checkpoint().unwrap();
                    }
                }
                model.checkpoint().unwrap();
                model.wear.iter().sum()
            })
            .to_vec();
        assert!(sums[0] > 0 && sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
    }

    #[test]
    fn the_least_worn_frame_evens_what_one_block_wears() {
        let worst = |rule| {
            let mut model = Model::new(rule, 10, 40).unwrap();
            (0..10).for_each(|block| model.write(write(block, 0, 4096)).unwrap());
            for _ in 0..300 {
                model.write(write(3, 0, 4096)).unwrap();
                model.checkpoint().unwrap();
            }
            model.wear.iter().max().copied().unwrap() / 64
        };
        // 300 writes over the 30 frames that are free, and the block's own.
        assert!((10..=12).contains(&worst(Rule::LeastWorn)), "{}", worst(Rule::LeastWorn));
        // Its lanes go on from batch to batch, and so round the pool.
        assert!((10..=16).contains(&worst(Rule::Near)), "{}", worst(Rule::Near));
        // All that is written once stays where it was, however little its frames wore.
        assert!(worst(Rule::HotCold) >= worst(Rule::LeastWorn));
    }
}
