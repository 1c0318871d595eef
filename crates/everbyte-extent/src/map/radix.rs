//! The radix tree of the NTL paper: nodes of 512 entries, 9 bits of the block number a level.
//!
//! Invariants: the root word names the top node and the number of levels. The lowest level's entries name
//! data. A missing node is a hole for everything below it. The tree grows at the top by a node with the old
//! top as its first entry. Nodes below the place of a new branch are written whole before that one word is
//! stored: every state of the tree visible to a reader or a crash is a tree. Nodes are unlinked only in the
//! lowest level, by their parent's word, and only when every block below is locked.

use everbyte_media::{BLOCK, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::Entry;
use everbyte_pool::{Batch, BlockRun, BlockUse, Claim, Corrupt, UsedExtent};

use super::{ENTRIES, EntryReader, data_use, root_entry, slot_at};
use crate::address::LogicalBlock;

/// Most levels: 2^45 blocks, more than a block number can say.
const HEIGHT_MAX: u8 = 5;

/// Levels of nodes needed for blocks `0 .. blocks`, at least 1.
pub(crate) fn height_for(blocks: u64) -> u8 {
    let mut height = 1;
    let mut covered = ENTRIES;
    while covered < blocks && height < HEIGHT_MAX {
        covered *= ENTRIES;
        height += 1;
    }
    height
}

/// The levels of the tree with its top in the word at `at`.
///
/// # Errors
/// No tree has so many.
fn height_of(root: Entry, structure: &str, at: PoolOffset) -> Result<u8, Corrupt> {
    let height = root.flags.height;
    if (1..=HEIGHT_MAX).contains(&height) {
        Ok(height)
    } else {
        Err(Corrupt::new(structure, at, format!("{height} levels cannot be")))
    }
}

/// A node on the path of a lookup.
#[derive(Clone, Copy)]
struct Node {
    block: BlockNo,
    level: u8,
    /// The first logical block below it.
    base: u64,
}

/// Number of nodes left for the walk of a whole tree. A tree with more of them than the pool has blocks is
/// cyclic.
struct NodesLeft(u64);

impl NodesLeft {
    fn of<M: Medium>(entries: &EntryReader<'_, M>) -> Self {
        Self(entries.blocks())
    }

    /// Counts the node in the word at `named_at`.
    fn enter(&mut self, named_at: PoolOffset) -> Result<(), Corrupt> {
        let more =
            || Corrupt::new("map node", named_at, "the tree has more nodes than the pool blocks");
        self.0 = self.0.checked_sub(1).ok_or_else(more)?;
        Ok(())
    }
}

/// Blocks covered by a tree of `height` levels.
fn covered_by(height: u8) -> u64 {
    ENTRIES.pow(u32::from(height))
}

/// Index in a node of `level` (1 is lowest) on the way to `block`.
fn index_at(block: u64, level: u8) -> u64 {
    block >> (9 * u32::from(level - 1)) & (ENTRIES - 1)
}

/// A place where a branch is missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attach {
    /// The future word of the branch.
    pub(crate) at: PoolOffset,
    /// The level of the node for the word.
    pub(crate) level: u8,
    /// True if the word is the root word.
    pub(crate) is_root: bool,
    /// The future first entry of the new node, when the tree grows at the top.
    pub(crate) old_root: Option<Entry>,
}

/// Outcome of a lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MapSlot {
    /// The word of the block is here.
    At(PoolOffset),
    /// A branch on the way to the word is missing.
    Missing(Attach),
}

/// Walks to the entry of `block` in the tree below `root_at`, for an extent of `extent_blocks`. `word` loads
/// a word, or returns its planned value; `on_node` sees every node passed.
pub(crate) fn lookup_path<M: Medium>(
    entries: &EntryReader<'_, M>,
    root_at: PoolOffset,
    block: u64,
    extent_blocks: u64,
    word: impl Fn(PoolOffset) -> u64,
    mut on_node: impl FnMut(BlockNo),
) -> Result<MapSlot, Corrupt> {
    let load = |at: PoolOffset| entries.decode(word(at), at);
    let wanted = height_for(extent_blocks.max(block + 1));
    // The height for the whole extent at once: each later growth would need a new root.
    let Some(root) = load(root_at)? else {
        let attach = Attach { at: root_at, level: wanted, is_root: true, old_root: None };
        return Ok(MapSlot::Missing(attach));
    };
    let height = height_of(root, "volume root", root_at)?;
    // One level at a time: the old root becomes the first child of the new one.
    if block >= covered_by(height) {
        let attach = Attach { at: root_at, level: height + 1, is_root: true, old_root: Some(root) };
        return Ok(MapSlot::Missing(attach));
    }
    let mut node = root.block;
    for level in (2..=height).rev() {
        on_node(node);
        let at = slot_at(node, index_at(block, level));
        match load(at)? {
            Some(entry) => node = entry.block,
            None => {
                let attach = Attach { at, level: level - 1, is_root: false, old_root: None };
                return Ok(MapSlot::Missing(attach));
            }
        }
    }
    on_node(node);
    Ok(MapSlot::At(slot_at(node, index_at(block, 1))))
}

