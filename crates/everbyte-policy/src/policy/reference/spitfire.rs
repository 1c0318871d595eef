//! Spitfire: two queues, oldest first, and for each page the version of its bytes in both tiers and
//! on the backing device. Dirty pages and differing copies follow from that.

use std::collections::BTreeMap;

use super::super::action::{Action, Reason, Tier};
use super::super::directory::Capacity;
use super::super::spitfire::{Draws, SpitfireConfig};
use crate::access::{Access, Op, PageNo};

/// A copy of a page.
#[derive(Clone, Copy)]
struct Copy {
    page: u32,
    version: usize,
    referenced: bool,
}

struct Model {
    capacity: Capacity,
    dram: Vec<Copy>,
    scm: Vec<Copy>,
    storage: BTreeMap<u32, usize>,
}

fn find(copies: &[Copy], page: u32) -> Option<usize> {
    copies.iter().position(|copy| copy.page == page)
}

/// Takes the copy that a CLOCK would: spared ones go to the end.
fn take_victim(copies: &mut Vec<Copy>) -> Copy {
    loop {
        let copy = copies.remove(0);
        if !copy.referenced {
            return copy;
        }
        copies.push(Copy { referenced: false, ..copy });
    }
}

impl Model {
    fn stored(&self, page: u32) -> usize {
        self.storage.get(&page).copied().unwrap_or(0)
    }

    fn gone(&mut self, copy: Copy, from: Tier, actions: &mut Vec<Action>) {
        let (page, why) = (PageNo(copy.page), Reason::Victim);
        if copy.version > self.stored(copy.page) {
            self.storage.insert(copy.page, copy.version);
            actions.push(Action::Evict { page, from, why });
        } else {
            actions.push(Action::Drop { page, from, why });
        }
    }

    fn room_in_scm(&mut self, actions: &mut Vec<Action>) {
        if self.scm.len() < self.capacity.scm as usize {
            return;
        }
        let copy = take_victim(&mut self.scm);
        if find(&self.dram, copy.page).is_some() {
            let (page, from, why) = (PageNo(copy.page), Tier::Scm, Reason::Duplicate);
            actions.push(Action::Drop { page, from, why });
        } else {
            self.gone(copy, Tier::Scm, actions);
        }
    }

    /// `coming` is on its way to DRAM, which counts as being there.
    fn room_in_dram(
        &mut self,
        config: &SpitfireConfig,
        draws: &mut Draws,
        coming: Option<u32>,
        actions: &mut Vec<Action>,
    ) {
        if self.dram.len() < self.capacity.dram as usize {
            return;
        }
        let copy = take_victim(&mut self.dram);
        let page = PageNo(copy.page);
        let dirty = copy.version > self.stored(copy.page);
        if let Some(at) = find(&self.scm, copy.page) {
            if self.scm[at].version < copy.version {
                self.scm[at].version = copy.version;
                actions.push(Action::Update { page, dirty, why: Reason::Victim });
            }
            let (from, why) = (Tier::Dram, Reason::Duplicate);
            actions.push(Action::Drop { page, from, why });
        } else if dirty && draws.met(config.scm_from_dram) {
            // Stands for the arriving page, so that SCM knows about the second copy.
            let guest = coming.map(|page| Copy { page, version: 0, referenced: true });
            self.dram.extend(guest);
            self.room_in_scm(actions);
            if guest.is_some() {
                self.dram.pop();
            }
            self.scm.push(Copy { referenced: false, ..copy });
            let (to, why) = (Tier::Scm, Reason::DirtyVictim);
            actions.push(Action::Move { page, to, dirty, why });
        } else {
            self.gone(copy, Tier::Dram, actions);
        }
    }
}

pub(in super::super) fn spitfire(
    capacity: Capacity,
    accesses: &[Access],
    config: SpitfireConfig,
) -> Vec<Vec<Action>> {
    let mut draws = Draws::new(config.seed);
    let storage = BTreeMap::new();
    let mut model = Model { capacity, dram: Vec::new(), scm: Vec::new(), storage };
    let mut told = Vec::new();
    for (number, access) in accesses.iter().enumerate() {
        let mut actions = Vec::new();
        let page = access.page.0;
        let (up, hot, written) = match access.op {
            Op::Read => (config.dram_for_reads, Reason::ReadHot, None),
            Op::Write => (config.dram_for_writes, Reason::WriteHot, Some(number + 1)),
        };
        if let Some(at) = find(&model.dram, page) {
            model.dram[at].referenced = true;
            model.dram[at].version = written.unwrap_or(model.dram[at].version);
            actions.push(Action::Hit { found: Tier::Dram, served: Tier::Dram });
        } else if let Some(at) = find(&model.scm, page) {
            model.scm[at].referenced = true;
            if draws.met(up) {
                let version = written.unwrap_or(model.scm[at].version);
                actions.push(Action::Copy { page: access.page, why: hot });
                model.room_in_dram(&config, &mut draws, Some(page), &mut actions);
                model.dram.push(Copy { page, version, referenced: false });
                actions.push(Action::Hit { found: Tier::Scm, served: Tier::Dram });
            } else {
                model.scm[at].version = written.unwrap_or(model.scm[at].version);
                actions.push(Action::Hit { found: Tier::Scm, served: Tier::Scm });
            }
        } else {
            let version = written.unwrap_or(model.stored(page));
            let copy = Copy { page, version, referenced: false };
            let mut tier = Tier::Dram;
            if !draws.met(up) && draws.met(config.scm_from_backing) {
                tier = Tier::Scm;
                model.room_in_scm(&mut actions);
                model.scm.push(copy);
            } else {
                model.room_in_dram(&config, &mut draws, None, &mut actions);
                model.dram.push(copy);
            }
            let why = Reason::of_miss(access.op);
            actions.push(Action::Fill { page: access.page, tier, why });
        }
        told.push(actions);
    }
    told
}
