//! Operations as inputs encode them: few names, and places around the borders of structures.

use arbitrary::Arbitrary;
use everbyte_testkit::files::operations::{LONG, Mode, Op, Path};

/// Bytes of a file that operations reach.
const PLACES: [u64; 6] = [0, 64, 4096, 8192, 65_536, 69_632];
const LENGTHS: [usize; 7] = [0, 1, 9, 100, 4096, 5000, 20_000];
const TARGETS: [usize; 5] = [1, 128, 129, 4095, 4096];
const VALUES: [usize; 4] = [0, 5, 2000, 4070];

/// A path of one to three names.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(super) struct Where {
    depth: u8,
    names: [u8; 3],
}

impl Where {
    fn path(self) -> Path {
        let names = self.names.map(|name| of(&["a", "b", "c", LONG], name));
        names[..1 + usize::from(self.depth) % 3].to_vec()
    }
}

/// A place in a file, near a border.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(super) struct Place {
    border: u8,
    by: u8,
}

impl Place {
    fn offset(self) -> u64 {
        // From three bytes before the border to four behind it.
        (of(&PLACES, self.border) + u64::from(self.by % 8)).saturating_sub(3)
    }
}

/// An operation.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(super) enum Act {
    Create(Where, u16),
    Mkdir(Where, u16),
    Fifo(Where),
    Symlink(Where, u8),
    Link(Where, Where),
    Unlink(Where),
    Rmdir(Where),
    Rename(Where, Where, u8),
    Write { file: Where, at: Place, len: u8, byte: u8 },
    Truncate(Where, Place),
    Allocate { file: Where, at: Place, end: Place, what: u8, keep_size: bool },
    Chmod(Where, u16),
    Attribute { file: Where, second: bool, len: u8 },
    RemoveAttribute { file: Where, second: bool },
    Open(Where, u8),
    Close(u8),
    SyncFile(Where),
    Sync,
    Flags(Where, u8),
    Accessed { file: Where, seconds: i64, ns: u32 },
}

impl Act {
    pub(super) fn op(self) -> Op {
        let mode = |mode: u16| u32::from(mode) & 0o7777;
        let attribute = |second| if second { "user.b" } else { "user.a" };
        match self {
            Self::Create(file, bits) => Op::Create(file.path(), mode(bits)),
            Self::Mkdir(file, bits) => Op::Mkdir(file.path(), mode(bits)),
            Self::Fifo(file) => Op::Fifo(file.path()),
            Self::Symlink(file, len) => Op::Symlink(file.path(), of(&TARGETS, len)),
            Self::Link(old, new) => Op::Link(old.path(), new.path()),
            Self::Unlink(file) => Op::Unlink(file.path()),
            Self::Rmdir(file) => Op::Rmdir(file.path()),
            Self::Rename(old, new, mode) => {
                let mode = of(&[Mode::Replace, Mode::NoReplace, Mode::Exchange], mode);
                Op::Rename(old.path(), new.path(), mode)
            }
            Self::Write { file, at, len, byte } => {
                Op::Write { path: file.path(), offset: at.offset(), len: of(&LENGTHS, len), byte }
            }
            Self::Truncate(file, at) => Op::Truncate(file.path(), at.offset()),
            Self::Allocate { file, at, end, what, keep_size } => {
                let (offset, what) = (at.offset(), of(&['r', 'z', 'p'], what));
                let len = end.offset().saturating_sub(offset);
                Op::Allocate { path: file.path(), offset, len, what, keep_size }
            }
            Self::Chmod(file, bits) => Op::Chmod(file.path(), mode(bits)),
            Self::Attribute { file, second, len } => {
                Op::Attribute(file.path(), attribute(second), of(&VALUES, len))
            }
            Self::RemoveAttribute { file, second } => {
                Op::RemoveAttribute(file.path(), attribute(second))
            }
            Self::Open(file, hand) => Op::Open(file.path(), usize::from(hand % 4)),
            Self::Close(hand) => Op::Close(usize::from(hand % 4)),
            Self::SyncFile(file) => Op::SyncFile(file.path()),
            Self::Sync => Op::Sync,
            // Half of them forbid nothing, so that files go on to change.
            Self::Flags(file, bits) => {
                let forbids = if bits & 1 == 0 { 0 } else { 0x30 };
                Op::Flags(file.path(), u32::from(bits) & (0xc0 | forbids))
            }
            Self::Accessed { file, seconds, ns } => {
                // Beyond both ends of the range, and not far.
                let seconds = i128::from(seconds % (1 << 35));
                Op::Accessed(file.path(), seconds * 1_000_000_000 + i128::from(ns % 1_000_000_000))
            }
        }
    }
}

fn of<T: Copy>(choices: &[T], number: u8) -> T {
    choices[usize::from(number) % choices.len()]
}