/// The word with the lowest-level node for `block`, and that node, if present.
pub(crate) fn find_leaf_link<M: Medium>(
    entries: &EntryReader<'_, M>,
    root_at: PoolOffset,
    block: u64,
) -> Result<Option<(PoolOffset, BlockNo)>, Corrupt> {
    let Some(root) = entries.load(root_at)? else { return Ok(None) };
    let height = height_of(root, "volume root", root_at)?;
    if block >= covered_by(height) {
        return Ok(None);
    }
    let (mut link, mut node) = (root_at, root.block);
    for level in (2..=height).rev() {
        link = slot_at(node, index_at(block, level));
        match entries.load(link)? {
            Some(entry) => node = entry.block,
            None => return Ok(None),
        }
    }
    Ok(Some((link, node)))
}

/// The end of a search at an invalid word.
#[derive(Debug)]
pub(crate) struct Interrupted {
    /// The first block not passed: the earlier ones are holes.
    pub(crate) at: u64,
    /// True if the tree is cyclic, so that no search in it may end.
    pub(crate) is_endless: bool,
    /// The word.
    pub(crate) corrupt: Corrupt,
}

/// The first block of the first lowest-level node with blocks from `from` on.
pub(crate) fn first_leaf_from<M: Medium>(
    entries: &EntryReader<'_, M>,
    root_at: PoolOffset,
    from: u64,
) -> Result<Option<u64>, Interrupted> {
    let wrong = |corrupt| Interrupted { at: from, is_endless: false, corrupt };
    let Some(root) = entries.load(root_at).map_err(wrong)? else { return Ok(None) };
    let height = height_of(root, "volume root", root_at).map_err(wrong)?;
    if from >= covered_by(height) {
        return Ok(None);
    }
    let top = Node { block: root.block, level: height, base: 0 };
    first_leaf_below(entries, (root_at, top), from, &mut NodesLeft::of(entries))
}

