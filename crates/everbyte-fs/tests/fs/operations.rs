//! Operations on a tree of files, as tests make them, and what can be seen of a tree.

use std::collections::BTreeMap;

use proptest::prelude::*;

/// A path from the root, of names that are single letters, or long.
pub(crate) type Path = Vec<&'static str>;

/// An operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    Create(Path, u32),
    Mkdir(Path, u32),
    Fifo(Path),
    Symlink(Path, usize),
    Link(Path, Path),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path, Mode),
    Write {
        path: Path,
        offset: u64,
        len: usize,
        byte: u8,
    },
    Truncate(Path, u64),
    /// Reserves, zeroes or punches.
    Allocate {
        path: Path,
        offset: u64,
        len: u64,
        what: char,
        keep_size: bool,
    },
    Chmod(Path, u32),
    /// Sets an extended attribute to that many bytes.
    Attribute(Path, &'static str, usize),
    RemoveAttribute(Path, &'static str),
    /// Gives the file `a` many names in a directory: so many, from that number on.
    Names(Path, u32, u32),
    /// Makes so many files in a directory.
    Files(Path, u32),
    /// Opens a file in one of four hands.
    Open(Path, usize),
    Close(usize),
    Sync,
}

impl Op {
    /// The same below `top`.
    pub(crate) fn below(mut self, top: &'static str) -> Self {
        let paths: [Option<&mut Path>; 2] = match &mut self {
            Self::Link(a, b) | Self::Rename(a, b, _) => [Some(a), Some(b)],
            Self::Create(path, _)
            | Self::Mkdir(path, _)
            | Self::Fifo(path)
            | Self::Symlink(path, _)
            | Self::Unlink(path)
            | Self::Rmdir(path)
            | Self::Write { path, .. }
            | Self::Truncate(path, _)
            | Self::Allocate { path, .. }
            | Self::Chmod(path, _)
            | Self::Attribute(path, ..)
            | Self::RemoveAttribute(path, _)
            | Self::Names(path, ..)
            | Self::Files(path, _)
            | Self::Open(path, _) => [Some(path), None],
            Self::Close(_) | Self::Sync => [None, None],
        };
        paths.into_iter().flatten().for_each(|path| path.insert(0, top));
        self
    }
}

/// How a renaming treats what has the new name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Replace,
    NoReplace,
    Exchange,
}

/// All that can be seen of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// Files with the same number are the same file; the lowest path that names it.
    pub(crate) first_path: String,
    pub(crate) kind: char,
    pub(crate) permissions: u32,
    pub(crate) links: u32,
    pub(crate) size: u64,
    /// Contents, or target.
    pub(crate) bytes: Vec<u8>,
    /// Extended attributes: names, and how long their values are.
    pub(crate) attributes: Vec<(String, usize)>,
}

/// All that can be seen of a tree, by path.
pub(crate) type Tree = BTreeMap<String, Seen>;

/// Something that operations can be made on.
pub(crate) trait Subject {
    /// Makes an operation, or says with which error number it fails.
    fn make(&mut self, op: &Op) -> Result<(), i32>;
    /// All that can be seen.
    fn tree(&self) -> Tree;
}

pub(crate) const LONG: &str =
    "a-name-that-is-as-long-as-names-are-when-people-write-whole-sentences";

pub(crate) fn path() -> impl Strategy<Value = Path> {
    let name = prop::sample::select(vec!["a", "b", "c", LONG]);
    prop::collection::vec(name, 1..=3)
}

/// Sizes and places around the borders of pieces, blocks, entries in an inode, and leaves.
fn place() -> impl Strategy<Value = u64> {
    let borders = vec![0_u64, 4096, 8192, 65536, 69632, 2 << 20, (2 << 20) + 65536];
    (prop::sample::select(borders), -3_i64..=3)
        .prop_map(|(border, by)| border.saturating_add_signed(by))
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let mode = prop::sample::select(vec![Mode::Replace, Mode::NoReplace, Mode::Exchange]);
    let permissions = 0_u32..0o10_000;
    let attribute = prop::sample::select(vec!["user.a", "user.b"]);
    let len = prop::sample::select(vec![0_usize, 1, 9, 100, 4096, 5000, 70_000]);
    prop_oneof![
        4 => (path(), permissions.clone()).prop_map(|(p, m)| Op::Create(p, m)),
        4 => (path(), permissions.clone()).prop_map(|(p, m)| Op::Mkdir(p, m)),
        1 => path().prop_map(Op::Fifo),
        1 => (path(), prop::sample::select(vec![1_usize, 128, 129, 4095, 4096]))
            .prop_map(|(p, len)| Op::Symlink(p, len)),
        2 => (path(), path()).prop_map(|(a, b)| Op::Link(a, b)),
        2 => path().prop_map(Op::Unlink),
        2 => path().prop_map(Op::Rmdir),
        5 => (path(), path(), mode).prop_map(|(a, b, mode)| Op::Rename(a, b, mode)),
        4 => (path(), place(), len, any::<u8>())
            .prop_map(|(path, offset, len, byte)| Op::Write { path, offset, len, byte }),
        2 => (path(), place()).prop_map(|(p, size)| Op::Truncate(p, size)),
        2 => (path(), place(), place(), prop::sample::select(vec!['r', 'z', 'p']), any::<bool>())
            .prop_map(|(path, offset, end, what, keep_size)| {
                let len = end.saturating_sub(offset);
                Op::Allocate { path, offset, len, what, keep_size }
            }),
        2 => (path(), attribute.clone(), prop::sample::select(vec![0_usize, 5, 2000, 4070]))
            .prop_map(|(p, name, len)| Op::Attribute(p, name, len)),
        1 => (path(), attribute).prop_map(|(p, name)| Op::RemoveAttribute(p, name)),
        1 => (path(), permissions).prop_map(|(p, m)| Op::Chmod(p, m)),
        1 => (path(), 0_usize..4).prop_map(|(p, hand)| Op::Open(p, hand)),
        1 => (0_usize..4).prop_map(Op::Close),
        1 => Just(Op::Sync),
    ]
}

/// Bytes that a write of `byte` at `offset` stores, which tell where they belong.
pub(crate) fn written(offset: u64, len: usize, byte: u8) -> Vec<u8> {
    (offset..offset + len as u64).map(|at| byte ^ (at % 251) as u8).collect()
}

pub(crate) fn target(len: usize) -> Vec<u8> {
    (0..len).map(|at| b"abcdefghijklmnopqrstuvwxyz"[at % 26]).collect()
}
