//! The share of processor time of slot searches in a paging load, if a swap space of 32 GiB is nearly full.
//!
//! The store is a sparse file: slots of other owners are never written. Enough slots for the region and a given share of
//! all slots are free, at random places.

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::Result;
use everbyte_swap::{FileStore, FreeSlots, SlotNo, SwapSpace, UNIT};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};

use super::allocators::{Allocator, Way, hold};

/// A space that is nearly full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Crowd {
    pub(super) way: Way,
    /// Slots in all.
    pub(super) slots: u64,
    /// Slots that are free for the region.
    pub(super) free: u64,
}

/// Pages that leave at once, at most.
const BATCH: u64 = 160;

/// Free slots found in one of the compared ways, with the time that it takes.
struct Timed {
    slots: Box<dyn Allocator>,
    /// Held around every call, so that no lock in `slots` is ever waited for: a handler must not sleep.
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

    fn alloc(&self, _hint: SlotNo, visits: &mut u64) -> Option<SlotNo> {
        let _inside = hold(&self.gate);
        let start = Instant::now();
        let slot = self.slots.alloc()?;
        let took = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.took_ns.fetch_add(took, Relaxed);
        self.free.fetch_sub(1, Relaxed);
        *visits += self.slots.visits().unwrap_or(0);
        Some(SlotNo(slot))
    }

    fn free(&self, slot: SlotNo) {
        self.free.fetch_add(1, Relaxed);
        let _inside = hold(&self.gate);
        self.slots.free(slot.0);
    }
}

impl Crowd {
    /// A space of `slots` slots, or more if the region needs them: beside those that a region of `pages` pages
    /// needs with `dram_pages` of them in DRAM, others hold `permille` thousandths.
    pub(super) fn around(
        way: Way,
        slots: u64,
        (pages, dram_pages): (u64, u64),
        permille: u64,
    ) -> Self {
        // A region keeps up to three sixteenths of its limit free, so that much more is in slots. Where there are
        // few slots in all, each page may have one, and each of a batch on its way out another.
        let most = pages + BATCH;
        let slots = slots.max(most);
        let needed = pages - pages.min(dram_pages * 13 / 16);
        let free = needed + slots * (1000 - permille) / 1000;
        Self { way, slots, free: free.max(most).min(slots) }
    }

    /// Makes the space over a new sparse file, and returns it with the time that searches take.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn space(&self, store: &Path) -> Result<(Arc<SwapSpace>, Arc<AtomicU64>)> {
        std::fs::File::create_new(store)?.set_len(self.slots * UNIT as u64)?;
        let file = FileStore::open(store);
        std::fs::remove_file(store)?;
        let slots = self.way.make(self.slots);
        let mut all: Vec<u64> = std::iter::from_fn(|| slots.alloc()).collect();
        all.shuffle(&mut SmallRng::seed_from_u64(self.free));
        all.drain(usize::try_from(self.slots - self.free)?..).for_each(|slot| slots.free(slot));
        slots.visits();
        let took_ns = Arc::new(AtomicU64::new(0));
        let timed = Timed {
            slots,
            gate: Mutex::new(()),
            capacity: self.slots,
            free: AtomicU64::new(self.free),
            took_ns: Arc::clone(&took_ns),
        };
        Ok((SwapSpace::with_free_slots(file?, Box::new(timed)), took_ns))
    }
}
