//! Policies of two tiers. Each keeps one vector of pages, in the order of its hands and queues.

use super::super::action::{Action, Reason, Tier};
use super::super::directory::Capacity;
use super::super::hybrid::CleanVictims;
use crate::access::{Access, Op, PageNo};

#[derive(Clone, Copy)]
pub(super) struct Page {
    pub(super) page: u32,
    pub(super) dirty: bool,
    pub(super) referenced: bool,
    /// Written since the hand came by; written once in SCM; hit in DRAM.
    marked: bool,
    count: u32,
    rounds: u32,
}

pub(super) fn new(access: &Access) -> Page {
    let dirty = access.op == Op::Write;
    Page { page: access.page.0, dirty, referenced: false, marked: false, count: 0, rounds: 0 }
}

pub(super) fn hit(found: Tier, served: Tier) -> Action {
    Action::Hit { found, served }
}

pub(super) fn fill(access: &Access, tier: Tier) -> Action {
    Action::Fill { page: access.page, tier, why: Reason::of_miss(access.op) }
}

fn gone(page: Page, from: Tier, why: Reason) -> Action {
    if page.dirty {
        Action::Evict { page: PageNo(page.page), from, why }
    } else {
        Action::Drop { page: PageNo(page.page), from, why }
    }
}

fn moved(page: Page, to: Tier, why: Reason) -> Action {
    let (dirty, page) = (page.dirty, PageNo(page.page));
    Action::Move { page, to, dirty, why }
}

pub(super) fn find(pages: &[Page], page: u32) -> Option<usize> {
    pages.iter().position(|its| its.page == page)
}

pub(super) fn each(
    accesses: &[Access],
    mut serve: impl FnMut(&Access, &mut Vec<Action>),
) -> Vec<Vec<Action>> {
    let of_one = |access| {
        let mut actions = Vec::new();
        serve(access, &mut actions);
        actions
    };
    accesses.iter().map(of_one).collect()
}

/// Takes the victim of a CLOCK: a queue, oldest first, in which spared pages move to the end.
fn take_clock_victim(pages: &mut Vec<Page>) -> Page {
    loop {
        let page = pages.remove(0);
        if !page.referenced {
            return page;
        }
        pages.push(Page { referenced: false, ..page });
    }
}

/// An arrival that knows nothing but whether it is dirty.
fn plain(page: Page) -> Page {
    Page { referenced: false, marked: false, count: 0, rounds: 0, ..page }
}

pub(in super::super) fn clock_migration(
    capacity: Capacity,
    accesses: &[Access],
) -> Vec<Vec<Action>> {
    let (mut dram, mut scm) = (Vec::new(), Vec::new());
    each(accesses, |access, actions| {
        for (tier, pages) in [(Tier::Dram, &mut dram), (Tier::Scm, &mut scm)] {
            if let Some(at) = find(pages, access.page.0) {
                pages[at].referenced = true;
                pages[at].dirty |= access.op == Op::Write;
                actions.push(hit(tier, tier));
                return;
            }
        }
        if dram.len() == capacity.dram as usize {
            if scm.len() == capacity.scm as usize {
                let victim = take_clock_victim(&mut scm);
                actions.push(gone(victim, Tier::Scm, Reason::Victim));
            }
            let page = plain(take_clock_victim(&mut dram));
            scm.push(page);
            actions.push(moved(page, Tier::Scm, Reason::Victim));
        }
        dram.push(new(access));
        actions.push(fill(access, Tier::Dram));
    })
}

/// The place of the first page from the hand on, around, that is as wanted.
fn from_hand(pages: &[Page], hand: u32, wanted: impl Fn(&Page) -> bool) -> Option<usize> {
    let after = pages.iter().position(|page| page.page >= hand && wanted(page));
    after.or_else(|| pages.iter().position(wanted))
}

/// Takes the page at which a hand over sorted pages stops, and moves the hand behind it.
fn take_sorted_victim(pages: &mut Vec<Page>, hand: &mut u32) -> Page {
    loop {
        let at = from_hand(pages, *hand, |_| true).expect("a full tier has a page");
        *hand = pages[at].page + 1;
        if !pages[at].referenced {
            return pages.remove(at);
        }
        pages[at].referenced = false;
    }
}

