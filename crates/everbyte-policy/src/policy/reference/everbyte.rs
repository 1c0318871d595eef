//! The policy `everbyte`: the model of the paper's policy says which pages are cached, and one
//! vector, in the order of sectors, which of them are here and in which tier. Everything countable
//! is counted anew each time.
//!
//! [`Rule`]s can be left out, for a test that the comparison would notice.

use std::collections::BTreeMap;

use super::super::action::{Action, LineMask, Reason, Tier};
use super::super::directory::Capacity;
use super::two_tiers::{PaperModel, each, find, hit};
use crate::access::{Access, Op, PageNo};

/// A rule of the policy. Without any one of them the actions differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Rule {
    KeepWhatGoesSoon,
    StopLooking,
    TakeTheLongestLived,
    SpareTheUsed,
    SpareTheWritten,
    LargeWritesSpareTwice,
    PromoteTheWritten,
    PromoteLessIfInVain,
    StayWithinTheDebt,
    CountMisplacedPages,
    CountDroppedPages,
    MoveUpWhenInDebt,
    FillScmWhenNothingIsMisplaced,
    DropTheSeldomUsed,
    TellHitsApart,
    TellRunsApart,
    TellReturnsApart,
    KeepWhatWasGivenUp,
    StayWithinTheMisses,
    CountMissesToCome,
    StayWithinTheJumps,
}

impl Rule {
    pub(in super::super) const ALL: [Self; 21] = [
        Self::KeepWhatGoesSoon,
        Self::StopLooking,
        Self::TakeTheLongestLived,
        Self::SpareTheUsed,
        Self::SpareTheWritten,
        Self::LargeWritesSpareTwice,
        Self::PromoteTheWritten,
        Self::PromoteLessIfInVain,
        Self::StayWithinTheDebt,
        Self::CountMisplacedPages,
        Self::CountDroppedPages,
        Self::MoveUpWhenInDebt,
        Self::FillScmWhenNothingIsMisplaced,
        Self::DropTheSeldomUsed,
        Self::TellHitsApart,
        Self::TellRunsApart,
        Self::TellReturnsApart,
        Self::KeepWhatWasGivenUp,
        Self::StayWithinTheMisses,
        Self::CountMissesToCome,
        Self::StayWithinTheJumps,
    ];
}

/// Hits in DRAM, whether it came in a run, whether it was used again before.
type Class = (u32, bool, bool);

#[derive(Clone, Copy)]
struct Placed {
    page: u32,
    tier: Tier,
    dirty: bool,
    used: bool,
    rounds: u32,
    promoted: bool,
    lines: u32,
    hits: u32,
    in_run: bool,
    used_again: bool,
    watched: Option<Class>,
}

/// Misses of a policy, and the jumps of the backing device for them.
#[derive(Default)]
struct Missed {
    pages: Vec<u32>,
    jumps: u64,
    read_last: Option<u32>,
}

impl Missed {
    fn add(&mut self, access: &Access) {
        let page = access.page.0;
        self.pages.push(page);
        if access.op == Op::Read || access.len < 4096 {
            // The backing device stands before its first page.
            let next = self.read_last.map_or(0, |last| last + 1);
            self.jumps += u64::from(!(next..next + 8).contains(&page));
            self.read_last = Some(page);
        }
    }

    fn count(&self) -> u64 {
        self.pages.len() as u64
    }
}

struct Model {
    paper: PaperModel,
    pages: Vec<Placed>,
    /// Pages that we dropped and the paper's policy has, and what was expected of them.
    dropped: BTreeMap<u32, Option<Class>>,
    /// Pages of a class that were used again, and all.
    seen: BTreeMap<Class, (u32, u32)>,
    capacity: Capacity,
    left_out: Option<Rule>,
    accesses: u64,
    our_bytes: u64,
    their_bytes: u64,
    our_misses: Missed,
    their_misses: Missed,
    hand: u32,
    extra_hands: [u32; 2],
    lines_to_promote: u32,
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
        dropped: BTreeMap::new(),
        seen: BTreeMap::new(),
        capacity,
        left_out,
        accesses: 0,
        our_bytes: 0,
        their_bytes: 0,
        our_misses: Missed::default(),
        their_misses: Missed::default(),
        hand: 0,
        extra_hands: [0; 2],
        lines_to_promote: 128,
        highest: 0,
    };
    each(accesses, |access, actions| model.access(access, actions))
}

impl Model {
    fn has(&self, rule: Rule) -> bool {
        self.left_out != Some(rule)
    }

