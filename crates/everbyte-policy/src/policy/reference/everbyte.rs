//! `everbyte` in one mode, by its rules 1 to 9.

use super::super::action::{Action, Reason, Tier};
use super::super::directory::Capacity;
use super::super::{Order, Rules};
use super::two_tiers::{each, fill, hit};
use crate::access::{Access, Op, PageNo};
use crate::costs::Costs;

#[derive(Clone, Copy)]
struct Page {
    page: u32,
    tier: Tier,
    dirty: bool,
    used: bool,
    hit_in_dram: bool,
    waits: bool,
    /// A write brought it to SCM, and none came since.
    straight: bool,
    /// Its class when it was demoted, until it is used.
    trial: Option<usize>,
    /// Remaining turns in DRAM; halves written in SCM.
    writes: u8,
}

struct Model {
    capacity: Capacity,
    rules: Rules,
    pages: Vec<Page>,
    /// Page numbers, the oldest first.
    list: Vec<u32>,
    /// Place in the list of the page that the hand looks at next.
    hand: usize,
    queue: Vec<u32>,
    write_hand: u32,
    costs: Costs,
    /// Pages demoted of each class, clean, clean and hit, dirty, dirty and hit; those that were used.
    demoted: [f64; 4],
    returned: [f64; 4],
    last_read: Option<u32>,
    last_written: Option<u32>,
    read_jumps: f64,
    write_jumps: f64,
    refused: u32,
    /// Share of pages brought by a write that were written again.
    again: f64,
    straight: u32,
}

fn class(page: Page) -> usize {
    match (page.dirty, page.hit_in_dram) {
        (false, false) => 0,
        (false, true) => 1,
        (true, false) => 2,
        (true, true) => 3,
    }
}

/// 1 if a step at `here` jumps after one at `last`.
fn jump(last: Option<u32>, here: u32) -> f64 {
    let follows = last.is_some_and(|last| here > last && here - last <= 8);
    if follows { 0.0 } else { 1.0 }
}

impl Model {
    fn at(&mut self, page: u32) -> &mut Page {
        self.pages.iter_mut().find(|its| its.page == page).expect("it is cached")
    }

    fn used(&self, tier: Tier) -> usize {
        self.pages.iter().filter(|page| page.tier == tier).count()
    }

    fn is_full(&self, tier: Tier) -> bool {
        self.used(tier) >= self.capacity.of(tier) as usize
    }

    fn waiting(&self) -> Vec<u32> {
        let mut waiting: Vec<u32> =
            self.pages.iter().filter(|page| page.waits).map(|page| page.page).collect();
        waiting.sort_unstable();
        waiting
    }

    fn serve(&mut self, access: &Access, actions: &mut Vec<Action>) {
        let page = access.page.0;
        if !self.pages.iter().any(|its| its.page == page) {
            return self.miss(access, actions);
        }
        if self.at(page).waits {
            self.at(page).waits = false;
            self.at(page).used = false;
            self.list.push(page);
        } else {
            self.at(page).used = true;
            if self.rules.order == Order::Lru {
                self.unlist(page);
                self.list.push(page);
            }
        }
        let rules = self.rules;
        let its = self.at(page);
        let was_dirty = its.dirty;
        let held_back = its.tier == Tier::Dram && its.dirty && !its.hit_in_dram;
        let again = access.op == Op::Write && (its.straight || held_back);
        its.straight &= access.op == Op::Read;
        its.dirty |= access.op == Op::Write;
        let found = its.tier;
        let trial = its.trial.take();
        let mut served = found;
        if found == Tier::Dram {
            its.hit_in_dram = true;
            if access.op == Op::Read {
                its.writes = its.writes.max(1);
            } else if access.len > rules.small_write_bytes {
                its.writes = if rules.keeps { 7.min(its.writes + 1) } else { its.writes.max(1) };
            }
        } else if access.op == Op::Write && access.len > rules.small_write_bytes && rules.promotes {
            its.writes += if access.len == 4096 { 2 } else { 1 };
            if its.writes >= 7 {
                self.promote(page, was_dirty, actions);
                served = Tier::Dram;
            }
        }
        if again {
            self.again = (self.again + 1.0 / 128.0).min(1.0);
        }
        if let Some(class) = trial {
            self.returned[class] = self.demoted[class].min(self.returned[class] + 1.0);
        }
        actions.push(hit(found, served));
    }

