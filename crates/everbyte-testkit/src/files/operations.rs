//! Operations on a tree of files, and snapshots of a tree.

use std::collections::BTreeMap;
use std::fmt;

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
    /// Links the first file to the second name.
    Link(Path, Path),
    /// Removes a name of a file.
    Unlink(Path),
    /// Removes an empty directory.
    Rmdir(Path),
    /// Renames the first file to the second name.
    Rename(Path, Path, Mode),
    /// Writes the bytes of [`written`].
    Write {
        /// The file.
        path: Path,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: usize,
        /// Distinguishes the bytes of writes.
        byte: u8,
    },
    /// As [`Op::Write`], durable, without a checkpoint if possible.
    WriteDurably {
        /// The file.
        path: Path,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: usize,
        /// Distinguishes the bytes of writes.
        byte: u8,
    },
    /// Truncates a file to a size in bytes.
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
        /// True to keep the file's size.
        keep_size: bool,
    },
    /// Sets permissions.
    Chmod(Path, u32),
    /// Sets flags, by their bits.
    Flags(Path, u32),
    /// Sets the time of the last access, in nanoseconds since 1970.
    Accessed(Path, i128),
    /// Sets an extended attribute to that many bytes.
    Attribute(Path, &'static str, usize),
    /// Removes an extended attribute.
    RemoveAttribute(Path, &'static str),
    /// Sets an access control list, or the default one.
    Acl(Path, AclName, &'static [AclEntry]),
    /// Copies bytes from file to file.
    Copy {
        /// Source and target.
        paths: [Path; 2],
        /// First byte in each.
        offsets: [u64; 2],
        /// Bytes.
        len: u64,
    },
    /// Creates a file without a name in a directory, opened in one of four hands.
    Unnamed(Path, u32, usize),
    /// Links the open file of a hand.
    LinkHand(usize, Path),
    /// Links the file `a` to many names in a directory: the first number and the count.
    Names(Path, u32, u32),
    /// Makes so many files in a directory.
    Files(Path, u32),
    /// Adds so many inode tables.
    Tables(u32),
    /// Opens a file in one of four hands.
    Open(Path, usize),
    /// Closes the open file of a hand.
    Close(usize),
    /// Takes a view of all of a file in one of four hands.
    View(Path, usize),
    /// Compares the view in a hand with its first bytes.
    LookAtView(usize),
    /// Ends the view in a hand.
    EndView(usize),
    /// Makes a file durable.
    SyncFile(Path),
    /// Makes everything durable.
    Sync,
}

impl Op {
    /// The paths of the operation.
    #[must_use]
    pub fn paths(&self) -> Vec<Path> {
        self.clone().paths_mut().map(|path| path.clone()).collect()
    }

    /// The operation below `top`.
    #[must_use]
    pub fn below(mut self, top: &'static str) -> Self {
        self.paths_mut().for_each(|path| path.insert(0, top));
        self
    }

    fn paths_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        let paths: [Option<&mut Path>; 2] = match self {
            Self::Link(a, b) | Self::Rename(a, b, _) | Self::Copy { paths: [a, b], .. } => {
                [Some(a), Some(b)]
            }
            Self::Create(path, _)
            | Self::Mkdir(path, _)
            | Self::Fifo(path)
            | Self::Symlink(path, _)
            | Self::Unlink(path)
            | Self::Rmdir(path)
            | Self::Write { path, .. }
            | Self::WriteDurably { path, .. }
            | Self::Truncate(path, _)
            | Self::Allocate { path, .. }
            | Self::Chmod(path, _)
            | Self::Flags(path, _)
            | Self::Accessed(path, _)
            | Self::Attribute(path, ..)
            | Self::RemoveAttribute(path, _)
            | Self::Acl(path, ..)
            | Self::Names(path, ..)
            | Self::Files(path, _)
            | Self::Unnamed(path, ..)
            | Self::LinkHand(_, path)
            | Self::Open(path, _)
            | Self::View(path, _)
            | Self::SyncFile(path) => [Some(path), None],
            Self::Close(_)
            | Self::LookAtView(_)
            | Self::EndView(_)
            | Self::Sync
            | Self::Tables(_) => [None, None],
        };
        paths.into_iter().flatten()
    }
}

/// An entry of an access control list: tag, permissions, user or group.
pub type AclEntry = (u16, u16, u32);

/// One of the two lists that a file can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AclName {
    /// The access list of a file.
    Access,
    /// The default list of a directory.
    Default,
}

impl AclName {
    /// The name of the attribute with the list.
    #[must_use]
    pub fn attribute(self) -> &'static str {
        match self {
            Self::Access => "system.posix_acl_access",
            Self::Default => "system.posix_acl_default",
        }
    }
}

