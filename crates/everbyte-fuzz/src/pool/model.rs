//! A model of a volume's contents, for the few blocks that stories touch.
//!
//! Invariant: bytes beyond the volume's size are zero.

use std::ops::Range;
use std::sync::Arc;

use everbyte_media::BLOCK_U64;

/// Runs of blocks touched by stories: the beginning, the seam between two lowest nodes of the
/// radix tree, and the end of the larger volume.
pub(crate) const RUNS: [Range<u64>; 3] = [0..6, 510..514, 766..769];

const ZEROES: [u8; 4096] = [0; 4096];

type Block = Arc<[u8; 4096]>;

/// A volume's bytes in [`RUNS`]. Clones share blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Content {
    pub(crate) size_bytes: u64,
    blocks: Vec<Block>,
}

/// All block numbers in [`RUNS`], in order.
pub(crate) fn block_numbers() -> impl Iterator<Item = u64> {
    RUNS.into_iter().flatten()
}

impl Content {
    /// Makes a volume of `size_bytes`. It reads as zeroes.
    pub(crate) fn new(size_bytes: u64) -> Self {
        let zeroes = Arc::new(ZEROES);
        Self { size_bytes, blocks: block_numbers().map(|_| Arc::clone(&zeroes)).collect() }
    }

    /// Returns the bytes of `block` within the volume.
    pub(crate) fn block(&self, block: u64) -> &[u8] {
        let index = block_numbers().position(|number| number == block).unwrap();
        let len = self.size_bytes.saturating_sub(block * BLOCK_U64).min(BLOCK_U64);
        &self.blocks[index][..len as usize]
    }

    /// Sets the bytes from `offset` on; the range must lie in one run.
    pub(crate) fn put(&mut self, offset: u64, data: &[u8]) {
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let index =
                block_numbers().position(|number| number == at / BLOCK_U64).expect("not in a run");
            let start = (at % BLOCK_U64) as usize;
            let len = rest.len().min(4096 - start);
            // Copies share blocks until one of them is written: stories keep many contents.
            let block = Arc::make_mut(&mut self.blocks[index]);
            block[start..start + len].copy_from_slice(&rest[..len]);
            rest = &rest[len..];
            at += len as u64;
        }
    }

    /// Changes the size.
    pub(crate) fn resize(&mut self, size_bytes: u64) {
        for (block, number) in self.blocks.iter_mut().zip(block_numbers()) {
            let kept = size_bytes.saturating_sub(number * BLOCK_U64) as usize;
            // Bytes beyond the end are zero, so a later growth shows zeroes. An unchanged block
            // stays shared.
            if kept < 4096 && block[kept..].iter().any(|&byte| byte != 0) {
                Arc::make_mut(block)[kept..].fill(0);
            }
        }
        self.size_bytes = size_bytes;
    }
}

/// The model's knowledge of one volume.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// Its contents now.
    pub(crate) now: Content,
    /// Contents that a crash may leave; empty if unknown.
    pub(crate) durable: Vec<Content>,
}

impl Known {
    /// Makes a volume whose content is durable.
    pub(crate) fn durable(now: Content) -> Self {
        Self { durable: vec![now.clone()], now }
    }

    /// Makes the present content the only one that a crash may leave.
    pub(crate) fn settle(&mut self) {
        self.durable = vec![self.now.clone()];
    }
}