    fn promote(&mut self, page: u32, dirty: bool, actions: &mut Vec<Action>) {
        let was_full = self.is_full(Tier::Dram);
        let (to, why) = (Tier::Dram, Reason::WriteHot);
        actions.push(Action::Move { page: PageNo(page), to, dirty, why });
        let its = self.at(page);
        (its.tier, its.writes) = (Tier::Dram, 1);
        if was_full {
            let leaver = self.leaver();
            self.demote(leaver, Reason::Swapped, actions);
        }
        self.queue.push(page);
    }

    fn miss(&mut self, access: &Access, actions: &mut Vec<Action>) {
        let (page, dirty) = (access.page.0, access.op == Op::Write);
        if dirty {
            self.again -= self.again * (1.0 / 128.0);
        }
        let mut goes_straight = false;
        if dirty && self.again < 0.15 {
            self.straight += 1;
            goes_straight = !self.straight.is_multiple_of(16);
        }
        goes_straight = goes_straight && self.rules.straight || self.rules.rests;
        if self.is_full(Tier::Dram) && !goes_straight {
            self.make_room(actions);
        } else if self.is_full(Tier::Dram) && self.is_full(Tier::Scm) {
            self.evict_one(actions);
        }
        if !(dirty && access.len == 4096) {
            let jumped = jump(self.last_read, page);
            self.read_jumps += (jumped - self.read_jumps) * (1.0 / 1024.0);
            self.last_read = Some(page);
        }
        let straight = self.is_full(Tier::Dram);
        let tier = if straight { Tier::Scm } else { Tier::Dram };
        let writes = u8::from(dirty && !straight);
        let (used, hit_in_dram, waits, trial) = (false, false, false, None);
        self.pages.push(Page {
            page,
            tier,
            dirty,
            used,
            hit_in_dram,
            waits,
            straight,
            trial,
            writes,
        });
        self.list.push(page);
        if tier == Tier::Dram && self.rules.new_leave_first {
            self.queue.insert(0, page);
        } else if tier == Tier::Dram {
            self.queue.push(page);
        }
        actions.push(fill(access, tier));
    }

    fn make_room(&mut self, actions: &mut Vec<Action>) {
        let leaver = self.leaver();
        let Page { dirty, hit_in_dram, .. } = *self.at(leaver);
        if self.rules.weighs && !self.pays(leaver) {
            self.refused += 1;
            if !self.refused.is_multiple_of(16) {
                if dirty {
                    self.last_written = Some(leaver);
                }
                return self.leave(leaver, Reason::NoRoomBelow, actions);
            }
        }
        if !self.is_full(Tier::Scm) {
            let why = if dirty { Reason::DirtyVictim } else { Reason::FreeFrame };
            return self.demote(leaver, why, actions);
        }
        if self.rules.drops && !hit_in_dram && !dirty {
            return self.leave(leaver, Reason::NoEvidence, actions);
        }
        self.evict_one(actions);
        if self.is_full(Tier::Dram) {
            let why = if dirty { Reason::DirtyVictim } else { Reason::ColderPage };
            self.demote(leaver, why, actions);
        }
    }

    /// True if a demotion of the page costs less than the alternatives.
    fn pays(&mut self, page: u32) -> bool {
        let class = class(*self.at(page));
        let Costs { dram, scm, backing } = self.costs;
        let chance = self.returned[class] / self.demoted[class];
        let fetch_ns = backing.read_page_ns + self.read_jumps * backing.read_jump_ns;
        let demote_ns = 64.0 * (dram.read_line_ns + scm.write_line_ns) + scm.operation_ns;
        if class < 2 {
            return 2.0 * chance * fetch_ns > demote_ns;
        }
        let jump_later_ns = self.write_jumps * backing.write_jump_ns;
        let write_ns = backing.write_page_ns + backing.turn_ns / f64::from(backing.batch_writes);
        let again_ns = fetch_ns + write_ns + jump_later_ns;
        let now_ns = jump(self.last_written, page) * backing.write_jump_ns + chance * again_ns;
        let read_ns = scm.operation_ns + 64.0 * scm.read_line_ns;
        now_ns > demote_ns + read_ns + jump_later_ns
    }

