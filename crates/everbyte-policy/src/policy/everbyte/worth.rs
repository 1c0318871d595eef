//! The worth of a demotion: the costs of SCM compared with those of the backing device. Rule 5.
//!
//! A page that leaves DRAM is of a class: dirty or clean, hit there or not. For each class, the
//! demoted pages and those of them used in SCM are counted. Their ratio is the chance that a
//! demoted page is used. Demotions take time to be used: the counts begin with a quarter of the
//! frames' pages as demoted and used, and a clean page gets twice its counted chance.
//!
//! Of pages that a write brought, it is counted how many were written again before they left DRAM, or
//! since they came straight to SCM. Where few are, DRAM holds nothing back from SCM: rule 3.

use super::super::storage::Storage;
use crate::access::{Access, Op, PAGE_BYTES};
use crate::costs::Costs;

/// Of the pages that are not worth it, one in so many is demoted or goes through DRAM, to learn.
const TRIALS: u32 = 16;
/// The part of the share of jumps that a step decides.
const JUMPS_SHARE: f64 = 1.0 / 1024.0;

/// Uses of clean pages for each counted use: most demoted pages are still cached.
const STILL_TO_COME: f64 = 2.0;
/// The part of the share of pages written again that a page decides.
const AGAIN_SHARE: f64 = 1.0 / 128.0;
/// The initial share, and the least that makes DRAM worth the way to SCM.
const AGAIN_FIRST: f64 = 0.2;
const AGAIN_MIN: f64 = 0.15;

/// Dirty or clean, hit in DRAM or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Class(pub(super) u8);

impl Class {
    pub(super) fn of(dirty: bool, hit: bool) -> Self {
        Self(u8::from(dirty) * 2 + u8::from(hit))
    }

    fn is_dirty(self) -> bool {
        self.0 >= 2
    }
}

/// Knowledge of the costs of steps and of the chances of demoted pages.
pub(super) struct Worth<S> {
    storage: S,
    pub(super) costs: Costs,
    /// Demoted pages of each class, and those that were used.
    demoted: [f64; 4],
    returned: [f64; 4],
    /// Demotions after which half of the counts is forgotten.
    memory: f64,
    last_read: Option<u32>,
    read_jumps: f64,
    last_written: Option<u32>,
    write_jumps: f64,
    refused: u32,
    /// Share of pages brought by a write that were written again.
    again: f64,
    straight: u32,
}

impl<S: Storage> Worth<S> {
    pub(super) fn new(storage: S, costs: Costs, frames: u32) -> Self {
        let begun = (f64::from(frames) / 4.0).max(4.0);
        Self {
            storage,
            costs,
            demoted: [begun; 4],
            returned: [begun; 4],
            memory: begun * 8.0,
            last_read: None,
            read_jumps: 0.5,
            last_written: None,
            write_jumps: 0.5,
            refused: 0,
            again: AGAIN_FIRST,
            straight: 0,
        }
    }

    /// Notes that the page of an access was missed.
    pub(super) fn fetched(&mut self, access: Access) {
        // A write of a whole page fetches nothing, so the device does not jump.
        if access.op == Op::Write && u32::from(access.len) == PAGE_BYTES {
            return;
        }
        let jumped = self.storage.jumps(self.last_read, access.page.0);
        self.read_jumps += (jumped - self.read_jumps) * JUMPS_SHARE;
        self.last_read = Some(access.page.0);
    }

    /// Notes that a page is written back; `waited` if in the order of sectors.
    pub(super) fn written(&mut self, page: u32, waited: bool) {
        // Only ordered write-backs estimate later jumps. A page written from DRAM comes out of the
        // order.
        if waited {
            let jumped = self.storage.jumps(self.last_written, page);
            self.write_jumps += (jumped - self.write_jumps) * JUMPS_SHARE;
        }
        self.last_written = Some(page);
    }

    /// Notes that a page is brought by a write. Returns true if it should not go through DRAM.
    pub(super) fn goes_straight(&mut self) -> bool {
        // An exponential mean: `rewritten` adds the share back, so no list of pages is needed.
        self.again -= self.again * AGAIN_SHARE;
        if self.again >= AGAIN_MIN {
            return false;
        }
        self.straight += 1;
        // Every sixteenth page still passes through DRAM. Otherwise the share could never rise
        // again.
        !self.straight.is_multiple_of(TRIALS)
    }

    /// Notes the first write to a page that was brought by one.
    pub(super) fn rewritten(&mut self) {
        self.again = (self.again + AGAIN_SHARE).min(1.0);
    }

    /// Notes a demotion.
    pub(super) fn demoted(&mut self, class: Class) {
        let class = usize::from(class.0);
        self.demoted[class] += 1.0;
        // Both counts are halved together, so the ratio stays and old demotions weigh less.
        if self.demoted[class] > self.memory {
            self.demoted[class] /= 2.0;
            self.returned[class] /= 2.0;
        }
    }

    /// Notes the first use of a demoted page.
    pub(super) fn returned(&mut self, class: Class) {
        let class = usize::from(class.0);
        // A halving can forget demotions whose pages return later: the ratio must stay at most 1.
        self.returned[class] = (self.returned[class] + 1.0).min(self.demoted[class]);
    }

    /// Returns true if the page should be demoted rather than be dropped or written from DRAM.
    pub(super) fn demotes(&mut self, page: u32, class: Class) -> bool {
        let pays = self.pays(page, class);
        if !pays {
            self.refused += 1;
        }
        // A trial now and then: a class that is never demoted could never prove its worth.
        pays || self.refused.is_multiple_of(TRIALS)
    }

    fn pays(&self, page: u32, class: Class) -> bool {
        let Costs { dram, scm, backing } = &self.costs;
        let lines = f64::from(PAGE_BYTES / 64);
        let fetch_ns = backing.read_page_ns + self.read_jumps * backing.read_jump_ns;
        let demote_ns = lines * (dram.read_line_ns + scm.write_line_ns) + scm.operation_ns;
        let at = usize::from(class.0);
        let chance = self.returned[at] / self.demoted[at];
        // A clean page saves a fetch if it is used. Dropping it costs nothing.
        if !class.is_dirty() {
            return STILL_TO_COME * chance * fetch_ns > demote_ns;
        }
        let later_jump_ns = self.write_jumps * backing.write_jump_ns;
        // Written now and used later, the page is fetched, changed and written once more.
        let again_ns = fetch_ns + backing.written_page_ns() + later_jump_ns;
        let jumps = self.storage.jumps(self.last_written, page);
        let now_ns = jumps * backing.write_jump_ns + chance * again_ns;
        let read_ns = scm.operation_ns + lines * scm.read_line_ns;
        // The demoted page is read from SCM for its write-back, in the order of sectors.
        now_ns > demote_ns + read_ns + later_jump_ns
    }
}
