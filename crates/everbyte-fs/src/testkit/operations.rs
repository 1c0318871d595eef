//! Operations on a tree of files, and what can be seen of a tree.

use std::collections::BTreeMap;

/// A path from the root, of names that are single letters, or long.
pub type Path = Vec<&'static str>;

/// An operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Makes a regular file with permissions.
    Create(Path, u32),
    /// Makes a directory with permissions.
    Mkdir(Path, u32),
    /// Makes a named pipe.
    Fifo(Path),
    /// Makes a symbolic link with a target of so many bytes.
    Symlink(Path, usize),
    /// Gives the first file the second name, too.
    Link(Path, Path),
    /// Takes a name of a file away.
    Unlink(Path),
    /// Removes an empty directory.
    Rmdir(Path),
    /// Gives the first file the second name instead.
    Rename(Path, Path, Mode),
    /// Writes bytes that [`written`] says.
    Write {
        /// The file.
        path: Path,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: usize,
        /// Tells them from those of other writes.
        byte: u8,
    },
    /// Makes a file end at a size in bytes.
    Truncate(Path, u64),
    /// Reserves, zeroes or punches.
    Allocate {
        /// The file.
        path: Path,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// `r` reserves, `z` zeroes, `p` punches.
        what: char,
        /// True if the file does not become larger.
        keep_size: bool,
    },
    /// Sets permissions.
    Chmod(Path, u32),
    /// Sets an extended attribute to that many bytes.
    Attribute(Path, &'static str, usize),
    /// Takes an extended attribute away.
    RemoveAttribute(Path, &'static str),
    /// Gives the file `a` many names in a directory: so many, from that number on.
    Names(Path, u32, u32),
    /// Makes so many files in a directory.
    Files(Path, u32),
    /// Opens a file in one of four hands.
    Open(Path, usize),
    /// Closes what one of the hands has open.
    Close(usize),
    /// Makes everything durable.
    Sync,
}

impl Op {
    /// The same below `top`.
    #[must_use]
    pub fn below(mut self, top: &'static str) -> Self {
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
pub enum Mode {
    /// It loses the name.
    Replace,
    /// The renaming fails.
    NoReplace,
    /// It gets the old name.
    Exchange,
}

/// All that can be seen of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Files with the same number are the same file; the lowest path that names it.
    pub first_path: String,
    /// Its type: `f`, `d`, `l`, or `p` for any other.
    pub kind: char,
    /// Permissions.
    pub permissions: u32,
    /// Names; of a directory as `stat` counts them.
    pub links: u32,
    /// Bytes; of a directory entries.
    pub size: u64,
    /// Contents, or target.
    pub bytes: Vec<u8>,
    /// Extended attributes: names, and how long their values are.
    pub attributes: Vec<(String, usize)>,
}

/// All that can be seen of a tree, by path.
pub type Tree = BTreeMap<String, Seen>;

/// Something that operations can be made on.
pub trait Subject {
    /// Makes an operation, or says with which error number it fails.
    ///
    /// # Errors
    /// The error number.
    fn make(&mut self, op: &Op) -> Result<(), i32>;
    /// All that can be seen.
    fn tree(&self) -> Tree;
}

/// A long name.
pub const LONG: &str = "a-name-that-is-as-long-as-names-are-when-people-write-whole-sentences";

/// Bytes that a write of `byte` at `offset` stores, which tell where they belong.
#[must_use]
pub fn written(offset: u64, len: usize, byte: u8) -> Vec<u8> {
    (offset..offset + len as u64).map(|at| byte ^ (at % 251) as u8).collect()
}

/// The target of a link, of so many bytes.
#[must_use]
pub fn target(len: usize) -> Vec<u8> {
    (0..len).map(|at| b"abcdefghijklmnopqrstuvwxyz"[at % 26]).collect()
}
