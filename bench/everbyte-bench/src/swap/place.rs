//! Memory larger than DRAM, in the compared kinds.
//!
//! Owns the mapping and lends its words. The words are atomics, so threads can share them by their own rules. On x86-64 a
//! relaxed access is an ordinary access.

#![allow(unsafe_code, reason = "words of mapped memory")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, bail};
use everbyte_swap::{
    DirectMode, FaultMode, FileStore, Region, RegionOptions, SlotStore, Statistics, SwapSpace,
};
use memmap2::{MmapMut, MmapOptions};
use serde::{Deserialize, Serialize};

use super::allocators::PaperTree;
use super::flash::Flash;
use super::full_store::Crowd;

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// Words of a page.
pub(super) const PAGE_WORDS: usize = 512;
/// Bytes that a store has beyond those that a region can need.
const STORE_SLACK: u64 = 8 << 20;

/// Kinds of memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Backing {
    /// Of this process alone, and without a limit.
    Anonymous,
    /// A file, made anew and mapped.
    File(PathBuf),
    /// A region of ours.
    Region(RegionBacking),
    /// Of this process alone, in a memory cgroup.
    Swapped(Swapped),
    /// The heap of a program, by `everbyte run`.
    Run(RunBacking),
}

/// Settings of a program's heap.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct RunBacking {
    /// The folder of its pool, made anew.
    pub(super) folder: PathBuf,
    pub(super) dram_bytes: u64,
}

/// The memory cgroup of a process that the kernel pages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Swapped {
    pub(super) cgroup: PathBuf,
    /// Bytes of memory that the process may have from then on.
    pub(super) limit_bytes: u64,
}

impl Swapped {
    /// Moves this process into the cgroup, and limits that.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn enter(&self) -> Result<()> {
        // Whoever takes swap down must not find this process still paging.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        set(&self.cgroup.join("cgroup.procs"), "0")?;
        set(&self.cgroup.join("memory.limit_in_bytes"), &self.limit_bytes.to_string())
    }
}

fn set(path: &Path, value: &str) -> Result<()> {
    std::fs::write(path, value).with_context(|| format!("cannot write {}", path.display()))
}

/// Settings of a region.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct RegionBacking {
    /// The file of its store, made anew.
    pub(super) store: PathBuf,
    pub(super) dram_bytes: u64,
    /// Threads that resolve faults; 0 for the faulting threads themselves.
    pub(super) handlers: usize,
    pub(super) tracks_stores: bool,
    /// Units to read ahead on streams, 1 for none.
    pub(super) read_ahead: u64,
    pub(super) uses_order8: bool,
    /// The store is as slow as a flash drive.
    pub(super) is_flash: bool,
    /// It is in direct mode, and parts move by these rules.
    pub(super) direct: Option<Motion>,
    /// The store is large, and others hold most of it.
    pub(super) crowd: Option<Crowd>,
}

/// Rules by which parts of a region in direct mode move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Motion {
    /// Hot ones and cold ones change places.
    Exchanging,
    /// They stay where they are until they are asked to move.
    Still,
}

impl Motion {
    fn mode(self) -> DirectMode {
        match self {
            Self::Exchanging => DirectMode::Exchanging,
            Self::Still => DirectMode::Still,
        }
    }
}

/// Mapped memory.
pub(super) enum Place {
    Map(MmapMut),
    /// Memory that the kernel pages.
    Swapped(MmapMut),
    /// A region, its space, and the nanoseconds that searches for slots took, where that is measured.
    Region(Region, Arc<SwapSpace>, Option<Arc<AtomicU64>>),
}

impl Place {
    /// Maps `bytes` bytes.
    ///
    /// # Errors
    /// The system's, or the region's.
    pub(super) fn map(backing: &Backing, bytes: u64) -> Result<Self> {
        let len = usize::try_from(bytes)?;
        match backing {
            Backing::Anonymous => {
                Ok(Self::Map(MmapMut::map_anon(len).context("cannot map memory")?))
            }
            Backing::File(path) => map_file(path, len),
            Backing::Region(region) => map_region(region, bytes),
            Backing::Swapped(swapped) => map_swapped(swapped, len),
            Backing::Run(_) => bail!("only programs of their own have such memory"),
        }
    }