    fn position(&self, page: u32) -> Option<usize> {
        self.pages.iter().position(|its| its.page == page)
    }

    fn at(&self, page: u32) -> usize {
        self.position(page).expect("it is in the cache")
    }

    fn papers_tier(&self, page: u32) -> Option<Tier> {
        let in_dram = find(&self.paper.dram, page).map(|_| Tier::Dram);
        in_dram.or(find(&self.paper.scm, page).map(|_| Tier::Scm))
    }

    fn misplaced(&self) -> u64 {
        let is_counted =
            |its: &&Placed| its.tier == Tier::Dram && self.papers_tier(its.page) == Some(Tier::Scm);
        self.pages.iter().filter(is_counted).count() as u64
    }

    fn over_budget(&self) -> bool {
        let misplaced = if self.has(Rule::CountMisplacedPages) { self.misplaced() } else { 0 };
        let dropped = self.dropped.len() as u64;
        let dropped = if self.has(Rule::CountDroppedPages) { dropped } else { 0 };
        let spent = self.our_bytes + (misplaced + dropped) * 4096;
        self.has(Rule::StayWithinTheDebt)
            && spent > self.their_bytes + self.their_bytes / 125 + 4 * 4096
    }

    fn jumps_too_often(&self) -> bool {
        let theirs = self.their_misses.jumps;
        self.has(Rule::StayWithinTheJumps) && self.our_misses.jumps > theirs + theirs / 64 + 8
    }

    fn may_drop(&self, class: Class) -> bool {
        let (again, all) = self.seen.get(&class).copied().unwrap_or_default();
        let share = f64::from(again + 4) / f64::from(all + 8);
        let theirs = self.their_misses.count();
        let may = theirs + (self.accesses / 210).min(theirs / 32);
        let to_come = if self.has(Rule::CountMissesToCome) { self.dropped.len() as u64 } else { 0 };
        let is_few = self.our_misses.count() + to_come < may;
        self.has(Rule::DropTheSeldomUsed)
            && share <= 5.0 / 16.0
            && (is_few || !self.has(Rule::StayWithinTheMisses))
            && !self.jumps_too_often()
    }

    fn access(&mut self, access: &Access, actions: &mut Vec<Action>) {
        self.accesses += 1;
        self.highest = self.highest.max(access.page.0);
        let mut theirs = Vec::new();
        self.paper.access(access, &mut theirs);
        if theirs.iter().any(|action| matches!(action, Action::Fill { .. })) {
            self.their_misses.add(access);
        }
        for action in theirs {
            match action {
                Action::Move { .. } => self.their_bytes += 4096,
                Action::Hit { served: Tier::Scm, .. } if access.op == Op::Write => {
                    self.their_bytes += u64::from(access.len);
                }
                Action::Drop { page, .. } | Action::Evict { page, .. } => {
                    self.evicted(page.0, actions);
                }
                _ => {}
            }
        }
        if self.position(access.page.0).is_some() {
            self.hit(access, actions);
        } else {
            self.miss(access, actions);
        }
    }

    fn evicted(&mut self, page: u32, actions: &mut Vec<Action>) {
        if let Some(watched) = self.dropped.remove(&page) {
            self.learn(watched, false);
            return;
        }
        let at = self.at(page);
        let watched = self.pages[at].watched.take();
        self.learn(watched, false);
        let stays = !self.pages[at].dirty && self.has(Rule::KeepWhatWasGivenUp);
        if !stays || self.jumps_too_often() {
            self.evict(page, Reason::Victim, actions);
        }
    }

    fn learn(&mut self, watched: Option<Class>, used: bool) {
        if let Some(class) = watched {
            let (again, all) = self.seen.entry(class).or_default();
            (*again, *all) = (*again + u32::from(used), *all + 1);
            if *all == 512 {
                (*again, *all) = (*again / 2, 256);
            }
        }
    }

    fn evict(&mut self, page: u32, why: Reason, actions: &mut Vec<Action>) {
        let gone = self.pages.remove(self.at(page));
        self.judge(gone);
        let (page, from) = (PageNo(gone.page), gone.tier);
        actions.push(if gone.dirty {
            Action::Evict { page, from, why }
        } else {
            Action::Drop { page, from, why }
        });
    }

