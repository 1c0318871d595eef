//! What a policy may ask for, and why.
//!
//! Invariants of every sequence of actions:
//! - an access gives exactly one [`Action::Hit`] or one [`Action::Fill`], of its own page;
//! - room is made before a page comes in, with one exception: a page that goes up from PRAM may
//!   do so before the page that makes room for it goes down, so DRAM holds at most one page more
//!   than its capacity *within* an access. PRAM never does. Whoever carries actions out keeps one
//!   spare DRAM frame;
//! - [`Action::Drop`] names clean pages only; a dirty page leaves with [`Action::Evict`]. Where both
//!   tiers may have a page (Spitfire's only), the tier that is left with it has its newest bytes.
//!
//! Knows no frames: which frame of a tier a page gets is the caller's affair.

use crate::access::{Op, PAGE_BYTES, PageNo};

/// A part of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Tier {
    /// Ordinary memory.
    Dram,
    /// Storage-class memory: byte-addressable, slower to write, wears out.
    Pram,
}

/// Lines of a page, one bit each; bit `i` is the line of bytes `64 * i ..`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct LineMask(pub u64);

impl LineMask {
    /// Bytes of a line.
    pub const LINE_BYTES: u32 = PAGE_BYTES / 64;
    /// The whole page.
    pub const ALL: Self = Self(u64::MAX);

    /// The lines that `len` bytes from byte `start` of a page touch. `len` is at least 1 and the
    /// bytes end within the page.
    #[must_use]
    pub fn touched(start: u16, len: u16) -> Self {
        let first = u32::from(start) / Self::LINE_BYTES;
        let last = (u32::from(start) + u32::from(len) - 1) / Self::LINE_BYTES;
        Self((u64::MAX >> (63 - (last - first))) << first)
    }

    /// Both sets of lines.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Bytes in the lines.
    #[must_use]
    pub fn bytes(self) -> u32 {
        self.0.count_ones() * Self::LINE_BYTES
    }
}

/// Why a policy asked for an action.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Reason {
    /// A read missed.
    ReadMiss,
    /// A write missed.
    WriteMiss,
    /// A miss of a page that had left a short while ago.
    GhostHit,
    /// DRAM was full and the page was dirty.
    DirtyVictim,
    /// DRAM was full, and PRAM had a free frame for the clean page.
    FreeFrame,
    /// DRAM was full, and PRAM had a colder clean page than this one.
    ColderPage,
    /// DRAM was full, and of its pages this one was likely to stay in the cache for long.
    LongToLive,
    /// The tier was full and the page was the next to go.
    Victim,
    /// The tier was full, and nothing said that the page would be used again.
    NoEvidence,
    /// The tier below had no room worth taking.
    NoRoomBelow,
    /// Writes to the page were too many or too large for PRAM.
    WriteHot,
    /// A read took the page up.
    ReadHot,
    /// The page goes the other way for one that was taken up.
    Swapped,
    /// The page lies beside one that is being written back.
    Neighbour,
    /// Another tier has the page.
    Duplicate,
    /// The capacity became smaller.
    Shrunk,
}

impl Reason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 16] = [
        Self::ReadMiss,
        Self::WriteMiss,
        Self::GhostHit,
        Self::DirtyVictim,
        Self::FreeFrame,
        Self::ColderPage,
        Self::LongToLive,
        Self::Victim,
        Self::NoEvidence,
        Self::NoRoomBelow,
        Self::WriteHot,
        Self::ReadHot,
        Self::Swapped,
        Self::Neighbour,
        Self::Duplicate,
        Self::Shrunk,
    ];

    /// A name for tables and files: lower case, words joined by `_`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadMiss => "read_miss",
            Self::WriteMiss => "write_miss",
            Self::GhostHit => "ghost_hit",
            Self::DirtyVictim => "dirty_victim",
            Self::FreeFrame => "free_frame",
            Self::ColderPage => "colder_page",
            Self::LongToLive => "long_to_live",
            Self::Victim => "victim",
            Self::NoEvidence => "no_evidence",
            Self::NoRoomBelow => "no_room_below",
            Self::WriteHot => "write_hot",
            Self::ReadHot => "read_hot",
            Self::Swapped => "swapped",
            Self::Neighbour => "neighbour",
            Self::Duplicate => "duplicate",
            Self::Shrunk => "shrunk",
        }
    }

    /// Why a page that was not in the cache comes in.
    #[must_use]
    pub const fn of_miss(op: Op) -> Self {
        match op {
            Op::Read => Self::ReadMiss,
            Op::Write => Self::WriteMiss,
        }
    }
}

/// One thing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The page of the access was found in `found`; the access is served in `served`, in place,
    /// byte for byte. The tiers differ if a [`Action::Move`] or [`Action::Copy`] of the page came
    /// just before.
    Hit {
        /// Where the page was when the access came.
        found: Tier,
        /// Where its bytes are read or written.
        served: Tier,
    },
    /// The page of the access comes from storage (unless the access writes all of it) into
    /// `tier`, and the access is served there.
    Fill {
        /// The page.
        page: PageNo,
        /// Where it goes.
        tier: Tier,
        /// Why.
        why: Reason,
    },
    /// The page changes its tier. `lines` have to be copied: all of them, or those that differ
    /// from a copy that `to` has.
    Move {
        /// The page.
        page: PageNo,
        /// Where it goes.
        to: Tier,
        /// What has to be copied.
        lines: LineMask,
        /// Whether storage has older bytes.
        dirty: bool,
        /// Why.
        why: Reason,
    },
    /// The page is copied from PRAM to DRAM and stays in both.
    Copy {
        /// The page.
        page: PageNo,
        /// Why.
        why: Reason,
    },
    /// PRAM's copy of a page that is in both tiers gets the newer bytes that DRAM has. The page stays
    /// in both.
    Update {
        /// The page.
        page: PageNo,
        /// What has to be copied.
        lines: LineMask,
        /// Whether storage has older bytes.
        dirty: bool,
        /// Why.
        why: Reason,
    },
    /// The page, clean or held by the other tier as well, is forgotten.
    Drop {
        /// The page.
        page: PageNo,
        /// Where it was.
        from: Tier,
        /// Why.
        why: Reason,
    },
    /// The page, dirty, is written to storage and forgotten.
    Evict {
        /// The page.
        page: PageNo,
        /// Where it was.
        from: Tier,
        /// Why.
        why: Reason,
    },
}

/// Whoever carries actions out.
///
/// A decision is final when it is told: there is no way to refuse. A caller whose write-back fails,
/// or who has the victim pinned, keeps the frame aside until that is over and serves a miss of the
/// page from there.
pub trait Actions {
    /// Takes the next action of the current access.
    fn act(&mut self, action: Action);
}

impl Actions for Vec<Action> {
    fn act(&mut self, action: Action) {
        self.push(action);
    }
}
