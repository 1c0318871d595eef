//! The check of a file system's tree without writers: names, links, and reachability from the root.
//!
//! A problem names the inode, its address and a path. Each structure is checked before its use, so the time
//! of a check grows with the size of any tree.

use std::fmt::Write as _;

use everbyte_media::{BLOCK_U64, Medium, PoolOffset};
use everbyte_pool::Corrupt;
use hashbrown::HashMap;

use crate::attributes::xattr_block::Xattrs;
use crate::dir::Dir;
use crate::format::number::{FileType, InodeNo};
use crate::format::reader::Reader;
use crate::format::{Field, FsSuperblock, InodeWords, RawEntry};
use crate::inode::blocks::{VisitedExtents, visit_blocks};
use crate::inode::edits::Edit;
use crate::inode::tables::{InodeTables, SlotState};

/// Limit of listed problems. Further problems are only counted.
const LISTED_MAX: usize = 50;
/// Limit of names in a shown path.
const PATH_NAMES_MAX: usize = 64;

/// An inode, and the names that lead to it.
struct Node {
    at: PoolOffset,
    kind: FileType,
    links: u32,
    /// Number of entries of a directory, by its inode.
    entries: u64,
    /// Number of blocks, by its inode.
    blocks: u64,
    /// Number of blocks found; `None` if a structure that names them is damaged.
    blocks_found: Option<u64>,
    /// Parent of a directory, by its inode.
    parent: InodeNo,
    is_orphan: bool,
    names: u32,
    subdirectories: u32,
    /// The first directory with a name of the inode.
    named_in: Option<InodeNo>,
}

/// A tree during its check.
struct Tree<'t, M: Medium> {
    reader: Reader<'t, M>,
    superblock: &'t FsSuperblock,
    nodes: HashMap<InodeNo, Node>,
    problems: Vec<String>,
    /// Number of unlisted problems.
    more: usize,
}

/// Checks the tree, and returns its problems.
pub(crate) fn judge<M: Medium>(
    reader: Reader<'_, M>,
    superblock: &FsSuperblock,
    tables: &InodeTables<M>,
) -> Vec<String> {
    let nodes = HashMap::new();
    let mut tree = Tree { reader, superblock, nodes, problems: Vec::new(), more: 0 };
    let mut broken = tree.gather(tables);
    // Before any path is shown, because the walk finds the first name of each inode.
    broken.extend(tree.follow_names());
    for (inode, corrupt) in broken {
        tree.note(|tree| {
            let path = inode.map(|inode| format!("{}: ", tree.path(inode)));
            format!("{}{corrupt}", path.unwrap_or_default())
        });
    }
    tree.compare();
    tree.find_circles();
    if tree.more > 0 {
        tree.problems.push(format!("{} more problems of files and names", tree.more));
    }
    tree.problems
}