fn insert_sorted(pages: &mut Vec<Page>, page: Page) {
    pages.push(page);
    pages.sort_by_key(|page| page.page);
}

pub(in super::super) fn hybrid(
    capacity: Capacity,
    accesses: &[Access],
    pseudo_code: bool,
    clean_victims: CleanVictims,
) -> Vec<Vec<Action>> {
    let mut model = PaperModel::new(capacity, pseudo_code, clean_victims);
    each(accesses, |access, actions| model.access(access, actions))
}

/// The paper's policy: the pages of each of its tiers.
struct PaperModel {
    dram: Vec<Page>,
    scm: Vec<Page>,
    dram_hand: u32,
    scm_hand: u32,
    capacity: Capacity,
    pseudo_code: bool,
    clean_victims: CleanVictims,
}

impl PaperModel {
    fn new(capacity: Capacity, pseudo_code: bool, clean_victims: CleanVictims) -> Self {
        let (dram, scm) = (Vec::new(), Vec::new());
        Self { dram, scm, dram_hand: 0, scm_hand: 0, capacity, pseudo_code, clean_victims }
    }

    fn access(&mut self, access: &Access, actions: &mut Vec<Action>) {
        let write = access.op == Op::Write;
        let large = write && access.len > 512;
        if let Some(at) = find(&self.dram, access.page.0) {
            let page = &mut self.dram[at];
            let reason = if self.pseudo_code { !page.dirty || large } else { !write || large };
            page.referenced |= reason;
            page.dirty |= write;
            page.marked = true;
            actions.push(hit(Tier::Dram, Tier::Dram));
            return;
        }
        if let Some(at) = find(&self.scm, access.page.0) {
            let page = &mut self.scm[at];
            page.referenced |= !large || (self.pseudo_code && !page.dirty);
            page.dirty |= write;
            actions.push(hit(Tier::Scm, Tier::Scm));
            return;
        }
        if self.dram.len() == self.capacity.dram as usize {
            self.make_room(actions);
        }
        let referenced = if self.pseudo_code { !write || large } else { write };
        insert_sorted(&mut self.dram, Page { referenced, ..new(access) });
        actions.push(fill(access, Tier::Dram));
    }

    fn drops(&self, clean: Page) -> bool {
        match self.clean_victims {
            CleanVictims::Move => false,
            CleanVictims::Drop => true,
            CleanVictims::DropUnused => !clean.marked,
        }
    }

    fn make_room(&mut self, actions: &mut Vec<Action>) {
        let is_spare = |page: &Page| !page.dirty && !page.referenced;
        let mut page = take_sorted_victim(&mut self.dram, &mut self.dram_hand);
        let scm_is_full = self.scm.len() == self.capacity.scm as usize;
        let why = if page.dirty && !self.pseudo_code {
            Some(Reason::DirtyVictim)
        } else if !scm_is_full {
            Some(Reason::FreeFrame)
        } else if !page.dirty && self.drops(page) {
            None
        } else {
            self.scm.iter().any(is_spare).then_some(Reason::ColderPage)
        };
        if why.is_some() && scm_is_full {
            let victim = match from_hand(&self.scm, self.scm_hand, is_spare) {
                Some(at) => self.scm.remove(at),
                None => take_sorted_victim(&mut self.scm, &mut self.scm_hand),
            };
            self.scm_hand = victim.page + 1;
            actions.push(gone(victim, Tier::Scm, Reason::Victim));
        }
        match why {
            None => actions.push(gone(page, Tier::Dram, Reason::NoRoomBelow)),
            Some(why) => {
                page.referenced = page.dirty;
                insert_sorted(&mut self.scm, page);
                actions.push(moved(page, Tier::Scm, why));
            }
        }
    }
}

/// Takes the page at which CLOCK-DWF's hand over DRAM stops. Oldest first.
fn take_dwf_victim(dram: &mut Vec<Page>) -> Page {
    loop {
        let sum: u32 = dram.iter().map(|page| page.count).sum();
        let hot = dram[0].count as usize * dram.len() > sum as usize;
        let mut page = dram.remove(0);
        if page.marked {
            page.marked = false;
            page.count += 1;
            page.rounds = 0;
        } else if hot && page.rounds < 8 {
            page.rounds += 1;
        } else {
            return page;
        }
        dram.push(page);
    }
}

