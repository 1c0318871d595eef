//! How likely pages are used again after they left DRAM, learned by class of page.
//!
//! A class is what is known of a page when it leaves DRAM. Each departure of a page is counted in
//! its class, and so is whether the page was used again: by a hit in PRAM, or by a miss while it is
//! still remembered. As many departed pages are remembered as the cache has frames. Pages that
//! PRAM gave up are a class of their own: what a page has to beat that wants into PRAM.
//!
//! Invariant: a class has seen at least as many pages as it has seen used again. Counts are halved
//! as they grow, so that the last thousand departures of a class decide.

use std::collections::VecDeque;

use super::super::space::{Space, Table};

const CLASSES: usize = 64;
/// Pages that left PRAM.
pub(super) const FROM_PRAM: u8 = 64;
const SEEN_MAX: f32 = 1000.0;

/// What is known of a page that leaves DRAM.
#[derive(Clone, Copy)]
pub(super) struct Traits {
    pub(super) hits: u8,
    pub(super) dirty: bool,
    /// It was remembered when it came, or came up from PRAM.
    pub(super) returned: bool,
    /// It came just after the page before it.
    pub(super) sequential: bool,
    /// The access that brought it was for all of it.
    pub(super) whole: bool,
}

impl Traits {
    pub(super) fn class(self) -> u8 {
        let hits = match self.hits {
            0 | 1 => self.hits,
            2 | 3 => 2,
            _ => 3,
        };
        hits | u8::from(self.dirty) << 2
            | u8::from(self.returned) << 3
            | u8::from(self.sequential) << 4
            | u8::from(self.whole) << 5
    }
}

/// A page that is gone.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Ghost {
    /// The number of its departure, from 1; 0 if it is not remembered.
    departure: u32,
    class: u8,
}

/// Chances by class, and the pages that are remembered.
pub(super) struct Odds<S: Space> {
    seen: [f32; CLASSES + 1],
    reused: [f32; CLASSES + 1],
    ghosts: S::Table<Ghost>,
    order: VecDeque<(u32, u32)>,
    departures: u32,
    /// Pages remembered that left DRAM for good.
    rejected: u32,
}

impl<S: Space> Odds<S> {
    pub(super) fn new(space: S) -> Self {
        Self {
            seen: [2.0; CLASSES + 1],
            reused: [1.0; CLASSES + 1],
            ghosts: space.table(),
            order: VecDeque::new(),
            departures: 0,
            rejected: 0,
        }
    }

    /// The share of the class that is used again, `0.0 ..= 1.0`.
    pub(super) fn of(&self, class: u8) -> f32 {
        self.reused[usize::from(class)] / self.seen[usize::from(class)]
    }

    pub(super) fn rejected(&self) -> u32 {
        self.rejected
    }

    /// A page of the class left its tier.
    pub(super) fn saw(&mut self, class: u8) {
        let class = usize::from(class);
        self.seen[class] += 1.0;
        if self.seen[class] > SEEN_MAX {
            self.seen[class] /= 2.0;
            self.reused[class] /= 2.0;
        }
    }

    /// A page of the class was used again, for the first time.
    pub(super) fn saw_reuse(&mut self, class: u8) {
        let class = usize::from(class);
        self.reused[class] = (self.reused[class] + 1.0).min(self.seen[class]);
    }

    /// Remembers a page that left the cache, and forgets those that left it `limit` pages before.
    pub(super) fn remember(&mut self, page: u32, class: u8, limit: u32) {
        self.departures = self.departures.wrapping_add(1).max(1);
        self.ghosts.set(page, Ghost { departure: self.departures, class });
        self.rejected += u32::from(class != FROM_PRAM);
        self.order.push_back((page, self.departures));
        while self.order.len() > limit as usize {
            if let Some((page, departure)) = self.order.pop_front()
                && self.ghosts.get(page).departure == departure
            {
                self.forget(page);
            }
        }
    }

    /// A page comes back. Returns whether it was remembered.
    pub(super) fn recall(&mut self, page: u32) -> bool {
        let ghost = self.ghosts.get(page);
        if ghost.departure == 0 {
            return false;
        }
        self.saw_reuse(ghost.class);
        self.forget(page);
        true
    }

    /// Forgets a page, remembered or not.
    pub(super) fn forget(&mut self, page: u32) {
        let ghost = self.ghosts.get(page);
        if ghost.departure != 0 {
            self.rejected -= u32::from(ghost.class != FROM_PRAM);
            self.ghosts.set(page, Ghost::default());
        }
    }
}
