//! Actions of a policy, and the reasons for them.
//!
//! Knows no frames: which frame of a tier a page gets is the caller's affair.

use crate::access::{Op, PageNo};

/// A tier of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Tier {
    /// DRAM.
    Dram,
    /// Storage-class memory: byte-addressable, slower to write, wears out.
    Scm,
}

/// The reason of an action.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Reason {
    /// A read missed.
    ReadMiss,
    /// A write missed.
    WriteMiss,
    /// A miss of a page that was evicted a short while ago.
    GhostHit,
    /// DRAM was full and the page was dirty.
    DirtyVictim,
    /// DRAM was full, and SCM had a free frame for the clean page.
    FreeFrame,
    /// DRAM was full, and SCM had a colder clean page than this one.
    ColderPage,
    /// The tier was full and the page was the policy's next victim.
    Victim,
    /// The tier was full, and the policy expected no further use of the page.
    NoEvidence,
    /// SCM had no frame worth taking for the page.
    NoRoomBelow,
    /// Writes to the page were too many or too large for SCM.
    WriteHot,
    /// A read promoted the page.
    ReadHot,
    /// The page was demoted in exchange for a promoted one.
    Swapped,
    /// The page is adjacent to one in write-back.
    Neighbour,
    /// The other tier has the page.
    Duplicate,
    /// The capacity became smaller.
    Shrunk,
}

impl Reason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 15] = [
        Self::ReadMiss,
        Self::WriteMiss,
        Self::GhostHit,
        Self::DirtyVictim,
        Self::FreeFrame,
        Self::ColderPage,
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

    /// Returns the name for tables and files: lower case, words joined by `_`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadMiss => "read_miss",
            Self::WriteMiss => "write_miss",
            Self::GhostHit => "ghost_hit",
            Self::DirtyVictim => "dirty_victim",
            Self::FreeFrame => "free_frame",
            Self::ColderPage => "colder_page",
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

    /// Returns the reason for the fill of a page that missed.
    #[must_use]
    pub const fn of_miss(op: Op) -> Self {
        match op {
            Op::Read => Self::ReadMiss,
            Op::Write => Self::WriteMiss,
        }
    }
}

/// One step that the cache must carry out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The page of the access was found in `found`; the access is served in `served`, in place,
    /// byte for byte. The tiers differ if a [`Action::Move`] or [`Action::Copy`] of the page came
    /// just before.
    Hit {
        /// Tier of the page when the access came.
        found: Tier,
        /// Tier whose bytes are read or written.
        served: Tier,
    },
    /// The page of the access comes from the backing device (unless the access writes all of it)
    /// into `tier`, and the access is served there.
    Fill {
        /// The page.
        page: PageNo,
        /// Its new tier.
        tier: Tier,
        /// The reason.
        why: Reason,
    },
    /// The page is promoted or demoted: all of its bytes are copied.
    Move {
        /// The page.
        page: PageNo,
        /// Its new tier.
        to: Tier,
        /// True if the backing device has older bytes.
        dirty: bool,
        /// The reason.
        why: Reason,
    },
    /// The page is copied from SCM to DRAM and stays in both.
    Copy {
        /// The page.
        page: PageNo,
        /// The reason.
        why: Reason,
    },
    /// SCM's copy of a page that is in both tiers gets DRAM's bytes. The page stays in both.
    Update {
        /// The page.
        page: PageNo,
        /// True if the backing device has older bytes.
        dirty: bool,
        /// The reason.
        why: Reason,
    },
    /// The page, clean or held by the other tier as well, is dropped without a write-back.
    Drop {
        /// The page.
        page: PageNo,
        /// Its tier before.
        from: Tier,
        /// The reason.
        why: Reason,
    },
    /// The dirty page is written to the backing device and evicted.
    Evict {
        /// The page.
        page: PageNo,
        /// Its tier before.
        from: Tier,
        /// The reason.
        why: Reason,
    },
}

/// Carries actions out.
///
/// # Contract
/// - An access reports exactly one [`Action::Hit`] or one [`Action::Fill`], of its page.
/// - A frame is free before a page needs it, with one exception: a page may be promoted before the
///   demotion that frees its frame, so DRAM holds at most one page more than its capacity *within*
///   an access. SCM never does. The receiver keeps one spare DRAM frame.
/// - [`Action::Drop`] names clean pages only; a dirty page leaves by [`Action::Evict`]. Where both
///   tiers may have a page (Spitfire's only), the tier that keeps it has its newest bytes.
/// - An action is final: the receiver cannot refuse it. If its write-back fails, or the victim is
///   pinned, the receiver keeps the frame until this is over and serves a miss of the page from
///   there.
pub trait Actions {
    /// Carries out the next action of the current access.
    fn act(&mut self, action: Action);
}

impl Actions for Vec<Action> {
    fn act(&mut self, action: Action) {
        self.push(action);
    }
}