pub(in super::super) fn clock_dwf(capacity: Capacity, accesses: &[Access]) -> Vec<Vec<Action>> {
    let (mut dram, mut scm) = (Vec::<Page>::new(), Vec::<Page>::new());
    each(accesses, |access, actions| {
        let write = access.op == Op::Write;
        if let Some(at) = find(&dram, access.page.0) {
            dram[at].marked |= write;
            dram[at].dirty |= write;
            actions.push(hit(Tier::Dram, Tier::Dram));
            return;
        }
        let in_scm = find(&scm, access.page.0);
        if let (Some(at), false) = (in_scm, write) {
            scm[at].referenced = true;
            actions.push(hit(Tier::Scm, Tier::Scm));
            return;
        }
        if let Some(at) = in_scm {
            actions.push(moved(scm.remove(at), Tier::Dram, Reason::WriteHot));
        }
        let why = if in_scm.is_some() { Reason::Swapped } else { Reason::Victim };
        let demotes = write && dram.len() == capacity.dram as usize;
        if (demotes || !write) && scm.len() == capacity.scm as usize {
            let victim = take_clock_victim(&mut scm);
            actions.push(gone(victim, Tier::Scm, Reason::Victim));
        }
        if demotes {
            let page = plain(take_dwf_victim(&mut dram));
            scm.push(page);
            actions.push(moved(page, Tier::Scm, why));
        }
        let (pages, tier) = if write { (&mut dram, Tier::Dram) } else { (&mut scm, Tier::Scm) };
        pages.push(Page { marked: write, ..new(access) });
        actions.push(match in_scm {
            Some(_) => hit(Tier::Scm, Tier::Dram),
            None => fill(access, tier),
        });
    })
}

fn take_m_clock_victim(dram: &mut Vec<Page>) -> Page {
    for _ in 0..dram.len().min(64) {
        let page = dram.remove(0);
        if !page.dirty && !page.referenced {
            return page;
        }
        dram.push(Page { referenced: false, ..page });
    }
    take_clock_victim(dram)
}

pub(in super::super) fn m_clock(capacity: Capacity, accesses: &[Access]) -> Vec<Vec<Action>> {
    let (mut dram, mut scm) = (Vec::<Page>::new(), Vec::<Page>::new());
    each(accesses, |access, actions| {
        let write = access.op == Op::Write;
        if let Some(at) = find(&dram, access.page.0) {
            dram[at].referenced = true;
            dram[at].dirty |= write;
            actions.push(hit(Tier::Dram, Tier::Dram));
            return;
        }
        let in_scm = find(&scm, access.page.0);
        let promotes = in_scm.is_some_and(|at| write && scm[at].marked);
        if let (Some(at), false) = (in_scm, promotes) {
            scm[at].referenced = true;
            scm[at].marked |= write;
            scm[at].dirty |= write;
            actions.push(hit(Tier::Scm, Tier::Scm));
            return;
        }
        if let Some(at) = in_scm {
            actions.push(moved(scm.remove(at), Tier::Dram, Reason::WriteHot));
        }
        let why = if promotes { Reason::Swapped } else { Reason::Victim };
        let demotes = write && dram.len() == capacity.dram as usize;
        if (demotes || !write) && scm.len() == capacity.scm as usize {
            let victim = take_clock_victim(&mut scm);
            actions.push(gone(victim, Tier::Scm, Reason::Victim));
        }
        if demotes {
            let page = plain(take_m_clock_victim(&mut dram));
            scm.push(page);
            actions.push(moved(page, Tier::Scm, why));
        }
        let (pages, tier) = if write { (&mut dram, Tier::Dram) } else { (&mut scm, Tier::Scm) };
        pages.push(Page { referenced: promotes, ..new(access) });
        let in_place = if promotes { hit(Tier::Scm, Tier::Dram) } else { fill(access, tier) };
        actions.push(in_place);
    })
}

