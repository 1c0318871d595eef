//! A nearly full swap space, with the time of its slot searches.
//!
//! The store is a sparse file: slots of other owners are never written. The slots for the region and a given share
//! of all slots are free, at random places.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use anyhow::Result;
use everbyte_swap::{FileStore, FreeSlots, SlotNo, SwapSpace, UNIT};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::allocators::{Allocator, Way, hold};
use super::task::Task;
use super::words::PAGE;

/// Maximum number of pages in one eviction.
const BATCH: u64 = 160;

/// Free slots of one allocator, with the time of its searches.
struct Timed {
    slots: Allocator,
    /// Held around every call. No call blocks on a lock in `slots`: a handler must not sleep.
    gate: Mutex<()>,
    capacity: u64,
    free: AtomicU64,
    took_ns: Arc<AtomicU64>,
}

impl FreeSlots for Timed {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn free_count(&self) -> u64 {
        self.free.load(Relaxed)
    }

    fn alloc(&self, hint: SlotNo, visits: &mut u64) -> Option<SlotNo> {
        let _inside = hold(&self.gate);
        // The wait for the gate belongs to no allocator, so the clock starts after it.
        let start = Instant::now();
        let slot = self.slots.alloc(hint.0, visits)?;
        let took = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.took_ns.fetch_add(took, Relaxed);
        self.free.fetch_sub(1, Relaxed);
        Some(SlotNo(slot))
    }

    fn free(&self, slot: SlotNo) {
        // Counted first: for a moment the count may be too high, never too low.
        self.free.fetch_add(1, Relaxed);
        let _inside = hold(&self.gate);
        self.slots.free(slot.0);
    }
}

/// Makes the space of a task over a new sparse file. Also returns the nanoseconds of its searches.
///
/// # Errors
/// Errors of the system.
pub(super) fn make(task: &Task, way: Way) -> Result<(Arc<SwapSpace>, Arc<AtomicU64>)> {
    let pages = task.load.bytes() / PAGE;
    // Each page can have a slot, and each page of a batch another one.
    let most = pages + BATCH;
    let capacity = task.slots.max(most);
    // A region keeps up to three sixteenths of its DRAM free, so more pages are in slots.
    let needed = pages - pages.min(task.dram_bytes / PAGE * 13 / 16);
    let free = needed + capacity * (1000 - task.permille) / 1000;
    let free = free.max(most).min(capacity);
    let path = task.folder.join("store");
    std::fs::File::create_new(&path)?.set_len(capacity * UNIT as u64)?;
    let file = FileStore::open(&path);
    // The mapping keeps the file until any end of this process.
    std::fs::remove_file(&path)?;
    // All slots are taken, and random slots freed: the free slots are scattered as after a long time.
    let slots = way.make(capacity);
    let mut all: Vec<u64> = (0..capacity).map_while(|hint| slots.alloc(hint, &mut 0)).collect();
    all.shuffle(&mut SmallRng::seed_from_u64(free));
    all.drain(usize::try_from(capacity - free)?..).for_each(|slot| slots.free(slot));
    let took_ns = Arc::<AtomicU64>::default();
    let timed = Timed {
        slots,
        gate: Mutex::new(()),
        capacity,
        free: AtomicU64::new(free),
        took_ns: Arc::clone(&took_ns),
    };
    Ok((SwapSpace::with_free_slots(file?, Box::new(timed)), took_ns))
}
