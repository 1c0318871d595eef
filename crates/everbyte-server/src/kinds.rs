//! The table of the kinds of volumes. A new kind is a file with its handle, and a row here.

use everbyte_block::{BLOCK_NAME, CACHE_NAME};
use everbyte_control::{NewVolume, Refused};
use everbyte_media::Medium;
use everbyte_pool::Kinds;
use everbyte_pool::format::VolumeKind;

use crate::block::BlockHandle;
use crate::cache::CacheHandle;
use crate::context::{Context, NewBacking};
use crate::fs::FsHandle;
use crate::handle::Opened;
use crate::swap::SwapHandle;

/// A kind of volume.
pub(crate) struct Kind {
    pub(crate) kind: VolumeKind,
    /// Its name on the command line.
    pub(crate) word: &'static str,
    /// The backing device that a new one asks for, if it needs one.
    pub(crate) backing: fn(&NewVolume) -> Option<&str>,
    /// Volumes of it are exported, so NBD clients may have them.
    pub(crate) is_exported: bool,
    /// Its handles know figures that lists show. A volume of another kind is not opened for a list.
    pub(crate) has_figures: bool,
    /// Makes a volume. Its name is taken for it already.
    pub(crate) create: Create,
    /// Opens a volume.
    pub(crate) open: Open,
}

type Create = fn(&Context, &NewVolume, &NewBacking<'_>) -> Result<Opened, Refused>;
type Open = fn(&Context, &str) -> Result<Opened, Refused>;

/// All kinds.
const KINDS: [Kind; 4] = [
    Kind {
        kind: VolumeKind::BLOCK,
        word: BLOCK_NAME,
        backing: |_| None,
        is_exported: true,
        has_figures: false,
        create: BlockHandle::create,
        open: BlockHandle::open_volume,
    },
    Kind {
        kind: VolumeKind::CACHE,
        word: CACHE_NAME,
        backing: |new| new.cache.as_ref().map(|cache| cache.backing.as_str()),
        is_exported: true,
        has_figures: true,
        create: CacheHandle::create,
        open: CacheHandle::open_volume,
    },
    Kind {
        kind: everbyte_fs::FS,
        word: everbyte_fs::FS_NAME,
        backing: |_| None,
        is_exported: false,
        has_figures: false,
        create: FsHandle::create,
        open: FsHandle::open_volume,
    },
    Kind {
        kind: everbyte_swap_volume::SWAP,
        word: everbyte_swap_volume::SWAP_NAME,
        backing: |_| None,
        is_exported: true,
        has_figures: true,
        create: SwapHandle::create,
        open: SwapHandle::open_volume,
    },
];

/// The kinds of volumes of the pools that are opened here.
#[must_use]
pub fn kinds<M: Medium>() -> Kinds<M> {
    everbyte_block::kinds().and(everbyte_fs::kinds()).and(everbyte_swap_volume::kinds())
}

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
