//! The policy `everbyte`: pages leave by recency, dirty ones are written in the order of sectors, and
//! SCM is written to where that pays.
//!
//! Cleaning is not evicting. Policies that keep pages in the order of sectors, so that write-backs
//! are in order, pay for it with hits; those that evict by recency pay with jumps. Here one list
//! over both tiers tells which pages are cold. Cold clean pages go. Cold dirty ones leave the list
//! and *wait*, until enough of them wait that the next one in the order of sectors is near.
//!
//! 1. One list over both tiers, newest at the head. Beside it are the *waiting*: cold dirty pages,
//!    by sector.
//! 2. A hit marks the page used, or takes it to the head, as the order is. A page that is hit while
//!    it waits returns to the head, unused.
//! 3. A missed page comes to DRAM, to the head, unused; a write keeps it there for a turn. Where few
//!    pages that a write brought are soon written again, such a page takes a free frame of SCM, or
//!    that of the page which is evicted for it: the way through DRAM would save no write. Or all
//!    pages do, once DRAM is full, and none is demoted.
//! 4. The page that leaves DRAM is the tail of a queue; while its keep is not 0 it goes round once
//!    more. A large write adds a turn to a page's keep, a read makes it one at least, a small write
//!    changes nothing: it costs SCM little. A missed page comes to the queue's head; or to its tail,
//!    so that what is read once does not push out the others.
//! 5. A page that leaves DRAM is demoted if that costs less than to drop it, or to write it back
//!    from DRAM: by the costs of the tiers and of the backing device, the share of jumps, and the
//!    share of demoted pages of its class (dirty, hit in DRAM) that were used in SCM.
//! 6. In a full cache, a clean page that leaves DRAM without a hit there is dropped. For any other
//!    a page of the whole cache is evicted:
//! 7. if more than a share of the frames wait, the next waiting page from the write hand on, around;
//! 8. else the page that is next in the list's order: SIEVE's or LRU's. A clean one is dropped; a
//!    dirty one waits, and rule 7 is asked again.
//! 9. SCM serves reads and writes in place. A page that large writes have hit since it came there is
//!    promoted at the seventh half of a page: a write of all of it is two, another large one is one.
//! 10. The list's order, the share that waits, the end of the queue that missed pages come to and
//!     whether they rest are a *mode*. The mode in use is the one whose miniature simulation costs
//!     least: see `modes.rs`.
//!
//! A waiting page that was written back for another reason is clean, and cold: it is next in the
//! list's order.
//!
//! SIEVE: Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024. To write back in an order of its own
//! what was evicted by recency is the idea of WOW (Gill and Modha, "WOW: Wise Ordering for Writes",
//! FAST 2005), which has two orders on one list for it. SCM for small writes, DRAM for large ones is
//! the hybrid cache's paper.
//!
//! Not for traces that fill the cache once or twice only: what a class and a mode are worth is
//! learned while it runs.

mod modes;
mod tiers;
mod worth;

pub use self::tiers::{Order, Rules};

use self::modes::Modes;
use self::tiers::Tiers;
use super::Policy;
use super::action::{Actions, Tier};
use super::directory::{Capacity, Directory};
use super::storage::{PageSet, Placed, Storage};
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

    /// Makes an empty cache of two tiers that has these rules throughout, whatever they cost.
    #[must_use]
    pub fn with_rules(storage: S, capacity: Capacity, rules: Rules, costs: Costs) -> Self {
        Self { tiers: Tiers::new(storage, capacity, rules, costs), modes: None }
    }

    /// Returns true if a hit of a page of SCM may promote the page: rule 9. Other hits move no page, in whatever
    /// mode. Writes of at most `small_write_bytes` are small.
    #[must_use]
    pub fn may_promote(access: Access, small_write_bytes: u16) -> bool {
        tiers::is_large_write(access, small_write_bytes)
    }

    /// Goes on with other costs, because the backing device is faster or slower than was assumed.
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
    type Storage = Placed<S>;

    fn directory(&self) -> &Directory<Placed<S>> {
        &self.tiers.pages
    }

    fn directory_mut(&mut self) -> &mut Directory<Placed<S>> {
        &mut self.tiers.pages
    }

    #[inline]
    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        if let Some(modes) = &mut self.modes
            && let Some(rules) = modes.access(access)
        {
            self.tiers.change(rules);
        }
        self.tiers.access(access, actions);
    }

    fn remove(&mut self, page: PageNo) {
        if let Some(modes) = &mut self.modes {
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
            modes.resize(capacity);
        }
        super::resize(self, capacity, actions);
    }
}
