//! The choice among the modes of `everbyte`, by miniature simulations: rule 10.
//!
//! Each mode runs as a shadow without bytes: in full below [`FULL_FRAMES`] frames, above that over
//! a sample of regions of 1 MiB with a proportionally smaller cache, so that runs of sectors are
//! preserved. After every quarter of the frames' accesses a shadow is scored by its costs: the
//! backing device, memory, and its remaining dirty pages. Scores decay. A cheaper mode takes over
//! when it saves the cost of fetching a few pages: the pages that it would have kept are absent at
//! first. A share of the score would not be such a margin, because all modes pay equally for the
//! first fetches. Cached pages stay.
//!
//! Miniature simulations: Waldspurger et al., "Cache Modeling and Optimization using Miniature
//! Simulations", USENIX ATC 2017.

use super::super::action::{Action, Actions, Tier};
use super::super::directory::Capacity;
use super::super::storage::{Storage, spread};
use super::tiers::{Order, Rules, Tiers};
use crate::access::{Access, Op, PAGE_BYTES, PageNo};
use crate::costs::{Costs, MemoryCosts};

/// Up to this number of frames shadows have all pages. Above it, they have about this number.
const FULL_FRAMES: u64 = 2000;
/// Regions are sampled by so many bits of a hash.
const SAMPLE_BITS: u32 = 16;
/// The part of a score that stays after a period.
const DECAY: f64 = 0.99;
/// Fewest accesses of a period.
const PERIOD_MIN: u32 = 16;
/// Pages whose fetching a mode must save to take over, as a share of the frames, and how many of them
/// are fetched after a jump.
const MARGIN_PAGES: f64 = 1.0 / 200.0;
const MARGIN_JUMPS: f64 = 0.1;

const LATE: Rules = Rules { waiting_permille: 900, ..Rules::ALL };

/// The modes, with the initial one first: pages rest in their first tier; dirty pages are written
/// late while new pages pass through DRAM next to the old ones, for scans and loops; late; and
/// soon.
pub(super) const MODES: [Rules; 4] = [
    Rules { waiting_permille: 200, order: Order::Lru, rests: true, ..LATE },
    Rules { order: Order::Lru, new_leave_first: true, ..LATE },
    LATE,
    Rules { waiting_permille: 30, ..LATE },
];

/// Shadows of all modes.
pub(super) struct Modes<S: Storage> {
    storage: S,
    small_write_bytes: u16,
    costs: Costs,
    shadows: [Shadow<S>; MODES.len()],
    current: usize,
    /// Regions that are sampled, of `2^SAMPLE_BITS`.
    sampled: u64,
    period: u32,
    left: u32,
}

struct Shadow<S: Storage> {
    tiers: Tiers<S>,
    meter: Meter<S>,
    score: f64,
    dirty_pages: u32,
}

impl<S: Storage> Modes<S> {
    pub(super) fn new(
        storage: S,
        capacity: Capacity,
        small_write_bytes: u16,
        costs: Costs,
    ) -> Self {
        let frames = capacity.dram.saturating_add(capacity.scm).max(1);
        let all = 1 << SAMPLE_BITS;
        // Rounded up, so that a huge cache still samples a region.
        let sampled = (FULL_FRAMES << SAMPLE_BITS).div_ceil(u64::from(frames)).min(all);
        let capacity = shrunk(capacity, sampled);
        let shadow = |rules: Rules| Shadow {
            tiers: Tiers::new(storage, capacity, Rules { small_write_bytes, ..rules }, costs),
            meter: Meter::new(storage, costs),
            score: 0.0,
            dirty_pages: 0,
        };
        // In accesses of the whole cache, sampled or not: all cache sizes judge after the same
        // share of their turnover.
        let period = (frames / 4).max(PERIOD_MIN);
        let (shadows, current, left) = (MODES.map(shadow), 0, period);
        Self { storage, small_write_bytes, costs, shadows, current, sampled, period, left }
    }

    /// Returns the rules of the present mode.
    pub(super) fn rules(&self) -> Rules {
        self.shadows[self.current].tiers.rules
    }

    /// Takes an access. Returns the rules to go on with, when they change.
    pub(super) fn access(&mut self, access: Access) -> Option<Rules> {
        if self.samples(access.page.0) {
            // Every mode sees every sampled access, the mode in use too: its own score must not
            // include the real cache's history.
            for shadow in &mut self.shadows {
                shadow.meter.access = access;
                shadow.tiers.access(access, &mut shadow.meter);
            }
        }
        self.left -= 1;
        if self.left > 0 {
            return None;
        }
        self.left = self.period;
        self.judge()
    }

    fn samples(&self, page: u32) -> bool {
        // A lazy hash: small caches sample everything and skip it.
        let hash = || spread(self.storage.region(page)) >> (u64::BITS - SAMPLE_BITS);
        self.sampled == 1 << SAMPLE_BITS || hash() < self.sampled
    }

    fn judge(&mut self) -> Option<Rules> {
        self.shadows.iter_mut().for_each(Shadow::score);
        let scores = self.shadows.iter().map(|shadow| shadow.score);
        let (best, score) = scores.enumerate().min_by(|a, b| a.1.total_cmp(&b.1))?;
        // The margin prevents changes back and forth between modes with nearly equal costs.
        if best == self.current || score + self.margin_ns() >= self.shadows[self.current].score {
            return None;
        }
        self.current = best;
        Some(self.rules())
    }

