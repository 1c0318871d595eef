//! Four-queue-LRU-like: one LRU chooses the victim; four queues watch reads and writes in either
//! memory, and a page that is in the wrong one moves.
//!
//! After Seok, Park, Park and Park, "Efficient Page Caching Algorithm with Prediction and Migration
//! for a Hybrid Main Memory", ACM Applied Computing Review 11(4), 2011. We had no full text, hence
//! "-like". From reports of it: the LRU, the four queues, a weighted history of reads and writes
//! for each page, a threshold. Ours: the history is the share of writes among uses, and each use
//! has the weight of a quarter. A write to a page of SCM with a share of at least three quarters
//! promotes it, in exchange for the oldest mostly read page of DRAM, else for the oldest of DRAM. A
//! missed page enters DRAM for a write and SCM for a read if a frame is free, else the victim's
//! frame.
//!
//! Not for small writes: it counts uses, not bytes.

use super::Policy;
use super::action::{Action, Actions, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::lists::Lists;
use super::storage::{Storage, Table};
use crate::access::{Access, Op, PageNo};

const DRAM_READ: u8 = 0;
const DRAM_WRITE: u8 = 1;
const SCM_READ: u8 = 2;
const SCM_WRITE: u8 = 3;
const SHARE_MAX: u8 = 255;
const MOVES_UP_FROM: u8 = 192;

#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct PageUse {
    /// Share of writes among uses, in 255ths.
    write_share: u8,
    queue: u8,
}

/// One LRU and four queues.
pub struct FourQueue<S: Storage> {
    pages: Directory<S>,
    all: Lists<S, 1>,
    queues: Lists<S, 4>,
    watched: S::Table<PageUse>,
}

impl<S: Storage> FourQueue<S> {
    /// Makes an empty cache of two tiers.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity) -> Self {
        Self {
            pages: Directory::new(storage, capacity),
            all: Lists::new(storage),
            queues: Lists::new(storage),
            watched: storage.table(),
        }
    }

    fn watch(&mut self, page: u32, tier: Tier, write_share: u8) {
        let queue = match (tier, write_share > SHARE_MAX / 2) {
            (Tier::Dram, false) => DRAM_READ,
            (Tier::Dram, true) => DRAM_WRITE,
            (Tier::Scm, false) => SCM_READ,
            (Tier::Scm, true) => SCM_WRITE,
        };
        self.queues.push_front(usize::from(queue), page);
        self.watched.set(page, PageUse { write_share, queue });
    }

    /// Removes a page from its queue. Returns its share of writes.
    fn unwatch(&mut self, page: u32) -> u8 {
        let watched = self.watched.get(page);
        self.queues.remove(usize::from(watched.queue), page);
        self.watched.set(page, PageUse::default());
        watched.write_share
    }

    /// Returns the oldest page of a tier, of those that are mostly read if there are any.
    fn oldest(&self, tier: Tier) -> Option<u32> {
        let (read, write) = match tier {
            Tier::Dram => (DRAM_READ, DRAM_WRITE),
            Tier::Scm => (SCM_READ, SCM_WRITE),
        };
        // A mostly read page costs least in SCM, where it goes next.
        self.queues.back(usize::from(read)).or_else(|| self.queues.back(usize::from(write)))
    }

    fn evict(&mut self, page: u32, why: Reason, actions: &mut impl Actions) -> Tier {
        self.all.remove(0, page);
        self.unwatch(page);
        let was_in_dram = self.pages.evict(page, why, actions).has(State::DRAM);
        if was_in_dram { Tier::Dram } else { Tier::Scm }
    }

    fn tier_for(&mut self, op: Op, actions: &mut impl Actions) -> Tier {
        let (wanted, other) = match op {
            Op::Read => (Tier::Scm, Tier::Dram),
            Op::Write => (Tier::Dram, Tier::Scm),
        };
        // A free frame in the wrong tier is better than an eviction. A later move corrects it.
        if !self.pages.is_full(wanted) {
            wanted
        } else if !self.pages.is_full(other) {
            other
        } else {
            let oldest = self.all.back(0).expect("a full cache has a page");
            // The victim's frame decides the tier: no second page has to move for this miss.
            self.evict(oldest, Reason::Victim, actions)
        }
    }

    fn move_page(&mut self, page: u32, to: Tier, why: Reason, actions: &mut impl Actions) {
        let share = self.unwatch(page);
        let dirty = self.pages.remove(page).is_dirty();
        self.pages.insert(page, to, State::default().with_if(dirty, State::DIRTY));
        self.watch(page, to, share);
        actions.act(Action::Move { page: PageNo(page), to, dirty, why });
    }

    fn promote(&mut self, page: u32, actions: &mut impl Actions) {
        let makes_room = self.pages.is_full(Tier::Dram);
        // Before the move: the promoted page itself must not be the exchange.
        let oldest = self.oldest(Tier::Dram);
        self.move_page(page, Tier::Dram, Reason::WriteHot, actions);
        if let (true, Some(oldest)) = (makes_room, oldest) {
            self.move_page(oldest, Tier::Scm, Reason::Swapped, actions);
        }
    }
}

/// Returns the share of writes after one more use.
fn share_after(share: u8, op: Op) -> u8 {
    // Rounded up, so that repeated uses reach 0 and 255 instead of sticking near them.
    match op {
        Op::Read => share - share.div_ceil(4),
        Op::Write => share + (SHARE_MAX - share).div_ceil(4),
    }
}

impl<S: Storage> Policy for FourQueue<S> {
    type Storage = S;

    fn directory(&self) -> &Directory<S> {
        &self.pages
    }

    fn directory_mut(&mut self) -> &mut Directory<S> {
        &mut self.pages
    }

    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        let page = access.page.0;
        let state = self.pages.state(page);
        let written = access.op == Op::Write;
        let Some(found) = state.tier() else {
            let tier = self.tier_for(access.op, actions);
            self.pages.fill(access, tier, actions);
            self.all.push_front(0, page);
            // The first use is the whole history so far.
            self.watch(page, tier, if written { SHARE_MAX } else { 0 });
            return;
        };
        self.all.touch(0, page);
        // Before the decision: the present write counts towards the threshold.
        let share = share_after(self.unwatch(page), access.op);
        self.watch(page, found, share);
        let mut served = found;
        if written {
            if found == Tier::Scm && share >= MOVES_UP_FROM {
                self.promote(page, actions);
                served = Tier::Dram;
            }
            // After the promotion, which replaces the page's bits.
            let bits = self.pages.mark_dirty(page, self.pages.state(page));
            self.pages.set_state(page, bits);
        }
        actions.act(Action::Hit { found, served });
    }

    fn remove(&mut self, page: PageNo) {
        if self.pages.tier(page).is_some() {
            self.pages.remove(page.0);
            self.all.remove(0, page.0);
            self.unwatch(page.0);
        }
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        if let Some(page) = self.oldest(tier) {
            self.evict(page, Reason::Shrunk, actions);
        }
    }
}
