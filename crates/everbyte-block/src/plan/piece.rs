//! A request cut at blocks.

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, LineMask, PoolOffset};

/// A part of a request that lies in one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockPiece<'a> {
    /// Logical block.
    pub(crate) block: u64,
    /// First byte in the block.
    pub(crate) start: usize,
    /// The new bytes.
    pub(crate) data: &'a [u8],
}

impl BlockPiece<'_> {
    /// First byte in the device.
    pub(crate) fn offset(&self) -> u64 {
        self.block * BLOCK_U64 + self.start as u64
    }

    /// The lines it touches.
    pub(crate) fn lines(&self) -> LineMask {
        LineMask::covering(self.start, self.data.len())
    }
}

impl<'d> BlockPiece<'d> {
    /// Those bytes of the piece that lie in `lines`, and where they go in `block`.
    pub(crate) fn parts_in(
        self,
        block: BlockNo,
        lines: LineMask,
    ) -> impl Iterator<Item = (PoolOffset, &'d [u8])> {
        lines.runs().filter_map(move |(start, len)| {
            let from = start.max(self.start);
            let to = (start + len).min(self.start + self.data.len());
            let at = block.offset().plus(from as u64);
            (from < to).then(|| (at, &self.data[from - self.start..to - self.start]))
        })
    }
}

/// Splits a request into its blocks.
pub(crate) fn pieces(offset: u64, data: &[u8]) -> impl Iterator<Item = BlockPiece<'_>> {
    let mut at = PoolOffset(offset);
    let mut rest = data;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let start = at.in_block();
        let (now, later) = rest.split_at(rest.len().min(BLOCK - start));
        let piece = BlockPiece { block: at.block().0, start, data: now };
        at = at.plus(now.len() as u64);
        rest = later;
        Some(piece)
    })
}