const NONE: u32 = u32::MAX;
/// Lists: empty, equal to a mode, with users, groups and masks, and two invalid ones.
pub const ACLS: [&[AclEntry]; 7] = [
    &[],
    &[(1, 6, NONE), (4, 4, NONE), (32, 0, NONE)],
    &[(1, 7, NONE), (2, 5, 70), (4, 7, NONE), (16, 6, NONE), (32, 5, NONE)],
    &[(1, 7, NONE), (4, 1, NONE), (8, 7, 3), (8, 2, 9), (16, 7, NONE), (32, 0, NONE)],
    &[(1, 4, NONE), (4, 7, NONE), (16, 2, NONE), (32, 7, NONE)],
    &[(1, 7, NONE), (2, 5, 70), (4, 7, NONE), (32, 5, NONE)],
    &[(4, 7, NONE), (1, 7, NONE), (32, 5, NONE)],
];

/// The value of an attribute with a list.
#[must_use]
pub fn acl_value(entries: &[AclEntry]) -> Vec<u8> {
    // The version of the kernel's format of lists.
    let mut value = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// Permissions removed from new files without a default list.
pub const UMASK: u32 = 0o022;

/// The effect of a renaming on a file with the new name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// It loses the name.
    Replace,
    /// The renaming fails.
    NoReplace,
    /// It gets the old name.
    Exchange,
    /// It loses the name, and a device takes the old one.
    Whiteout,
    /// The renaming fails, or a device takes the old name.
    NewWhiteout,
}

/// The visible state of a file.
#[derive(Clone, PartialEq, Eq)]
pub struct FileSnapshot {
    /// The lowest path of the file. Files with the same number are the same file.
    pub first_path: String,
    /// Its type: `f`, `d`, `l`, `c` for a character device, or `p` for any other.
    pub kind: char,
    /// Permissions.
    pub permissions: u32,
    /// Names; of a directory as `stat` counts them.
    pub links: u32,
    /// Bytes; of a directory entries.
    pub size: u64,
    /// Contents, or target.
    pub bytes: Vec<u8>,
    /// Extended attributes: names, and values.
    pub attributes: Vec<(String, Vec<u8>)>,
    /// Flags, as bits.
    pub flags: u32,
    /// Time of the last access, in nanoseconds since 1970; 0 for one in these years.
    pub accessed: i128,
}

/// Range of a clock during tests, in nanoseconds since 1970.
pub const RECENT: std::ops::Range<i128> = 1 << 60..1 << 61;

impl fmt::Debug for FileSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first_path, kind, permissions, links, size, bytes, attributes, .. } = self;
        let crc = crc32c::crc32c(bytes);
        write!(f, "{kind} {permissions:o} of {links}, {size} bytes: {crc:#x} {attributes:?}")?;
        write!(f, " flags {:#x} accessed {} first {first_path:?}", self.flags, self.accessed)
    }
}

/// The visible state of a tree, by path.
pub type Tree = BTreeMap<String, FileSnapshot>;

/// A subject of operations.
pub trait Subject {
    /// Performs an operation.
    ///
    /// # Errors
    /// The error number.
    fn make(&mut self, op: &Op) -> Result<(), i32>;
    /// The visible state.
    fn tree(&self) -> Tree;
}

/// A long name.
pub const LONG: &str = "a-name-that-is-as-long-as-names-are-when-people-write-whole-sentences";

/// The first number with a long name.
pub const LONG_NAMES: u32 = 1 << 20;

/// The name with this number.
#[must_use]
pub fn numbered_name(number: u32) -> String {
    let name = format!("name {number}");
    if number < LONG_NAMES { name } else { format!("{name:.<230}") }
}

/// Bytes of a write of `byte` at `offset`. They depend on their position.
#[must_use]
pub fn written(offset: u64, len: usize, byte: u8) -> Vec<u8> {
    // A prime period: bytes at the wrong block, line or word differ from the expected ones.
    let cycle: Vec<u8> = (0..251).map(|place| byte ^ place).collect();
    let (mut bytes, mut place) = (Vec::with_capacity(len), (offset % 251) as usize);
    while bytes.len() < len {
        let rest = &cycle[place..];
        bytes.extend_from_slice(&rest[..rest.len().min(len - bytes.len())]);
        place = 0;
    }
    bytes
}

/// The target of a link, of so many bytes.
#[must_use]
pub fn target(len: usize) -> Vec<u8> {
    (0..len).map(|at| b"abcdefghijklmnopqrstuvwxyz"[at % 26]).collect()
}