fn first_leaf_below<M: Medium>(
    entries: &EntryReader<'_, M>,
    (named_at, node): (PoolOffset, Node),
    from: u64,
    left: &mut NodesLeft,
) -> Result<Option<u64>, Interrupted> {
    let wrong = |base: u64, is_endless| {
        move |corrupt| Interrupted { at: base.max(from), is_endless, corrupt }
    };
    left.enter(named_at).map_err(wrong(node.base, true))?;
    if node.level == 1 {
        return Ok(Some(node.base));
    }
    let child_blocks = covered_by(node.level - 1);
    let first = from.saturating_sub(node.base) / child_blocks;
    for index in first..ENTRIES {
        let at = slot_at(node.block, index);
        let base = node.base + index * child_blocks;
        if let Some(entry) = entries.load(at).map_err(wrong(base, false))? {
            let below = Node { block: entry.block, level: node.level - 1, base };
            let found = first_leaf_below(entries, (at, below), from, left)?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(None)
}

/// Fills the new nodes from `attach` down to the lowest level on the way to `block` and returns
/// the value for the word at `attach.at`. The nodes come from `nodes`, top first: one for each
/// level, or one only where the tree grows at the top.
pub(crate) fn build_branch<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    attach: &Attach,
    block: u64,
    nodes: &[BlockNo],
) -> u64 {
    let mut image = vec![0; BLOCK];
    for (depth, &node) in nodes.iter().enumerate() {
        image.fill(0);
        let child = match (&attach.old_root, nodes.get(depth + 1)) {
            (Some(old), _) => {
                // Inner entries carry no height.
                Some((0, Entry::data(old.block)))
            }
            (None, Some(&next)) => {
                let level =
                    attach.level - u8::try_from(depth).expect("a tree has at most 5 levels");
                Some((index_at(block, level), Entry::data(next)))
            }
            (None, None) => None,
        };
        if let Some((index, entry)) = child {
            let start = usize::try_from(index * 8).expect("a place in a node");
            image[start..start + 8].copy_from_slice(&entry.encode().to_le_bytes());
        }
        // No durable word leads here yet, so the nodes need no record, only the fence of the
        // commit.
        batch.stream(node.offset(), &image);
    }
    let top = nodes[0];
    if attach.is_root { root_entry(top, attach.level).encode() } else { Entry::data(top).encode() }
}

impl Attach {
    /// Nodes to allocate here: one if the tree grows at the top, else one a level.
    pub(crate) fn nodes_needed(&self) -> usize {
        if self.old_root.is_some() { 1 } else { usize::from(self.level) }
    }
}

pub(super) fn visit<M: Medium>(
    entries: &EntryReader<'_, M>,
    root_at: PoolOffset,
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    let Some(root) = entries.load(root_at)? else { return Ok(()) };
    let height = height_of(root, "volume root", root_at)?;
    let run = BlockRun { start: root.block, len: 1 };
    // Before the descent: a cycle ends at its second claim.
    claim(UsedExtent { run, named_at: root_at, holds: BlockUse::Map })?;
    visit_node(entries, Node { block: root.block, level: height, base: 0 }, claim)
}

fn visit_node<M: Medium>(
    entries: &EntryReader<'_, M>,
    node: Node,
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    for index in 0..ENTRIES {
        let at = slot_at(node.block, index);
        if let Some(entry) = entries.load(at)? {
            let base = node.base + index * covered_by(node.level - 1);
            let holds =
                if node.level > 1 { BlockUse::Map } else { data_use(entry, LogicalBlock(base)) };
            let run = BlockRun { start: entry.block, len: 1 };
            claim(UsedExtent { run, named_at: at, holds })?;
            if node.level > 1 {
                let below = Node { block: entry.block, level: node.level - 1, base };
                visit_node(entries, below, claim)?;
            }
        }
    }
    Ok(())
}

/// Claims the nodes of the tree of checksums below `root_at`.
pub(super) fn visit_slots<M: Medium>(
    entries: &EntryReader<'_, M>,
    root_at: PoolOffset,
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    each_slot_node(entries, root_at, &mut |named_at, entry| {
        let run = BlockRun { start: entry.block, len: 1 };
        claim(UsedExtent { run, named_at, holds: BlockUse::Checksums })
    })
}

/// Callback for a node, with the address of its word.
type OnNode<'a> = dyn FnMut(PoolOffset, Entry) -> Result<(), Corrupt> + 'a;

/// Shows every node of the tree of checksums below `root_at`. Its lowest level names nothing.
pub(crate) fn each_slot_node<M: Medium>(
    entries: &EntryReader<'_, M>,
    root_at: PoolOffset,
    on_node: &mut OnNode<'_>,
) -> Result<(), Corrupt> {
    let Some(root) = entries.load(root_at)? else { return Ok(()) };
    let height = height_of(root, "checksum root", root_at)?;
    let mut left = NodesLeft::of(entries);
    each_slot_node_below(entries, (root_at, root), height, &mut |named_at, node| {
        left.enter(named_at)?;
        on_node(named_at, node)
    })
}

fn each_slot_node_below<M: Medium>(
    entries: &EntryReader<'_, M>,
    (named_at, node): (PoolOffset, Entry),
    level: u8,
    on_node: &mut OnNode<'_>,
) -> Result<(), Corrupt> {
    // Before the descent: the count of nodes ends a cycle.
    on_node(named_at, node)?;
    for index in (0..ENTRIES).filter(|_| level > 1) {
        let at = slot_at(node.block, index);
        if let Some(entry) = entries.load(at)? {
            each_slot_node_below(entries, (at, entry), level - 1, on_node)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_cover_what_they_must() {
        assert_eq!(height_for(0), 1);
        assert_eq!(height_for(512), 1);
        assert_eq!(height_for(513), 2);
        assert_eq!(height_for(512 * 512), 2);
        assert_eq!(height_for(512 * 512 + 1), 3);
        for level in 1..=5 {
            assert!(height_for(covered_by(level)) == level);
        }
        assert_eq!(index_at(513, 1), 1);
        assert_eq!(index_at(513, 2), 1);
    }
}