#[derive(Clone, Copy)]
struct TrackedPage {
    page: Page,
    tier: Tier,
    /// Writes in SCM; the share of writes among uses.
    weight: u8,
    /// The moment when it last joined its queue.
    joined: usize,
}

fn count(pages: &[TrackedPage], tier: Tier) -> u32 {
    pages.iter().map(|its| u32::from(its.tier == tier)).sum()
}

/// A tier with a free frame, the first that has one of those in `order`; else the oldest page goes.
fn make_room(
    pages: &mut Vec<TrackedPage>,
    capacity: Capacity,
    order: [Tier; 2],
    actions: &mut Vec<Action>,
) -> Tier {
    for tier in order {
        if count(pages, tier) < capacity.of(tier) {
            return tier;
        }
    }
    let oldest = pages.remove(0);
    actions.push(gone(oldest.page, oldest.tier, Reason::Victim));
    oldest.tier
}

/// All pages, the one not used for longest first.
pub(in super::super) fn pdram(capacity: Capacity, accesses: &[Access]) -> Vec<Vec<Action>> {
    let mut pages: Vec<TrackedPage> = Vec::new();
    let mut now = 0;
    each(accesses, |access, actions| {
        now += 1;
        let write = access.op == Op::Write;
        let Some(at) = pages.iter().position(|its| its.page.page == access.page.0) else {
            let tier = make_room(&mut pages, capacity, [Tier::Dram, Tier::Scm], actions);
            pages.push(TrackedPage { page: new(access), tier, weight: 0, joined: now });
            actions.push(fill(access, tier));
            return;
        };
        let mut its = pages.remove(at);
        let found = its.tier;
        its.joined = now;
        its.weight += u8::from(write && found == Tier::Scm);
        if its.weight == 8 {
            its.weight = 0;
            its.tier = Tier::Dram;
            actions.push(moved(its.page, Tier::Dram, Reason::WriteHot));
            if count(&pages, Tier::Dram) == capacity.dram {
                // DRAM's pages are in the order of their last use there, or of their coming.
                let oldest = pages
                    .iter_mut()
                    .filter(|other| other.tier == Tier::Dram)
                    .min_by_key(|other| other.joined)
                    .expect("a full tier has a page");
                oldest.tier = Tier::Scm;
                actions.push(moved(oldest.page, Tier::Scm, Reason::Swapped));
            }
        }
        actions.push(hit(found, its.tier));
        its.page.dirty |= write;
        pages.push(its);
    })
}

/// All pages, the one not used for longest first; queues by when a page joined its own.
pub(in super::super) fn four_queue(capacity: Capacity, accesses: &[Access]) -> Vec<Vec<Action>> {
    let mut pages: Vec<TrackedPage> = Vec::new();
    let mut now = 0;
    each(accesses, |access, actions| {
        now += 10;
        let write = access.op == Op::Write;
        let Some(at) = pages.iter().position(|its| its.page.page == access.page.0) else {
            let order = if write { [Tier::Dram, Tier::Scm] } else { [Tier::Scm, Tier::Dram] };
            let tier = make_room(&mut pages, capacity, order, actions);
            let weight = if write { 255 } else { 0 };
            pages.push(TrackedPage { page: new(access), tier, weight, joined: now });
            actions.push(fill(access, tier));
            return;
        };
        let mut its = pages.remove(at);
        let found = its.tier;
        its.joined = now;
        its.weight = if write {
            its.weight + (255 - its.weight).div_ceil(4)
        } else {
            its.weight - its.weight.div_ceil(4)
        };
        if write && found == Tier::Scm && its.weight >= 192 {
            its.tier = Tier::Dram;
            actions.push(moved(its.page, Tier::Dram, Reason::WriteHot));
            if count(&pages, Tier::Dram) == capacity.dram {
                let oldest = pages
                    .iter_mut()
                    .filter(|other| other.tier == Tier::Dram)
                    .min_by_key(|other| (other.weight > 127, other.joined))
                    .expect("a full tier has a page");
                oldest.tier = Tier::Scm;
                oldest.joined = now + 1;
                actions.push(moved(oldest.page, Tier::Scm, Reason::Swapped));
            }
        }
        actions.push(hit(found, its.tier));
        its.page.dirty |= write;
        pages.push(its);
    })
}
