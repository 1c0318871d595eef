//! M-CLOCK-like: two CLOCKs; the second write to a page of SCM, not the first, promotes it; of
//! DRAM's candidates, clean ones are demoted first.
//!
//! After Lee, Kang, Kim and Eom, "M-CLOCK: Migration-Optimized Page Replacement Algorithm for
//! Hybrid DRAM and PCM Memory Architecture", SAC 2015. We had no full text, hence "-like". From
//! reports of it: two CLOCKs, the lazy move (the first write sets a bit, the next promotes the
//! page), and clean cold victims first. Ours: a page enters SCM for a read, DRAM for a write. The
//! hand inspects up to 64 pages for a clean unreferenced one, clearing reference bits, then takes
//! the first unreferenced one. DRAM's victim is demoted to SCM.
//!
//! Not for small writes that repeat: every second one promotes a page and demotes another.

use super::Policy;
use super::action::{Action, Actions, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::ring::{Ring, sweep};
use super::storage::Storage;
use crate::access::{Access, Op, PageNo};

/// The page was written once since it came to SCM.
const WRITTEN_ONCE: State = State::MARK_A;
/// Pages of DRAM that the hand looks at for a clean one.
const LOOK_MAX: u32 = 64;

/// Two CLOCKs with lazy moves.
pub struct MClock<S: Storage> {
    pages: Directory<S>,
    dram: Ring<S>,
    scm: Ring<S>,
}

impl<S: Storage> MClock<S> {
    /// Makes an empty cache of two tiers.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity) -> Self {
        let pages = Directory::new(storage, capacity);
        Self { pages, dram: Ring::new(storage), scm: Ring::new(storage) }
    }

    fn dram_victim(&mut self) -> u32 {
        // Bounded, so that one demotion never scans all of DRAM for a clean page.
        for _ in 0..self.pages.used().dram.min(LOOK_MAX) {
            let page = self.dram.advance();
            let state = self.pages.state(page);
            if !state.has(State::REFERENCED.with(State::DIRTY)) {
                return page;
            }
            // Dirty pages lose their bit on the way as well: the sweep below then takes them
            // without a second round.
            self.pages.set_state(page, state.without(State::REFERENCED));
        }
        // No clean candidate is near: the dirty one costs SCM the same, and the backing device a
        // later write-back.
        sweep(&mut self.dram, &mut self.pages)
    }

    fn evict(&mut self, actions: &mut impl Actions) {
        let victim = sweep(&mut self.scm, &mut self.pages);
        self.scm.remove(victim);
        self.pages.evict(victim, Reason::Victim, actions);
    }

    fn demote(&mut self, why: Reason, actions: &mut impl Actions) {
        if self.pages.is_full(Tier::Scm) {
            self.evict(actions);
        }
        let page = self.dram_victim();
        self.dram.remove(page);
        let dirty = self.pages.remove(page).is_dirty();
        self.pages.insert(page, Tier::Scm, State::default().with_if(dirty, State::DIRTY));
        self.scm.insert(page);
        actions.act(Action::Move { page: PageNo(page), to: Tier::Scm, dirty, why });
    }

    fn promote(&mut self, page: u32, actions: &mut impl Actions) {
        self.scm.remove(page);
        let dirty = self.pages.remove(page).is_dirty();
        let (to, why) = (Tier::Dram, Reason::WriteHot);
        actions.act(Action::Move { page: PageNo(page), to, dirty, why });
        if self.pages.is_full(Tier::Dram) {
            self.demote(Reason::Swapped, actions);
        }
        // After the demotion: the sweep must not choose the page that is just promoted.
        self.pages.insert(page, Tier::Dram, State::REFERENCED.with(State::DIRTY));
        self.dram.insert(page);
    }

    fn hit(&mut self, access: Access, state: State, found: Tier, actions: &mut impl Actions) {
        let page = access.page.0;
        let mut bits = state.with(State::REFERENCED);
        let mut served = found;
        // The lazy move: a single write does not pay for the copies of a promotion and a demotion.
        if access.op == Op::Write && found == Tier::Scm && state.has(WRITTEN_ONCE) {
            self.promote(page, actions);
            served = Tier::Dram;
        } else {
            if access.op == Op::Write {
                bits = self.pages.mark_dirty(page, bits).with_if(found == Tier::Scm, WRITTEN_ONCE);
            }
            self.pages.set_state(page, bits);
        }
        actions.act(Action::Hit { found, served });
    }
}

impl<S: Storage> Policy for MClock<S> {
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
        if let Some(tier) = state.tier() {
            self.hit(access, state, tier, actions);
            return;
        }
        // SCM writes are expensive, so a page starts where its first operation is cheap.
        let tier = match access.op {
            Op::Read => Tier::Scm,
            Op::Write => Tier::Dram,
        };
        if self.pages.is_full(tier) {
            match tier {
                Tier::Dram => self.demote(Reason::Victim, actions),
                Tier::Scm => self.evict(actions),
            }
        }
        self.pages.fill(access, tier, actions);
        match tier {
            Tier::Dram => self.dram.insert(page),
            Tier::Scm => self.scm.insert(page),
        }
    }

    fn remove(&mut self, page: PageNo) {
        match self.pages.remove(page.0).tier() {
            Some(Tier::Dram) => self.dram.remove(page.0),
            Some(Tier::Scm) => self.scm.remove(page.0),
            None => {}
        }
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        match tier {
            Tier::Dram => self.demote(Reason::Shrunk, actions),
            Tier::Scm => self.evict(actions),
        }
    }
}
