//! What a volume of any kind can do, behind one trait.
//!
//! Whoever has to do with volumes asks their handles, and nobody asks for a volume's kind. A handle's
//! methods are called by several threads at once, but for those that take an [`Alone`], whose owner
//! no client and no other change runs beside.

use std::path::PathBuf;
use std::sync::Arc;

use everbyte_block::BlockVolume;
use everbyte_cache::{Change, Identity};
use everbyte_control::{Cause, Refused, VolumeStatus};
use everbyte_device::BlockDevice;
use everbyte_media::Mapped;
use everbyte_pool::{ScrubReport, Volume};

use crate::context::Unshared;
use crate::gate::Alone;

/// A volume of a kind that is a block volume inside.
pub(crate) type Device = BlockVolume<Mapped>;

/// A volume that is open, as its kind gives it.
pub(crate) struct Opened {
    /// The pool's view of it.
    pub(crate) volume: Arc<Volume<Mapped>>,
    pub(crate) handle: Box<dyn Handle>,
}

/// Why clients cannot have a volume, and what lists call that.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct Unavailable {
    /// One or two words.
    pub(crate) state: &'static str,
    /// The words for people.
    pub(crate) reason: String,
    /// What it is about, if something can be done about it.
    pub(crate) cause: Option<Cause>,
}

impl Unavailable {
    pub(crate) fn new(state: &'static str, reason: String) -> Self {
        Self { state, reason, cause: None }
    }
}

/// Another size for a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resize {
    /// So many bytes for its users.
    Size(u64),
    /// Other sizes of a cache.
    Memory(Change),
}

/// What a volume holds in ordinary memory, on its way into the pool while the server ends.
pub(crate) trait Closing: Send {
    /// Waits until it is there, unless what it must wait for is silent.
    ///
    /// # Errors
    /// What was answered may be lost, and why.
    fn finish(self: Box<Self>) -> Result<(), String>;
}

/// A mount that is wanted.
#[derive(Clone, Debug)]
pub struct MountRequest {
    /// The directory, which exists.
    pub dir: PathBuf,
    /// Users other than the one who mounts may use it.
    pub allow_other: bool,
    /// Nothing may be changed.
    pub read_only: bool,
    /// Threads that serve requests.
    pub threads: usize,
}

/// A volume of some kind, opened by the one process that has its pool.
pub(crate) trait Handle: Send + Sync {
    /// Begins to make it ready for clients, if that takes time.
    fn prepare(&self) {}

    /// What clients use. Waits for it no longer than a client would.
    ///
    /// # Errors
    /// Why it is not to be had.
    fn open(&self) -> Result<Arc<dyn BlockDevice>, Unavailable>;

    /// Mounts it on a directory, where lists call it `source`.
    ///
    /// # Errors
    /// It is no file system, is mounted already, or cannot be.
    fn mount(&self, source: String, _: &MountRequest) -> Result<(), Refused> {
        Err(Refused::new(format!("{source} is no file system")))
    }

    /// Returns true as long as it is mounted.
    fn is_mounted(&self) -> bool {
        false
    }

    /// Whether it is known whether clients can have it.
    fn is_settled(&self) -> bool {
        true
    }

    /// Whether clients can have it without waiting.
    fn is_ready(&self) -> bool {
        true
    }

    /// Whether it stands before a backing device.
    fn has_backing(&self) -> bool {
        false
    }

    /// What it knows its backing device by, if it has one and that can be read.
    fn backing(&self) -> Option<Identity> {
        None
    }

    /// Adds what is particular to volumes of its kind, and what differs for its users from what lies
    /// in the pool.
    fn complete(&self, _status: &mut VolumeStatus) {}

    /// Reads its bytes from `from` on, until a good deal was read. Also returns the place to go on from,
    /// or `None` at the end.
    ///
    /// # Errors
    /// The volume is gone.
    fn scrub(&self, from: u64) -> Result<(ScrubReport, Option<u64>), Refused>;

    /// Whether it may have clients while it is resized.
    fn resizes_beside_clients(&self, resize: &Resize) -> bool;

    /// Gives it another size.
    ///
    /// # Errors
    /// The size cannot be, or what it needs fails. It is as it was then.
    fn resize(&self, resize: &Resize, alone: Option<Alone>) -> Result<(), Refused>;

    /// Tells it where its backing device is now.
    ///
    /// # Errors
    /// It has none, or that one is not it, or is not `unshared`. Nothing has changed then.
    fn attach(&self, backing: &str, alone: Alone, unshared: Unshared<'_>) -> Result<(), Refused>;

    /// Writes back for a while; says how many bytes are left.
    ///
    /// # Errors
    /// It has no backing device, or that fails. Nothing is lost.
    fn write_back(&self, alone: Alone) -> Result<u64, Refused>;

    /// Writes everything back. Gives the right to change it back, for it to be deleted.
    ///
    /// # Errors
    /// As `write_back`.
    fn detach(&self, alone: Alone) -> Result<Alone, Refused>;

    /// Whether it can be deleted without a loss that its user may not know of.
    ///
    /// # Errors
    /// What would be lost.
    fn check_deletable(&self) -> Result<(), Refused> {
        Ok(())
    }

    /// Lets go of everything outside the pool: the volume is gone.
    fn abandon(&self) {}

    /// Begins to make durable what it holds outside the pool, and to let go of the rest.
    fn close(&self) -> Option<Box<dyn Closing>> {
        None
    }
}