impl<M: Medium> Tree<'_, M> {
    /// Lists the problem, or counts it above the limit. Builds the text of listed problems only, because a
    /// path costs a walk through directories.
    fn note(&mut self, say: impl FnOnce(&Self) -> String) {
        if self.problems.len() < LISTED_MAX {
            self.problems.push(say(self));
        } else {
            self.more += 1;
        }
    }

    fn root(&self) -> InodeNo {
        self.superblock.geometry().root()
    }

    /// Reads every inode in use. Returns the damaged inodes, and damaged tables without an inode.
    fn gather(&mut self, tables: &InodeTables<M>) -> Vec<(Option<InodeNo>, Corrupt)> {
        let (reader, nodes) = (self.reader, &mut self.nodes);
        let hash_key = self.superblock.hash_key;
        let data = reader.data.blocks();
        // No block has two owners, so all inodes together lead to at most the pool.
        let mut bytes_left = (data.end - data.start) * BLOCK_U64;
        let mut broken = Vec::new();
        for table in 0..tables.tables() {
            let judged = tables.each_slot_of(reader, table, &mut |inode, at, state| {
                if state == SlotState::Free {
                    return Ok(());
                }
                match InodeWords::load(reader.medium, at, inode) {
                    Ok(words) => {
                        let attributes = Xattrs::load(reader, at, words.get(Field::Attributes));
                        broken.extend(attributes.err().map(|corrupt| (Some(inode), corrupt)));
                        // The visit of the volume's blocks reports a damage of these structures.
                        let of = (inode, at, &words);
                        let blocks_found = count_blocks(reader, of, hash_key, &mut bytes_left).ok();
                        let is_orphan = state == SlotState::Orphan;
                        nodes.insert(inode, node(at, &words, is_orphan, blocks_found));
                    }
                    Err(corrupt) => broken.push((Some(inode), corrupt)),
                }
                Ok(())
            });
            broken.extend(judged.err().map(|corrupt| (None, corrupt)));
        }
        broken
    }

    /// Follows every name of every directory. Returns the damaged directories.
    fn follow_names(&mut self) -> Vec<(Option<InodeNo>, Corrupt)> {
        let is_listed = |node: &Node| node.kind == FileType::Directory && !node.is_orphan;
        let mut directories: Vec<InodeNo> = self
            .nodes
            .iter()
            .filter(|(_, node)| is_listed(node))
            .map(|(inode, _)| *inode)
            .collect();
        // The same damage gives the same report.
        directories.sort_unstable();
        let mut broken = Vec::new();
        let mut wrong = Vec::new();
        for directory in directories {
            let mut from = Some(0);
            let mut entries = 0;
            while let Some(place) = from {
                let found = self.dir(directory).map(|dir| dir.entries_from(place));
                let Some(found) = found else { break };
                match found {
                    Ok((found, next)) => {
                        entries += found.len() as u64;
                        wrong.extend(
                            found.iter().filter_map(|found| self.follow(directory, &found.entry)),
                        );
                        from = next;
                    }
                    Err(corrupt) => {
                        broken.push((Some(directory), corrupt));
                        break;
                    }
                }
            }
            let said = self.nodes.get(&directory).map_or(0, |node| node.entries);
            if from.is_none() && said != entries {
                wrong.push((directory, format!("it has {entries} entries, its inode says {said}")));
            }
        }
        // Reported after the walk, because only then every path is known.
        for (inode, what) in wrong {
            self.note_about(inode, &what);
        }
        broken
    }

    fn dir(&self, inode: InodeNo) -> Option<Dir<'_, M>> {
        let node = self.nodes.get(&inode).filter(|node| node.kind == FileType::Directory)?;
        Some(Dir::new(self.reader, inode, Field::Root.at(node.at), self.superblock.hash_key))
    }

    /// Counts a name. Returns a problem of the name with its directory.
    fn follow(&mut self, directory: InodeNo, entry: &RawEntry) -> Option<(InodeNo, String)> {
        let name = show_name(&entry.name);
        let wrong = |what: String| Some((directory, format!("its name {name} {what}")));
        let inode = entry.inode;
        let is_root = inode == self.root();
        let Some(node) = self.nodes.get_mut(&inode) else {
            return wrong(format!("leads to {inode}, an unreadable or free inode"));
        };
        // Counted even for a wrong name, so that the comparison with the inode's count is exact.
        node.names += 1;
        node.named_in.get_or_insert(directory);
        let (kind, parent, is_orphan) = (node.kind, node.parent, node.is_orphan);
        if kind == FileType::Directory
            && let Some(node) = self.nodes.get_mut(&directory)
        {
            node.subdirectories += 1;
        }
        if is_orphan {
            return wrong(format!("leads to {inode}, which has lost its last name"));
        }
        if kind != entry.kind {
            return wrong(format!("is of a {:?}, and {inode} is a {kind:?}", entry.kind));
        }
        if is_root {
            return wrong("leads to the root".to_owned());
        }
        if kind == FileType::Directory && parent != directory {
            return wrong(format!("leads to {inode}, whose parent is {parent}"));
        }
        None
    }

    /// Compares link counts with names, and block counts with found blocks.
    fn compare(&mut self) {
        let root = self.root();
        let mut wrong = Vec::new();
        for (&inode, node) in &self.nodes {
            if let Some(found) = node.blocks_found.filter(|&found| found != node.blocks) {
                let said = node.blocks;
                wrong.push((inode, format!("it has {found} blocks, its inode says {said}")));
            }
            if node.is_orphan {
                continue;
            }
            let (names, links) = (node.names, node.links);
            if node.kind != FileType::Directory {
                if names != links {
                    wrong
                        .push((inode, format!("{names} names lead to it, its inode says {links}")));
                }
                continue;
            }
            if inode != root && names != 1 {
                wrong.push((inode, format!("{names} names lead to it, a directory has one")));
            }
            let expected = node.subdirectories.saturating_add(2);
            if links != expected {
                let what = format!(
                    "it has {} subdirectories, and {links} links instead of {expected}",
                    node.subdirectories
                );
                wrong.push((inode, what));
            }
        }
        if !self.nodes.get(&root).is_some_and(|node| node.kind == FileType::Directory) {
            self.note(|_| format!("the root, {root}, is no directory that can be read"));
        }
        wrong.sort_unstable();
        for (inode, what) in wrong {
            self.note_about(inode, &what);
        }
    }

    /// Finds directories that are their own ancestors.
    fn find_circles(&mut self) {
        let mut reached: HashMap<InodeNo, bool> = HashMap::from([(self.root(), true)]);
        let mut inodes: Vec<InodeNo> = self.nodes.keys().copied().collect();
        inodes.sort_unstable();
        for inode in inodes {
            let mut way = Vec::new();
            let mut at = inode;
            let is_circle = loop {
                if let Some(&is_reached) = reached.get(&at) {
                    break !is_reached && way.contains(&at);
                }
                let Some(node) = self.nodes.get(&at) else { break false };
                if node.kind != FileType::Directory || node.is_orphan {
                    break false;
                }
                // False marks the way of this search. A second visit of the way is a circle.
                reached.insert(at, false);
                way.push(at);
                at = node.parent;
            };
            if is_circle {
                self.note_about(at, "it is its own ancestor, and not below the root");
            }
            way.into_iter().for_each(|inode| _ = reached.insert(inode, true));
        }
    }

    fn note_about(&mut self, inode: InodeNo, what: &str) {
        self.note(|tree| {
            let at = tree.nodes.get(&inode).map_or(PoolOffset(0), |node| node.at);
            let path = tree.path(inode);
            format!("{path}, {inode} at {at}: {what}")
        });
    }

    /// A path to `inode` from the root, as far as names lead.
    fn path(&self, inode: InodeNo) -> String {
        let mut names = Vec::new();
        let mut at = inode;
        // The tree may have circles here.
        while at != self.root() && names.len() < PATH_NAMES_MAX {
            let named_in = self.nodes.get(&at).and_then(|node| node.named_in);
            // The nodes lack an unreadable inode, so its directory must be searched.
            let named_in = named_in.or_else(|| self.search(at));
            let Some(parent) = named_in else { break };
            names.push(self.name_in(parent, at).unwrap_or_else(|| "?".to_owned()));
            at = parent;
        }
        let mut path = if at == self.root() { String::new() } else { "...".to_owned() };
        for name in names.iter().rev() {
            let _ = write!(path, "/{name}");
        }
        if path.is_empty() { "/".to_owned() } else { path }
    }

    /// The directory with a name of an unreadable inode.
    fn search(&self, inode: InodeNo) -> Option<InodeNo> {
        let directories = self.nodes.iter().filter(|(_, node)| node.kind == FileType::Directory);
        let mut directories = directories.map(|(inode, _)| *inode);
        directories.find(|&directory| self.name_in(directory, inode).is_some())
    }

    /// The name of `inode` in `directory`.
    fn name_in(&self, directory: InodeNo, inode: InodeNo) -> Option<String> {
        let dir = self.dir(directory)?;
        let mut from = Some(0);
        while let Some(place) = from {
            let (found, next) = dir.entries_from(place).ok()?;
            if let Some(found) = found.iter().find(|found| found.entry.inode == inode) {
                return Some(show_name(&found.entry.name));
            }
            from = next;
        }
        None
    }
}

