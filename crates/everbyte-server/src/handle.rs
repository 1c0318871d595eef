//! The trait behind which volumes of all kinds are used.
//!
//! The server calls handles and never asks for a volume's kind. Several threads call a handle's
//! methods at once, except those that take an [`Alone`]: beside its owner no client and no other
//! change runs.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use everbyte::backing::KnownBacking;
use everbyte_block::BlockVolume;
use everbyte_cache::Change;
use everbyte_control::{Cause, FileRequest, MountServed, Refused, Response, VolumeStatus};
use everbyte_device::BlockDevice;
use everbyte_fs::AccessTimes;
use everbyte_fuse::{Loss, Privileges};
use everbyte_media::Mapped;
use everbyte_pool::{ScrubReport, Volume};
use everbyte_swap_volume::Lease;

use crate::context::NewBacking;
use crate::quiesce::Alone;

/// A volume of a kind that is a block volume inside.
pub(crate) type Device = BlockVolume<Mapped>;

/// A volume that is open, as its kind gives it.
pub(crate) struct Opened {
    /// The pool's view of it.
    pub(crate) volume: Arc<Volume<Mapped>>,
    pub(crate) handle: Box<dyn Handle>,
}

/// The reason for which clients cannot use a volume.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct Unavailable {
    /// State in lists, one or two words.
    pub(crate) state: &'static str,
    /// The reason in full.
    pub(crate) reason: String,
    /// The cause, if something can be done about it.
    pub(crate) cause: Option<Cause>,
    /// The reason for clients of other machines, as far as it is more than the state.
    pub(crate) detail: Option<&'static str>,
}

impl Unavailable {
    pub(crate) fn new(state: &'static str, reason: String) -> Self {
        Self { state, reason, cause: None, detail: None }
    }

    /// The reason for clients, which may be on other machines: it has no text of a device and names nothing of
    /// this machine.
    pub(crate) fn public_reason(&self) -> String {
        match self.detail {
            Some(detail) => format!("{}, {detail}", self.state),
            None => self.state.to_owned(),
        }
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

/// The closing of a volume when the server ends. Several go on at once: all are flushed before the
/// first is ended.
pub(crate) trait Closing: Send {
    /// Waits until all that the volume holds in DRAM is durable in the pool, or what it waits for is
    /// silent for too long. Then begins to close everything outside the pool.
    ///
    /// # Errors
    /// The reason for which answered writes may be lost.
    fn flush(&mut self) -> Result<(), String>;

    /// Waits until everything outside the pool is closed, or what it waits for is silent for too
    /// long.
    fn end(self: Box<Self>) {}
}

/// Options of a mount.
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
    /// Which accesses change the time of the last one.
    pub access_times: AccessTimes,
    /// The files that have more power than their reader.
    pub privileges: Privileges,
    /// Files can be run as programs.
    pub exec: bool,
    /// Listings change the time of the last access of directories.
    pub dir_access_times: bool,
}

/// A volume of some kind, opened by the one process that has its pool.
pub(crate) trait Handle: Send + Sync {
    /// Begins to make it ready for clients, if that takes time.
    fn prepare(&self) {}

    /// Returns the device that clients use. Waits for it no longer than a client would.
    ///
    /// # Errors
    /// The reason for which clients cannot use the volume now.
    fn open(&self) -> Result<Arc<dyn BlockDevice>, Unavailable>;

    /// Returns false if nothing that clients write is ever durable.
    fn is_durable(&self) -> bool {
        true
    }

    /// Mounts it on a directory, where lists call it `source`.
    ///
    /// # Errors
    /// It is no file system, is mounted already, or cannot be.
    fn mount(&self, source: String, _: &MountRequest) -> Result<(), Refused> {
        Err(Refused::new(format!("{source} is no file system")))
    }

    /// Serves a mount that somebody else has made with this descriptor of `/dev/fuse`, and returns its
    /// number. `source` is what this process would call it.
    ///
    /// # Errors
    /// It is no file system, is mounted already, or the descriptor cannot be served.
    fn serve_mount(&self, _: &MountServed, _source: String, _: OwnedFd) -> Result<u64, Refused> {
        Err(Refused::new("the volume is no file system"))
    }

    /// Returns true as long as the mount of this number has not ended.
    fn has_mount(&self, _id: u64) -> bool {
        false
    }

    /// Returns true if nobody serves the mount of this number any more although it has not ended.
    fn has_failed_mount(&self, _id: u64) -> bool {
        false
    }