    fn hit(&mut self, access: &Access, actions: &mut Vec<Action>) {
        let (write, large) = (access.op == Op::Write, access.len > 512);
        let over_budget = self.over_budget();
        let papers_tier = self.papers_tier(access.page.0);
        let at = self.at(access.page.0);
        if let Some(watched) = self.pages[at].watched.take() {
            self.learn(Some(watched), true);
            self.pages[at].used_again = true;
        }
        let found = self.pages[at].tier;
        self.pages[at].lines += if write { u32::from(access.len) / 64 + 1 } else { 0 };
        if found == Tier::Dram {
            self.pages[at].used = true;
            self.pages[at].hits += 1;
            let large = large || !self.has(Rule::LargeWritesSpareTwice);
            let rounds = if write { 1 + u32::from(large) } else { 0 };
            self.pages[at].rounds = (self.pages[at].rounds + rounds).min(3);
        } else if write {
            let promotes = if over_budget {
                papers_tier == Some(Tier::Dram) && self.has(Rule::MoveUpWhenInDebt)
            } else {
                self.pages[at].lines >= self.lines_to_promote && self.has(Rule::PromoteTheWritten)
            };
            if promotes {
                self.promote(at, actions);
            } else {
                self.our_bytes += u64::from(access.len);
            }
        }
        let at = self.at(access.page.0);
        self.pages[at].dirty |= write;
        actions.push(hit(found, self.pages[at].tier));
    }

    fn in_tier(&self, tier: Tier) -> usize {
        self.pages.iter().filter(|its| its.tier == tier).count()
    }

    fn is_full(&self, tier: Tier) -> bool {
        self.in_tier(tier) == self.capacity.of(tier) as usize
    }

    /// Promotes a page. It leaves its place before another makes room for it.
    fn promote(&mut self, at: usize, actions: &mut Vec<Action>) {
        let its = self.pages.remove(at);
        actions.push(moved(its, Tier::Dram, Reason::WriteHot));
        if self.is_full(Tier::Dram) {
            self.make_room(Reason::Swapped, actions);
        }
        let came = Placed { dirty: its.dirty, ..placed(its.page, Tier::Dram) };
        self.insert(Placed { rounds: 3, promoted: true, hits: 3, used_again: true, ..came });
    }

    fn insert(&mut self, page: Placed) {
        self.pages.push(page);
        self.pages.sort_by_key(|its| its.page);
    }

    fn miss(&mut self, access: &Access, actions: &mut Vec<Action>) {
        let page = access.page.0;
        let in_run = page > 0 && self.our_misses.pages.last() == Some(&(page - 1));
        self.our_misses.add(access);
        let tier = self.room_for_missed(actions);
        let dropped = self.dropped.remove(&page);
        let came_back = dropped.is_some();
        self.learn(dropped.flatten(), true);
        let dirty = access.op == Op::Write;
        let used_again = came_back;
        self.insert(Placed { dirty, used: dirty, in_run, used_again, ..placed(page, tier) });
        self.our_bytes += if tier == Tier::Scm { 4096 } else { 0 };
        let why = if came_back { Reason::GhostHit } else { Reason::of_miss(access.op) };
        actions.push(Action::Fill { page: access.page, tier, why });
    }

    fn room_for_missed(&mut self, actions: &mut Vec<Action>) -> Tier {
        if !self.is_full(Tier::Dram) || self.drop_extra(Tier::Dram, actions) {
            return Tier::Dram;
        }
        let over_budget = self.over_budget();
        if over_budget && self.misplaced() == 0 && self.has(Rule::FillScmWhenNothingIsMisplaced) {
            if self.is_full(Tier::Scm) {
                assert!(self.drop_extra(Tier::Scm, actions), "SCM has a page too many");
            }
            return Tier::Scm;
        }
        self.make_room(if over_budget { Reason::Victim } else { Reason::LongToLive }, actions);
        Tier::Dram
    }

    /// Drops a page that the paper's policy evicted before, the next around.
    fn drop_extra(&mut self, tier: Tier, actions: &mut Vec<Action>) -> bool {
        let is_extra = |its: &&Placed| its.tier == tier && self.papers_tier(its.page).is_none();
        let extra: Vec<u32> = self.pages.iter().filter(is_extra).map(|its| its.page).collect();
        let hand = self.extra_hands[tier as usize];
        let next = extra.iter().find(|&&page| page >= hand).or(extra.first()).copied();
        if let Some(page) = next {
            self.extra_hands[tier as usize] = page + 1;
            self.evict(page, Reason::Victim, actions);
        }
        next.is_some()
    }

