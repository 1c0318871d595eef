//! The policy `everbyte`: pages leave by recency, dirty ones are written in the order of sectors, and
//! SCM is written to where that pays.
//!
//! Cleaning is not evicting. Policies with pages in the order of sectors have ordered write-backs
//! and fewer hits. Policies that evict by recency have jumps. Here one list over both tiers
//! identifies cold pages. Cold clean pages are evicted. Cold dirty ones leave the list and *wait*,
//! until enough of them wait that the next one in the order of sectors is near.
//!
//! 1. One list over both tiers, newest at the head. In addition, the *waiting* cold dirty pages, by
//!    sector.
//! 2. A hit marks the page used, or takes it to the head, as the order is. A page that is hit while
//!    it waits returns to the head, unused.
//! 3. A missed page enters DRAM at the head, unused; a write keeps it there for a turn. If few
//!    pages fetched by a write are soon written again, such a page takes a free frame of SCM, or
//!    the frame of the evicted page: the way through DRAM would save no write. In another mode all
//!    pages do so, once DRAM is full, and none is demoted.
//! 4. The page that leaves DRAM is the tail of a queue. While its keep is not 0 it re-enters the
//!    queue. A large write adds a turn to a page's keep, a read sets it to at least one, and a
//!    small write changes nothing: it costs SCM little. A missed page enters at the queue's head,
//!    or at its tail, so that pages read once do not displace others.
//! 5. A page that leaves DRAM is demoted if this costs less than to drop it, or to write it back
//!    from DRAM: by the costs of the tiers and of the backing device, the share of jumps, and the
//!    share of demoted pages of its class (dirty, hit in DRAM) that were used in SCM.
//! 6. In a full cache, a clean page that leaves DRAM without a hit there is dropped. For any other
//!    a page of the whole cache is evicted:
//! 7. if more than a share of the frames wait, the next waiting page from the write hand on, around;
//! 8. else the page that is next in the list's order: SIEVE's or LRU's. A clean one is dropped; a
//!    dirty one waits, and rule 7 is asked again.
//! 9. SCM serves reads and writes in place. A page that large writes have hit since it came there is
//!    promoted at the seventh half of a page: a write of all of it is two, another large one is one.
//! 10. A *mode* is the list's order, the waiting share, the queue's end for missed pages and their
//!     rest. The mode in use is the one with the cheapest miniature simulation: see `modes.rs`.
//!
//! A waiting page that was written back for another reason is clean, and cold: it is next in the
//! list's order.
//!
//! SIEVE: Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024. WOW (Gill and Modha, "WOW: Wise
//! Ordering for Writes", FAST 2005) has the idea to evict by recency and to write back in another
//! order, with two orders on one list. SCM for small writes and DRAM for large ones is the hybrid
//! cache's paper.
//!
//! Unsuitable for traces that fill the cache only once or twice: the worth of a class and of a mode
//! is learned during the run.

mod modes;
mod tiers;
mod worth;

pub use self::tiers::{Order, Rules};

use self::modes::Modes;
use self::tiers::Tiers;
use super::Policy;
use super::action::{Actions, Tier};
use super::directory::{Capacity, Directory};
use super::storage::{PageSet, PlacedStorage, Storage};
use crate::access::{Access, PageNo};
use crate::costs::Costs;

/// The project's own policy: pages leave by recency, dirty ones are written in the order of sectors,
/// and SCM is written to where that pays.
pub struct Everbyte<S: Storage> {
    tiers: Tiers<S>,
    modes: Option<Modes<S>>,
}

impl<S: Storage> Everbyte<S> {
    /// Makes an empty cache of two tiers. Writes of at most `small_write_bytes` are small; `costs`
    /// are those of the steps that the policy causes.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity, small_write_bytes: u16, costs: Costs) -> Self {
        let modes = Modes::new(storage, capacity, small_write_bytes, costs);
        let tiers = Tiers::new(storage, capacity, modes.rules(), costs);
        Self { tiers, modes: Some(modes) }
    }

    /// Makes an empty cache of two tiers with these rules throughout, at any costs.
    #[must_use]
    pub fn with_rules(storage: S, capacity: Capacity, rules: Rules, costs: Costs) -> Self {
        Self { tiers: Tiers::new(storage, capacity, rules, costs), modes: None }
    }

    /// Returns true if a hit of a page of SCM may promote the page: rule 9. Other hits move no
    /// page, in any mode. Writes of at most `small_write_bytes` are small.
    #[must_use]
    pub fn may_promote(access: Access, small_write_bytes: u16) -> bool {
        tiers::is_large_write(access, small_write_bytes)
    }

    /// Continues with other costs, because the backing device is faster or slower than assumed.
    pub fn set_costs(&mut self, costs: Costs) {
        self.tiers.worth.costs = costs;
        if let Some(modes) = &mut self.modes {
            modes.set_costs(costs);
        }
    }

    /// Returns the first page that is not before `from` and waits to be written back.
    #[must_use]
    pub fn next_waiting(&self, from: PageNo) -> Option<PageNo> {
        self.tiers.waiting.next(from.0).map(PageNo)
    }
}

impl<S: Storage> Policy for Everbyte<S> {
    type Storage = PlacedStorage<S>;

    fn directory(&self) -> &Directory<PlacedStorage<S>> {
        &self.tiers.pages
    }

    fn directory_mut(&mut self) -> &mut Directory<PlacedStorage<S>> {
        &mut self.tiers.pages
    }

    #[inline]
    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        // Before the tiers: all shadows have seen the access that the new rules decide.
        if let Some(modes) = &mut self.modes
            && let Some(rules) = modes.access(access)
        {
            self.tiers.change(rules);
        }
        self.tiers.access(access, actions);
    }

    fn remove(&mut self, page: PageNo) {
        if let Some(modes) = &mut self.modes {
            // The shadows must lose trimmed pages as well, or they would score hits that cannot
            // come.
            modes.remove(page.0);
        }
        self.tiers.remove(page.0);
    }

    fn cleaned(&mut self, page: PageNo) {
        self.tiers.cleaned(page.0);
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        self.tiers.reclaim(tier, actions);
    }

    fn resize(&mut self, capacity: Capacity, actions: &mut impl Actions) {
        if let Some(modes) = &mut self.modes {
            // Before the evictions: these already follow the rules of the new shadows.
            modes.resize(capacity);
        }
        super::resize(self, capacity, actions);
    }
}