    /// Returns true if programs had files of its mount open when that was ended.
    fn is_used(&self) -> bool {
        false
    }

    /// The first loss of what programs stored through mappings of its mount of this number, or of any mount.
    fn lost_stores(&self, _id: Option<u64>) -> Option<Loss> {
        None
    }

    /// The first such loss that this has not returned before.
    fn untold_loss(&self) -> Option<Loss> {
        None
    }

    /// Returns true as long as it is mounted.
    fn is_mounted(&self) -> bool {
        false
    }

    /// Returns true as long as programs have memory of it. They ask for more by its name.
    fn is_lent(&self) -> bool {
        false
    }

    /// Carries out a request about its files, with the bytes that came with it.
    ///
    /// # Errors
    /// It is no file system, or that refuses.
    fn files(&self, _: &FileRequest, _: &[u8]) -> Result<(Response, Vec<u8>), Refused> {
        Err(Refused::new("the volume is no file system, so it has no files"))
    }

    /// Lends up to `bytes` bytes of it to process `pid`.
    ///
    /// # Errors
    /// It is no swap volume, or nothing of it is free.
    fn lend(&self, _bytes: u64, _pid: u32) -> Result<Lease, Refused> {
        Err(Refused::new("the volume is no swap volume, so nothing of it is lent"))
    }

    /// Returns false as long as opening it is under way, so that `is_ready` may still change.
    fn is_settled(&self) -> bool {
        true
    }

    /// Returns true if clients can use it without waiting.
    fn is_ready(&self) -> bool {
        true
    }

    /// Returns true if it is a cache of a backing device.
    fn has_backing(&self) -> bool {
        false
    }

    /// The facts about its backing device, if it has one and the volume can be read; also about the one that it is being
    /// attached to.
    fn backings(&self) -> Vec<KnownBacking> {
        Vec::new()
    }

    /// Adds to its status the figures of its kind, and those that its users see differently from
    /// what the pool holds.
    fn complete(&self, _status: &mut VolumeStatus) {}

    /// Reads its bytes from `from` on, until a good deal was read. Also returns the place to go on from,
    /// or `None` at the end.
    ///
    /// # Errors
    /// The volume is gone.
    fn scrub(&self, from: u64) -> Result<(ScrubReport, Option<u64>), Refused>;

    /// Returns true if it may have clients while it is resized.
    fn resizes_beside_clients(&self, resize: &Resize) -> bool;

    /// Gives it another size.
    ///
    /// # Errors
    /// The size is out of range, or the pool or the backing device fails. Then it has its old size.
    fn resize(&self, resize: &Resize, alone: Option<Alone>) -> Result<(), Refused>;

    /// Attaches it to its backing device, which has moved to `backing`.
    ///
    /// # Errors
    /// It has none, `backing` is another device, or that does not meet the conditions. Nothing has changed then.
    fn attach(&self, _: &str, _: Alone, _: &NewBacking<'_>) -> Result<(), Refused> {
        Err(no_backing())
    }

    /// Writes dirty pages back for about a second, and returns how many bytes are still dirty.
    ///
    /// # Errors
    /// It has no backing device, or that fails. Nothing is lost.
    fn write_back(&self, _: Alone) -> Result<u64, Refused> {
        Err(no_backing())
    }

    /// Writes all dirty pages back. Returns the right to change it, which deleting it needs.
    ///
    /// # Errors
    /// As `write_back`.
    fn detach(&self, _: Alone) -> Result<Alone, Refused> {
        Err(no_backing())
    }

    /// Checks that deleting it loses nothing that its user may not know of.
    ///
    /// # Errors
    /// The loss.
    fn check_deletable(&self) -> Result<(), Refused> {
        Ok(())
    }

    /// Sees to it that nobody can use its space once it is deleted, whoever insists on deleting it.
    ///
    /// # Errors
    /// Somebody has a part of it that cannot be taken away. Then it is as it was.
    fn release(&self) -> Result<(), Refused> {
        Ok(())
    }

    /// Closes everything outside the pool, because the volume was deleted.
    fn abandon(&self) {}

    /// Begins to make durable what it holds in DRAM, and to close everything outside the pool.
    fn close(&self) -> Option<Box<dyn Closing>> {
        None
    }
}

/// The refusal of what only a cache can do.
fn no_backing() -> Refused {
    Refused::new("the volume is no cache, so it has no backing device")
}