    /// Returns the words of the memory.
    pub(super) fn words(&self) -> Words<'_> {
        let (first, bytes) = match self {
            Self::Map(map) | Self::Swapped(map) => (map.as_ptr().cast_mut(), map.len()),
            Self::Region(region, ..) => (region.as_mut_ptr(), region.as_slice().len()),
        };
        // SAFETY: the memory is mapped writable as long as `self` is borrowed, at least 8 bytes
        // aligned; any bytes are a word; nothing else refers to it but such words.
        Words(unsafe { std::slice::from_raw_parts(first.cast::<AtomicU64>(), bytes / 8) })
    }

    /// Counters of a region.
    pub(super) fn statistics(&self) -> Option<Statistics> {
        match self {
            Self::Map(_) | Self::Swapped(_) => None,
            Self::Region(region, ..) => Some(region.statistics()),
        }
    }

    /// Nodes or slots that were looked at for free slots.
    pub(super) fn slot_visits(&self) -> u64 {
        match self {
            Self::Map(_) | Self::Swapped(_) => 0,
            Self::Region(_, space, _) => space.slot_searches().visits,
        }
    }

    /// Nanoseconds that searches for slots took, where that is measured.
    pub(super) fn slot_search_ns(&self) -> u64 {
        match self {
            Self::Region(.., Some(ns)) => ns.load(Relaxed),
            Self::Map(_) | Self::Swapped(_) | Self::Region(.., None) => 0,
        }
    }
}

/// Makes the store and its space.
fn make_space(backing: &RegionBacking, bytes: u64) -> Result<Arc<SwapSpace>> {
    let store = FileStore::create(&backing.store, bytes + STORE_SLACK)?;
    // The mapping keeps the file, which is gone with this process, however it ends.
    std::fs::remove_file(&backing.store)?;
    Ok(if backing.uses_order8 {
        let slots = PaperTree::new(store.slots());
        SwapSpace::with_free_slots(store, Box::new(slots))
    } else if backing.is_flash {
        SwapSpace::new(Flash::new(store))
    } else {
        SwapSpace::new(store)
    })
}

fn map_file(path: &Path, len: usize) -> Result<Place> {
    let file = everbyte_media::create_file(path, len as u64)?;
    // The mapping keeps the file, which is gone with this process, however it ends.
    std::fs::remove_file(path)?;
    // SAFETY: nobody but this process changes the file, and words of it are atomics.
    let map = unsafe { MmapOptions::new().len(len).map_mut(&file) };
    Ok(Place::Map(map.with_context(|| format!("cannot map {}", path.display()))?))
}

fn map_swapped(swapped: &Swapped, len: usize) -> Result<Place> {
    // What this program has by now stays outside, as it does for regions.
    swapped.enter()?;
    Ok(Place::Swapped(MmapMut::map_anon(len).context("cannot map memory")?))
}

fn map_region(backing: &RegionBacking, bytes: u64) -> Result<Place> {
    let (space, search_ns) = match &backing.crowd {
        None => (make_space(backing, bytes)?, None),
        Some(crowd) => {
            let (space, search_ns) = crowd.space(&backing.store)?;
            (space, Some(search_ns))
        }
    };
    let mode = match backing.handlers {
        0 => FaultMode::Sigbus,
        handlers => FaultMode::Transparent { handlers },
    };
    let mut options = RegionOptions::new()
        .fault_mode(mode)
        .tracks_stores(backing.tracks_stores)
        .read_ahead(backing.read_ahead);
    if let Some(motion) = backing.direct {
        options = options.direct(motion.mode());
    }
    let region = Region::map(bytes, backing.dram_bytes, &space, &options)?;
    Ok(Place::Region(region, space, search_ns))
}

/// Words that several threads may use.
#[derive(Clone, Copy)]
pub(super) struct Words<'a>(&'a [AtomicU64]);

impl<'a> Words<'a> {
    #[cfg(test)]
    pub(super) fn of(words: &'a [AtomicU64]) -> Self {
        Self(words)
    }

    pub(super) fn split_at(self, words: usize) -> (Self, Self) {
        let (first, rest) = self.0.split_at(words);
        (Self(first), Self(rest))
    }

    #[inline]
    pub(super) fn load(self, at: usize) -> u64 {
        self.0[at].load(Relaxed)
    }

    #[inline]
    pub(super) fn store(self, at: usize, value: u64) {
        self.0[at].store(value, Relaxed);
    }

    pub(super) fn pages(self) -> usize {
        self.0.len() / PAGE_WORDS
    }
}