    fn margin_ns(&self) -> f64 {
        let Capacity { dram, scm } = self.shadows[self.current].tiers.pages.capacity();
        let backing = &self.costs.backing;
        // The pages that the other mode would have kept must be fetched first.
        let fetch_ns = backing.read_page_ns + MARGIN_JUMPS * backing.read_jump_ns;
        (f64::from(dram) + f64::from(scm)) * MARGIN_PAGES * fetch_ns
    }

    pub(super) fn remove(&mut self, page: u32) {
        if self.samples(page) {
            self.shadows.iter_mut().for_each(|shadow| shadow.tiers.remove(page));
        }
    }

    pub(super) fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
        for shadow in &mut self.shadows {
            shadow.tiers.worth.costs = costs;
            shadow.meter.costs = costs;
        }
    }

    /// Restarts in the present mode.
    pub(super) fn resize(&mut self, capacity: Capacity) {
        let anew = Self::new(self.storage, capacity, self.small_write_bytes, self.costs);
        // The scores start again. The mode stays, because a resize says nothing about the workload.
        *self = Self { current: self.current, ..anew };
    }
}

/// Returns the capacity of a shadow.
fn shrunk(capacity: Capacity, sampled: u64) -> Capacity {
    let part = |frames: u32| {
        let part = (u64::from(frames) * sampled) >> SAMPLE_BITS;
        // At least a frame for each tier: a shadow without one could not make a decision.
        u32::try_from(part).unwrap_or(u32::MAX).max(1)
    };
    Capacity { dram: part(capacity.dram), scm: part(capacity.scm) }
}

impl<S: Storage> Shadow<S> {
    fn score(&mut self) {
        let dirty_pages = self.tiers.pages.dirty_pages();
        // A mode that only puts write-backs off must not look cheaper, so its unwritten pages
        // count.
        let growth = f64::from(dirty_pages) - f64::from(self.dirty_pages);
        // In the order of sectors, and without a turn of the device, when they are written at last.
        let put_off_ns = self.meter.costs.backing.write_page_ns;
        self.score = self.score * DECAY + std::mem::take(&mut self.meter.ns) + growth * put_off_ns;
        self.dirty_pages = dirty_pages;
    }
}

/// Sums the costs of actions.
struct Meter<S> {
    storage: S,
    costs: Costs,
    access: Access,
    ns: f64,
    last_read: Option<u32>,
    last_written: Option<u32>,
}

impl<S: Storage> Meter<S> {
    fn new(storage: S, costs: Costs) -> Self {
        let access = Access { page: PageNo(0), start: 0, len: 1, op: Op::Read };
        Self { storage, costs, access, ns: 0.0, last_read: None, last_written: None }
    }

    fn serve(&mut self, MemoryCosts { operation_ns, read_line_ns, write_line_ns }: MemoryCosts) {
        let line_ns = match self.access.op {
            Op::Read => read_line_ns,
            Op::Write => write_line_ns,
        };
        self.ns += operation_ns + f64::from(self.access.len) / 64.0 * line_ns;
    }

    fn fetch(&mut self, page: u32) {
        // A write of a whole page needs no bytes of the backing device.
        if self.access.op == Op::Write && u32::from(self.access.len) == PAGE_BYTES {
            return;
        }
        let backing = &self.costs.backing;
        let jumps = self.storage.jumps(self.last_read, page);
        self.ns += backing.read_page_ns + backing.read_jump_ns * jumps;
        self.last_read = Some(page);
    }

    /// A whole page.
    fn write_scm(&mut self) {
        let scm = &self.costs.scm;
        self.ns += scm.operation_ns + f64::from(PAGE_BYTES / 64) * scm.write_line_ns;
    }

    fn write(&mut self, page: u32) {
        let backing = &self.costs.backing;
        let jumps = self.storage.jumps(self.last_written, page);
        self.ns += backing.written_page_ns() + backing.write_jump_ns * jumps;
        self.last_written = Some(page);
    }
}

impl<S: Storage> Actions for Meter<S> {
    fn act(&mut self, action: Action) {
        match action {
            Action::Hit { served: Tier::Dram, .. } => self.serve(self.costs.dram),
            Action::Hit { served: Tier::Scm, .. } => self.serve(self.costs.scm),
            Action::Fill { page, tier: Tier::Dram, .. } => self.fetch(page.0),
            Action::Fill { page, tier: Tier::Scm, .. } => {
                self.fetch(page.0);
                self.write_scm();
            }
            Action::Move { to: Tier::Scm, .. } => self.write_scm(),
            Action::Evict { page, .. } => self.write(page.0),
            // Small compared with the rest.
            Action::Move { .. }
            | Action::Copy { .. }
            | Action::Update { .. }
            | Action::Drop { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::storage::Dense;
    use super::*;

    #[test]
    fn mode_takes_over_at_its_margin() {
        let costs = Costs::default();
        let capacity = Capacity { dram: 200, scm: 800 };
        let fetch_ns = costs.backing.read_page_ns + 0.1 * costs.backing.read_jump_ns;
        let chosen = |saved_fetches: f64| {
            let mut modes = Modes::new(Dense { pages: 2000 }, capacity, 512, costs);
            let present = 1e6 * fetch_ns;
            modes.shadows.iter_mut().for_each(|shadow| shadow.score = present);
            // A score that decays once.
            modes.shadows[2].score = present - saved_fetches * fetch_ns / DECAY;
            modes.judge()
        };
        assert_eq!(chosen(4.9), None);
        assert_eq!(chosen(5.1), Some(Rules { small_write_bytes: 512, ..LATE }));
    }
}