    fn make_room(&mut self, why: Reason, actions: &mut Vec<Action>) {
        if self.drop_extra(Tier::Dram, actions) {
            return;
        }
        let (page, goes) = self.choose();
        if goes {
            let watched = self.pages[self.at(page)].watched;
            self.dropped.insert(page, watched);
            self.evict(page, Reason::NoEvidence, actions);
            return;
        }
        if self.is_full(Tier::Scm) {
            assert!(self.drop_extra(Tier::Scm, actions), "SCM has a page too many");
        }
        let at = self.at(page);
        let its = self.pages[at];
        self.judge(its);
        let (dirty, watched) = (its.dirty, its.watched);
        self.pages[at] = Placed { dirty, watched, ..placed(page, Tier::Scm) };
        self.our_bytes += 4096;
        actions.push(moved(its, Tier::Scm, why));
    }

    fn judge(&mut self, gone: Placed) {
        if gone.promoted && gone.tier == Tier::Dram && self.has(Rule::PromoteLessIfInVain) {
            self.lines_to_promote = if gone.lines < 64 {
                (self.lines_to_promote * 2).min(32768)
            } else {
                (self.lines_to_promote / 2).max(128)
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
    fn candidate(&mut self, over_budget: bool) -> u32 {
        // Without the rule that makes sure of it, nothing may be misplaced.
        let only_misplaced = over_budget && self.misplaced() > 0;
        loop {
            let theirs = |page: &u32| !only_misplaced || self.papers_tier(*page) == Some(Tier::Scm);
            let page = self.dram_around().into_iter().find(theirs).expect("there always is one");
            self.hand = page + 1;
            let at = self.at(page);
            if self.pages[at].used && self.has(Rule::SpareTheUsed) && !only_misplaced {
                self.pages[at].used = false;
            } else if self.pages[at].rounds > 0
                && self.has(Rule::SpareTheWritten)
                && !only_misplaced
            {
                self.pages[at].rounds -= 1;
            } else {
                return page;
            }
        }
    }

    /// Returns the class of a clean page, and remembers it until the page is used or evicted.
    fn watch(&mut self, page: u32) -> Option<Class> {
        let at = self.at(page);
        let its = self.pages[at];
        let class = (
            if self.has(Rule::TellHitsApart) { its.hits.min(3) } else { 0 },
            its.in_run && self.has(Rule::TellRunsApart),
            its.used_again && self.has(Rule::TellReturnsApart),
        );
        if its.dirty {
            return None;
        }
        self.pages[at].watched.get_or_insert(class);
        Some(class)
    }

    /// Chooses DRAM's victim. The flag says that it leaves the cache.
    fn choose(&mut self) -> (u32, bool) {
        let over_budget = self.over_budget();
        let turn = u64::from(self.highest) + 1;
        let most = if self.has(Rule::StopLooking) { 32 } else { 64 };
        let mut seen = Vec::new();
        while seen.len() < most {
            let page = self.candidate(over_budget);
            let class = self.watch(page);
            if !over_budget && class.is_some_and(|class| self.may_drop(class)) {
                return (page, true);
            }
            if self.life(page) >= turn || !self.has(Rule::KeepWhatGoesSoon) {
                return (page, false);
            }
            seen.push(page);
        }
        let longest = seen.iter().map(|&page| self.life(page)).max();
        let is_longest = |page: &&u32| Some(self.life(**page)) == longest;
        let first = seen.iter().find(is_longest).copied();
        let takes_longest = self.has(Rule::TakeTheLongestLived);
        (if takes_longest { first.expect("pages were seen") } else { seen[0] }, false)
    }

    /// Returns the distance that the paper's hand over SCM has to go until it evicts the page.
    fn life(&self, page: u32) -> u64 {
        let (paper, turn) = (&self.paper, u64::from(self.highest) + 1);
        if paper.scm.len() < self.capacity.scm as usize {
            return 2 * turn;
        }
        let way = (turn + u64::from(page) - u64::from(paper.scm_hand)) % turn;
        let clean_goes = paper.scm.iter().any(|its| !its.dirty && !its.referenced);
        if let Some(at) = find(&paper.scm, page) {
            let its = paper.scm[at];
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

/// A page that just came to a tier.
fn placed(page: u32, tier: Tier) -> Placed {
    Placed {
        page,
        tier,
        dirty: false,
        used: false,
        rounds: 0,
        promoted: false,
        lines: 0,
        hits: 0,
        in_run: false,
        used_again: false,
        watched: None,
    }
}

fn moved(its: Placed, to: Tier, why: Reason) -> Action {
    let (page, lines) = (PageNo(its.page), LineMask::ALL);
    Action::Move { page, to, lines, dirty: its.dirty, why }
}
