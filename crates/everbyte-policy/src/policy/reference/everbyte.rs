//! Our own policy: the paper's model says what is in the cache, and one vector, in the order of
//! sectors, where. Everything that the policy keeps up to date is counted anew each time here.
//!
//! [`Rule`]s can be left out, for a test that the comparison would notice.

use super::super::action::{Action, Reason, Tier};
use super::super::residents::Capacity;
use super::two_tiers::{PaperModel, each, fill, find, hit, new};
use crate::access::{Access, Op, PageNo};

/// What the policy would not be itself without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Rule {
    KeepWhatGoesSoon,
    StopLooking,
    TakeTheLongestLived,
    SpareTheUsed,
    SpareTheWritten,
    LargeWritesSpareTwice,
    MoveUpTheWritten,
    MoveUpLessIfInVain,
    StayWithinTheDebt,
    CountOwedPages,
    MoveUpWhenInDebt,
}

impl Rule {
    pub(in super::super) const ALL: [Self; 11] = [
        Self::KeepWhatGoesSoon,
        Self::StopLooking,
        Self::TakeTheLongestLived,
        Self::SpareTheUsed,
        Self::SpareTheWritten,
        Self::LargeWritesSpareTwice,
        Self::MoveUpTheWritten,
        Self::MoveUpLessIfInVain,
        Self::StayWithinTheDebt,
        Self::CountOwedPages,
        Self::MoveUpWhenInDebt,
    ];
}

#[derive(Clone, Copy)]
struct Placed {
    page: u32,
    tier: Tier,
    dirty: bool,
    used: bool,
    rounds: u32,
    came_up: bool,
    lines: u32,
}

struct Model {
    paper: PaperModel,
    pages: Vec<Placed>,
    capacity: Capacity,
    left_out: Option<Rule>,
    our_bytes: u64,
    their_bytes: u64,
    hand: u32,
    lines_to_move_up: u32,
    highest: u32,
}

/// `left_out` is no part of the policy.
pub(in super::super) fn everbyte(
    capacity: Capacity,
    accesses: &[Access],
    left_out: Option<Rule>,
) -> Vec<Vec<Action>> {
    let mut model = Model {
        paper: PaperModel::new(capacity, false),
        pages: Vec::new(),
        capacity,
        left_out,
        our_bytes: 0,
        their_bytes: 0,
        hand: 0,
        lines_to_move_up: 256,
        highest: 0,
    };
    each(accesses, |access, actions| model.access(access, actions))
}

impl Model {
    fn has(&self, rule: Rule) -> bool {
        self.left_out != Some(rule)
    }

    fn at(&self, page: u32) -> usize {
        self.pages.iter().position(|its| its.page == page).expect("it is in the cache")
    }

    fn papers_tier(&self, page: u32) -> Tier {
        if find(&self.paper.dram, page).is_some() { Tier::Dram } else { Tier::Pram }
    }

    fn owed(&self) -> usize {
        let is_owed =
            |its: &&Placed| its.tier == Tier::Dram && find(&self.paper.pram, its.page).is_some();
        self.pages.iter().filter(is_owed).count()
    }

    fn in_debt(&self) -> bool {
        let owed = if self.has(Rule::CountOwedPages) { self.owed() as u64 } else { 0 };
        let debt = self.our_bytes + owed * 4096;
        self.has(Rule::StayWithinTheDebt)
            && debt > self.their_bytes + self.their_bytes / 125 + 4 * 4096
    }

    fn access(&mut self, access: &Access, actions: &mut Vec<Action>) {
        self.highest = self.highest.max(access.page.0);
        let mut theirs = Vec::new();
        self.paper.access(access, &mut theirs);
        for action in theirs {
            match action {
                Action::Move { .. } => self.their_bytes += 4096,
                Action::Hit { served: Tier::Pram, .. } if access.op == Op::Write => {
                    self.their_bytes += u64::from(access.len);
                }
                Action::Drop { page, .. } | Action::Evict { page, .. } => {
                    let gone = self.pages.remove(self.at(page.0));
                    self.judge(gone);
                    let (page, from, why) = (PageNo(gone.page), gone.tier, Reason::Victim);
                    actions.push(if gone.dirty {
                        Action::Evict { page, from, why }
                    } else {
                        Action::Drop { page, from, why }
                    });
                }
                _ => {}
            }
        }
        if self.pages.iter().any(|its| its.page == access.page.0) {
            self.hit(access, actions);
        } else {
            self.miss(access, actions);
        }
    }

    fn hit(&mut self, access: &Access, actions: &mut Vec<Action>) {
        let (write, large) = (access.op == Op::Write, access.len > 512);
        let in_debt = self.in_debt();
        let papers_tier = self.papers_tier(access.page.0);
        let at = self.at(access.page.0);
        let found = self.pages[at].tier;
        self.pages[at].lines += if write { u32::from(access.len) / 64 + 1 } else { 0 };
        if found == Tier::Dram {
            self.pages[at].used = true;
            let large = large || !self.has(Rule::LargeWritesSpareTwice);
            let rounds = if write { 1 + u32::from(large) } else { 0 };
            self.pages[at].rounds = (self.pages[at].rounds + rounds).min(3);
        } else if write {
            let moves_up = if in_debt {
                papers_tier == Tier::Dram && self.has(Rule::MoveUpWhenInDebt)
            } else {
                self.pages[at].lines >= self.lines_to_move_up && self.has(Rule::MoveUpTheWritten)
            };
            if moves_up {
                self.move_up(at, actions);
            } else {
                self.our_bytes += u64::from(access.len);
            }
        }
        let at = self.at(access.page.0);
        self.pages[at].dirty |= write;
        actions.push(hit(found, self.pages[at].tier));
    }

