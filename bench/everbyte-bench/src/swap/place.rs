//! Memory larger than DRAM, by subject.
//!
//! Owns the mapping and lends its words. The words are atomics, so threads can share them. On x86-64 a relaxed
//! access is an ordinary access.

#![allow(unsafe_code, reason = "words of mapped memory")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, bail};
use everbyte_swap::{
    DirectMode, FaultMode, FileStore, Region, RegionOptions, SlotStore, SwapSpace,
};
use memmap2::{MmapMut, MmapOptions};

use super::allocators::PaperTree;
use super::flash::Flash;
use super::full_store;
use super::subjects::Subject;
use super::task::Task;
use super::words::Words;

/// Bytes of a store beyond the need of its region.
const STORE_SLACK: u64 = 8 << 20;

/// Mapped memory.
pub(super) enum Place {
    Map(MmapMut),
    /// Memory under kernel swap.
    Swapped(MmapMut),
    /// A region, its space, and the nanoseconds of measured searches for slots.
    Region(Region, Arc<SwapSpace>, Arc<AtomicU64>),
}

impl Place {
    /// Maps the memory of a task.
    ///
    /// # Errors
    /// Errors of the system or of the region; the subject is a program.
    pub(super) fn map(task: &Task) -> Result<Self> {
        let bytes = task.load.bytes();
        let len = usize::try_from(bytes)?;
        match task.subject {
            Subject::Dram => Ok(Self::Map(MmapMut::map_anon(len).context("cannot map memory")?)),
            Subject::MappedFile => map_file(&task.folder.join("mapped"), len),
            Subject::Kernel(_) => {
                // The program's memory of before stays outside of the limit, as with regions.
                task.cgroup.as_ref().context("kernel swap needs a cgroup")?.enter()?;
                Ok(Self::Swapped(MmapMut::map_anon(len).context("cannot map memory")?))
            }
            Subject::Run => bail!("only a program has such memory"),
            _ => map_region(task, bytes),
        }
    }

    /// Returns the words of the memory.
    pub(super) fn words(&self) -> Words<'_> {
        let (first, bytes) = match self {
            Self::Map(map) | Self::Swapped(map) => (map.as_ptr().cast_mut(), map.len()),
            Self::Region(region, ..) => (region.as_mut_ptr(), region.as_slice().len()),
        };
        // SAFETY: the memory is mapped writable while `self` is borrowed, and aligned to at least 8
        // bytes. Any bytes are a word. Only such words refer to it.
        Words::of(unsafe { std::slice::from_raw_parts(first.cast::<AtomicU64>(), bytes / 8) })
    }
}

fn map_file(path: &Path, len: usize) -> Result<Place> {
    let file = everbyte_media::create_file(path, len as u64)?;
    // The mapping keeps the file until any end of this process.
    std::fs::remove_file(path)?;
    // SAFETY: only this process changes the file, and words of it are atomics.
    let map = unsafe { MmapOptions::new().len(len).map_mut(&file) };
    Ok(Place::Map(map.with_context(|| format!("cannot map {}", path.display()))?))
}

fn map_region(task: &Task, bytes: u64) -> Result<Place> {
    let subject = task.subject;
    let (space, search_ns) = match subject {
        Subject::Crowded(way) => full_store::make(task, way)?,
        _ => (make_space(task, bytes)?, Arc::default()),
    };
    let mode = match subject {
        Subject::Transparent => FaultMode::Transparent { handlers: 1 },
        _ => FaultMode::Sigbus,
    };
    let mut options = RegionOptions::new()
        .fault_mode(mode)
        .tracks_stores(subject != Subject::Untracked)
        .read_ahead(if subject == Subject::NoReadAhead { 1 } else { 16 });
    if subject == Subject::Direct {
        options = options.direct(DirectMode::Exchanging);
    }
    // The region keeps the space alive. The copy here serves the counters.
    let region = Region::map(bytes, task.dram_bytes, &space, &options)?;
    Ok(Place::Region(region, space, search_ns))
}

/// Makes a store with room for the whole region, and its space.
fn make_space(task: &Task, bytes: u64) -> Result<Arc<SwapSpace>> {
    let path = task.folder.join("store");
    let store = FileStore::create(&path, bytes + STORE_SLACK)?;
    // The mapping keeps the file until any end of this process.
    std::fs::remove_file(&path)?;
    Ok(match task.subject {
        Subject::Order8 => {
            let slots = PaperTree::new(store.slots());
            SwapSpace::with_free_slots(store, Box::new(slots))
        }
        Subject::Flash => SwapSpace::new(Flash::new(store)),
        _ => SwapSpace::new(store),
    })
}