/// Counts the blocks of the inode at `at`. `hash_key` is the file system's.
///
/// # Errors
/// A damaged structure.
fn count_blocks<M: Medium>(
    reader: Reader<'_, M>,
    (inode, at, words): (InodeNo, PoolOffset, &InodeWords),
    hash_key: [u64; 2],
    bytes_left: &mut u64,
) -> Result<u64, Corrupt> {
    let (mut shown, mut blocks) = (VisitedExtents::new(reader, &inode), 0);
    visit_blocks(reader, &Edit::new(inode, at, *words), hash_key, &mut |used| {
        shown.note(&used)?;
        let (at, bytes) = used.bytes();
        let more = || Corrupt::new(inode.to_string(), at, "inodes lead to more than the pool has");
        // Without the bound, inodes that share a damaged map would each cost a walk of the whole
        // map.
        *bytes_left = bytes_left.checked_sub(bytes).ok_or_else(more)?;
        blocks += used.run.len;
        Ok(())
    })?;
    Ok(blocks)
}

fn node(at: PoolOffset, words: &InodeWords, is_orphan: bool, blocks_found: Option<u64>) -> Node {
    Node {
        at,
        kind: words.file_type(),
        links: words.links(),
        entries: words.get(Field::Size),
        blocks: words.get(Field::Blocks),
        blocks_found,
        parent: InodeNo(words.get(Field::Special)),
        is_orphan,
        names: 0,
        subdirectories: 0,
        named_in: None,
    }
}

/// A name without control characters.
fn show_name(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}