    fn in_dram(&self) -> usize {
        self.pages.iter().filter(|its| its.tier == Tier::Dram).count()
    }

    /// The page leaves its place before another makes room for it.
    fn move_up(&mut self, at: usize, actions: &mut Vec<Action>) {
        let its = self.pages.remove(at);
        actions.push(moved(its, Tier::Dram, Reason::WriteHot));
        if self.in_dram() == self.capacity.dram as usize {
            self.move_down(Reason::Swapped, actions);
        }
        let came = Placed { tier: Tier::Dram, used: false, rounds: 3, came_up: true, ..its };
        self.insert(Placed { lines: 0, ..came });
    }

    fn insert(&mut self, page: Placed) {
        self.pages.push(page);
        self.pages.sort_by_key(|its| its.page);
    }

    fn miss(&mut self, access: &Access, actions: &mut Vec<Action>) {
        if self.in_dram() == self.capacity.dram as usize {
            let why = if self.in_debt() { Reason::Victim } else { Reason::LongToLive };
            self.move_down(why, actions);
        }
        let dirty = access.op == Op::Write;
        let (page, tier) = (new(access).page, Tier::Dram);
        self.insert(Placed { page, tier, dirty, used: dirty, rounds: 0, came_up: false, lines: 0 });
        actions.push(fill(access, Tier::Dram));
    }

    fn move_down(&mut self, why: Reason, actions: &mut Vec<Action>) {
        let page = self.choose();
        let at = self.at(page);
        let its = self.pages[at];
        self.judge(its);
        self.pages[at] = Placed { tier: Tier::Pram, rounds: 0, came_up: false, lines: 0, ..its };
        self.our_bytes += 4096;
        actions.push(moved(its, Tier::Pram, why));
    }

    fn judge(&mut self, gone: Placed) {
        if gone.came_up && gone.tier == Tier::Dram && self.has(Rule::MoveUpLessIfInVain) {
            self.lines_to_move_up = if gone.lines < 256 {
                (self.lines_to_move_up * 2).min(32768)
            } else {
                (self.lines_to_move_up / 2).max(256)
            };
        }
    }

    /// Our pages of DRAM from the hand on, around.
    fn dram_around(&self) -> Vec<u32> {
        let dram = self.pages.iter().filter(|its| its.tier == Tier::Dram).map(|its| its.page);
        let (before, after): (Vec<u32>, Vec<u32>) = dram.partition(|&page| page < self.hand);
        [after, before].concat()
    }

    /// The next page that may be chosen, over which the hand moves.
    fn candidate(&mut self, in_debt: bool) -> u32 {
        loop {
            let theirs = |page: &u32| !in_debt || self.papers_tier(*page) == Tier::Pram;
            let page = self.dram_around().into_iter().find(theirs).expect("there always is one");
            self.hand = page + 1;
            let at = self.at(page);
            if self.pages[at].used && self.has(Rule::SpareTheUsed) && !in_debt {
                self.pages[at].used = false;
            } else if self.pages[at].rounds > 0 && self.has(Rule::SpareTheWritten) && !in_debt {
                self.pages[at].rounds -= 1;
            } else {
                return page;
            }
        }
    }

    fn choose(&mut self) -> u32 {
        let in_debt = self.in_debt();
        let turn = u64::from(self.highest) + 1;
        let most = if self.has(Rule::StopLooking) { 32 } else { 64 };
        let mut seen = Vec::new();
        while seen.len() < most {
            let page = self.candidate(in_debt);
            if self.life(page) >= turn || !self.has(Rule::KeepWhatGoesSoon) {
                return page;
            }
            seen.push(page);
        }
        let longest = seen.iter().map(|&page| self.life(page)).max();
        let is_longest = |page: &&u32| Some(self.life(**page)) == longest;
        let first = seen.iter().find(is_longest).copied();
        if self.has(Rule::TakeTheLongestLived) { first.expect("pages were seen") } else { seen[0] }
    }

    /// How far the paper's hand over PRAM has to go until the page is given up.
    fn life(&self, page: u32) -> u64 {
        let (paper, turn) = (&self.paper, u64::from(self.highest) + 1);
        if paper.pram.len() < self.capacity.pram as usize {
            return 2 * turn;
        }
        let way = (turn + u64::from(page) - u64::from(paper.pram_hand)) % turn;
        let clean_goes = paper.pram.iter().any(|its| !its.dirty && !its.referenced);
        if let Some(at) = find(&paper.pram, page) {
            let its = paper.pram[at];
            return match (clean_goes, its.dirty || its.referenced) {
                (true, true) => 2 * turn,
                (true, false) => way,
                (false, _) => way + if its.referenced { turn } else { 0 },
            };
        }
        let its = paper.dram[find(&paper.dram, page).expect("the paper's policy has it as well")];
        match (its.dirty, its.referenced) {
            (false, _) if !clean_goes => 0,
            (false, false) => way,
            _ => way + turn,
        }
    }
}

fn moved(its: Placed, to: Tier, why: Reason) -> Action {
    let lines = super::super::action::LineMask::ALL;
    Action::Move { page: PageNo(its.page), to, lines, dirty: its.dirty, why }
}