    fn leaver(&mut self) -> u32 {
        loop {
            let page = self.queue[0];
            if self.at(page).writes == 0 {
                return page;
            }
            self.at(page).writes -= 1;
            self.queue.rotate_left(1);
        }
    }

    fn demote(&mut self, page: u32, why: Reason, actions: &mut Vec<Action>) {
        self.queue.retain(|&its| its != page);
        let class = class(*self.at(page));
        self.demoted[class] += 1.0;
        let frames = f64::from(self.capacity.dram + self.capacity.scm);
        if self.demoted[class] > (frames / 4.0).max(4.0) * 8.0 {
            self.demoted[class] /= 2.0;
            self.returned[class] /= 2.0;
        }
        let its = self.at(page);
        (its.tier, its.writes, its.hit_in_dram) = (Tier::Scm, 0, false);
        its.trial = Some(class);
        let dirty = its.dirty;
        actions.push(Action::Move { page: PageNo(page), to: Tier::Scm, dirty, why });
    }

    fn evict_one(&mut self, actions: &mut Vec<Action>) {
        let frames = self.capacity.dram + self.capacity.scm;
        let most = (frames * self.rules.waiting_permille / 1000) as usize;
        loop {
            let waiting = self.waiting();
            if waiting.len() > most || self.list.is_empty() {
                let next = waiting.iter().find(|&&page| page >= self.write_hand);
                let page = *next.unwrap_or(&waiting[0]);
                self.write_hand = page + 1;
                let jumped = jump(self.last_written, page);
                self.write_jumps += (jumped - self.write_jumps) * (1.0 / 1024.0);
                self.last_written = Some(page);
                return self.leave(page, Reason::Victim, actions);
            }
            let page = self.candidate();
            if !self.at(page).dirty {
                return self.leave(page, Reason::Victim, actions);
            }
            self.unlist(page);
            self.at(page).waits = true;
        }
    }

    fn candidate(&mut self) -> u32 {
        loop {
            let page = self.list[self.hand];
            if self.rules.order == Order::Lru || !self.at(page).used {
                return page;
            }
            self.at(page).used = false;
            self.hand = (self.hand + 1) % self.list.len();
        }
    }

    fn unlist(&mut self, page: u32) {
        let at = self.list.iter().position(|&its| its == page).expect("it is listed");
        self.list.remove(at);
        if at < self.hand {
            self.hand -= 1;
        }
        if self.hand >= self.list.len() {
            self.hand = 0;
        }
    }

    fn leave(&mut self, page: u32, why: Reason, actions: &mut Vec<Action>) {
        let Page { dirty, tier: from, waits, .. } = *self.at(page);
        if !waits {
            self.unlist(page);
        }
        self.queue.retain(|&its| its != page);
        self.pages.retain(|its| its.page != page);
        let page = PageNo(page);
        actions.push(match dirty {
            true => Action::Evict { page, from, why },
            false => Action::Drop { page, from, why },
        });
    }
}

pub(in super::super) fn everbyte(
    capacity: Capacity,
    accesses: &[Access],
    rules: Rules,
    costs: Costs,
) -> Vec<Vec<Action>> {
    let begun = (f64::from(capacity.dram + capacity.scm) / 4.0).max(4.0);
    let mut model = Model {
        capacity,
        rules,
        pages: Vec::new(),
        list: Vec::new(),
        hand: 0,
        queue: Vec::new(),
        write_hand: 0,
        costs,
        demoted: [begun; 4],
        returned: [begun; 4],
        last_read: None,
        last_written: None,
        read_jumps: 0.5,
        write_jumps: 0.5,
        refused: 0,
        again: 0.2,
        straight: 0,
    };
    each(accesses, |access, actions| model.serve(access, actions))
}
