//! CLOCK: a ring of pages with a reference bit each, and a hand. It takes the first page with a
//! clear bit and clears bits on its way.
//!
//! F. J. Corbató, "A Paging Experiment with the Multics System", 1968. A page comes with its bit
//! clear, so one that is used once gets no second round. One tier. As good as LRU at a fraction
//! of the cost of a hit; no better than LRU against scans.
//!
//! The ring is one of frames, as in the source: a new page gets the frame that the hand has just
//! emptied. A removed page leaves its frame to the page that comes next.

use super::Policy;
use super::action::{Action, Actions, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::lists::NONE;
use super::storage::{Storage, Table};
use crate::access::{Access, PageNo};

/// CLOCK, also called second chance.
pub struct Clock<S: Storage> {
    pages: Directory<S>,
    /// The page of each frame, or [`NONE`].
    frames: Vec<u32>,
    frame_of: S::Table<u32>,
    /// Frames without a page.
    free: Vec<u32>,
    /// The frame that the hand looks at next.
    hand: usize,
}

impl<S: Storage> Clock<S> {
    /// Makes an empty cache of one tier.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity) -> Self {
        Self {
            pages: Directory::new(storage, capacity.in_one_tier()),
            frames: Vec::new(),
            frame_of: storage.table(),
            free: Vec::new(),
            hand: 0,
        }
    }

    fn put(&mut self, page: u32) {
        // The frame emptied last. After an eviction it is just behind the hand, so the new page is
        // inspected last.
        let frame = if let Some(frame) = self.free.pop() {
            self.frames[frame as usize] = page;
            frame
        } else {
            self.frames.push(page);
            u32::try_from(self.frames.len() - 1).expect("there are fewer frames than pages")
        };
        self.frame_of.set(page, frame);
    }

    fn empty(&mut self, page: u32) {
        let frame = self.frame_of.get(page);
        self.frame_of.set(page, 0);
        self.frames[frame as usize] = NONE;
        self.free.push(frame);
    }

    /// Removes frames without a page, of which a smaller cache would have many.
    fn close_gaps(&mut self) {
        // The hand's page comes first, so that the next victim is the same as without the
        // compaction.
        self.frames.rotate_left(self.hand);
        self.frames.retain(|&page| page != NONE);
        self.free.clear();
        self.hand = 0;
        for (frame, &page) in (0..).zip(&self.frames) {
            self.frame_of.set(page, frame);
        }
    }

    /// Moves the hand over pages with a reference bit, which it clears, and behind the first
    /// without. There must be a page.
    fn victim(&mut self) -> u32 {
        loop {
            if self.hand >= self.frames.len() {
                self.hand = 0;
            }
            let page = self.frames[self.hand];
            self.hand += 1;
            // A removed page left its frame empty. The hand passes it without a decision.
            if page == NONE {
                continue;
            }
            let state = self.pages.state(page);
            if !state.has(State::REFERENCED) {
                return page;
            }
            self.pages.set_state(page, state.without(State::REFERENCED));
        }
    }
}

impl<S: Storage> Policy for Clock<S> {
    type Storage = S;

    fn directory(&self) -> &Directory<S> {
        &self.pages
    }

    fn directory_mut(&mut self) -> &mut Directory<S> {
        &mut self.pages
    }

    #[inline]
    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        let page = access.page.0;
        let state = self.pages.state(page);
        if state.has(State::DRAM) {
            self.pages.touch(page, state, state.with(State::REFERENCED), access.op);
            actions.act(Action::Hit { found: Tier::Dram, served: Tier::Dram });
            return;
        }
        if self.pages.is_full(Tier::Dram) {
            self.reclaim(Tier::Dram, actions);
        }
        self.pages.fill(access, Tier::Dram, actions);
        self.put(page);
    }

    fn remove(&mut self, page: PageNo) {
        if self.pages.tier(page).is_some() {
            self.pages.remove(page.0);
            self.empty(page.0);
        }
    }

    fn resize(&mut self, capacity: Capacity, actions: &mut impl Actions) {
        super::resize(self, capacity, actions);
        // After the evictions: these leave a frame without a page each.
        self.close_gaps();
    }

    /// # Panics
    /// If the cache is empty, where the hand would go round for ever.
    fn reclaim(&mut self, _: Tier, actions: &mut impl Actions) {
        // The sweep ends only at a page, so an empty ring would never end it.
        assert!(self.pages.used().dram > 0, "a page can be reclaimed only where there is one");
        let victim = self.victim();
        self.empty(victim);
        self.pages.evict(victim, Reason::Victim, actions);
    }
}

#[cfg(test)]
mod tests {
    use super::super::storage::Dense;
    use super::*;
    use crate::access::Op;

    #[test]
    #[should_panic(expected = "only where there is one")]
    fn empty_cache_reclaims_nothing() {
        let mut clock = Clock::new(Dense { pages: 2 }, Capacity { dram: 2, scm: 0 });
        let access = Access { page: PageNo(1), start: 0, len: 1, op: Op::Read };
        clock.access(access, &mut Vec::new());
        clock.remove(PageNo(1));
        clock.reclaim(Tier::Dram, &mut Vec::new());
    }

    #[test]
    fn shrunk_cache_keeps_order_without_gaps() {
        let capacity = |dram| Capacity { dram, scm: 0 };
        let mut clock = Clock::new(Dense { pages: 20 }, capacity(8));
        let mut actions = Vec::new();
        let read = |page| Access { page: PageNo(page), start: 0, len: 1, op: Op::Read };
        for page in (0..8).chain([1, 5]) {
            clock.access(read(page), &mut actions);
        }
        clock.remove(PageNo(6));
        // 0, 2, 3 and 4 go. 1 was passed, and the hand is on 5, whose bit is set.
        clock.resize(capacity(3), &mut actions);
        assert_eq!(clock.frames.len(), 3);
        actions.clear();
        for page in 10..13 {
            clock.access(read(page), &mut actions);
        }
        let gone: Vec<u32> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Drop { page, .. } => Some(page.0),
                _ => None,
            })
            .collect();
        assert_eq!(gone, [7, 1, 5]);
    }
}
