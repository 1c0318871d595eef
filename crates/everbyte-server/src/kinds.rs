//! The table of the kinds of volumes. A new kind is a file with its handle, and a row here.

use std::sync::Arc;

use everbyte_block::{BLOCK_NAME, BlockOptions, CACHE_NAME};
use everbyte_control::{NewVolume, Refused};
use everbyte_pool::format::VolumeKind;

use crate::block::BlockHandle;
use crate::cache::CacheHandle;
use crate::context::{Context, Unshared};
use crate::handle::{Device, Handle};

/// A kind of volume.
pub(crate) struct Kind {
    pub(crate) kind: VolumeKind,
    /// What the command line calls it.
    pub(crate) word: &'static str,
    /// The backing device that a new one asks for, if it needs one.
    pub(crate) backing: fn(&NewVolume) -> Option<&str>,
    /// Makes a volume. Its name is taken for it already.
    pub(crate) create: Create,
    /// The handle of a volume that is open.
    pub(crate) handle: fn(&Context, &Arc<Device>) -> Box<dyn Handle>,
}

type Create = fn(&Context, &NewVolume, &BlockOptions, Unshared<'_>) -> Result<Device, Refused>;

/// All kinds.
pub(crate) const KINDS: [Kind; 2] = [
    Kind {
        kind: VolumeKind::BLOCK,
        word: BLOCK_NAME,
        backing: |_| None,
        create: BlockHandle::create,
        handle: BlockHandle::boxed,
    },
    Kind {
        kind: VolumeKind::CACHE,
        word: CACHE_NAME,
        backing: |new| new.cache.as_ref().map(|cache| cache.backing.as_str()),
        create: CacheHandle::create,
        handle: CacheHandle::boxed,
    },
];

impl Kind {
    /// The kind with this name.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn named(word: &str) -> Result<&'static Self, Refused> {
        KINDS.iter().find(|kind| kind.word == word).ok_or_else(|| {
            let known: Vec<&str> = KINDS.iter().map(|kind| kind.word).collect();
            Refused::new(format!(
                "there are no {word:?} volumes: the kinds are {}",
                known.join(" and ")
            ))
        })
    }

    /// The entry for a volume's kind.
    ///
    /// # Errors
    /// This server does not know it.
    pub(crate) fn of(kind: VolumeKind) -> Result<&'static Self, Refused> {
        let found = KINDS.iter().find(|known| known.kind == kind);
        found.ok_or_else(|| Refused::new(format!("this server does not know volumes of {kind}")))
    }
}
