//! Policies of one tier.

use super::super::action::{Action, Reason, Tier};
use super::super::directory::Capacity;
use super::super::w_tinylfu::sketch::place;
use crate::access::{Access, Op, PageNo};

#[derive(Clone, Copy, Default)]
struct Page {
    page: u32,
    dirty: bool,
    uses: u8,
}

fn hit() -> Action {
    Action::Hit { found: Tier::Dram, served: Tier::Dram }
}

fn fill(access: &Access, why: Reason) -> Action {
    Action::Fill { page: access.page, tier: Tier::Dram, why }
}

fn gone(page: Page, why: Reason) -> Action {
    let from = Tier::Dram;
    if page.dirty {
        Action::Evict { page: PageNo(page.page), from, why }
    } else {
        Action::Drop { page: PageNo(page.page), from, why }
    }
}

fn new(access: &Access) -> Page {
    Page { page: access.page.0, dirty: access.op == Op::Write, uses: 0 }
}

fn find(pages: &[Page], access: &Access) -> Option<usize> {
    pages.iter().position(|page| page.page == access.page.0)
}

/// Serves each access from `pages`, or by `miss`.
fn each(accesses: &[Access], mut serve: impl FnMut(&Access, &mut Vec<Action>)) -> Vec<Vec<Action>> {
    let of_one = |access| {
        let mut actions = Vec::new();
        serve(access, &mut actions);
        actions
    };
    accesses.iter().map(of_one).collect()
}

/// Oldest first.
pub(in super::super) fn lru(capacity: Capacity, accesses: &[Access]) -> Vec<Vec<Action>> {
    let size = capacity.in_one_tier().dram as usize;
    let mut pages: Vec<Page> = Vec::new();
    each(accesses, |access, actions| {
        if let Some(at) = find(&pages, access) {
            let mut page = pages.remove(at);
            page.dirty |= access.op == Op::Write;
            pages.push(page);
            actions.push(hit());
        } else {
            if pages.len() == size {
                actions.push(gone(pages.remove(0), Reason::Victim));
            }
            pages.push(new(access));
            actions.push(fill(access, Reason::of_miss(access.op)));
        }
    })
}

/// A queue in which a spared page goes to the end: the same pages go as with a hand.
pub(in super::super) fn clock(capacity: Capacity, accesses: &[Access]) -> Vec<Vec<Action>> {
    let size = capacity.in_one_tier().dram as usize;
    let mut pages: Vec<Page> = Vec::new();
    each(accesses, |access, actions| {
        if let Some(at) = find(&pages, access) {
            pages[at].dirty |= access.op == Op::Write;
            pages[at].uses = 1;
            actions.push(hit());
        } else {
            if pages.len() == size {
                while pages[0].uses > 0 {
                    let mut spared = pages.remove(0);
                    spared.uses = 0;
                    pages.push(spared);
                }
                actions.push(gone(pages.remove(0), Reason::Victim));
            }
            pages.push(new(access));
            actions.push(fill(access, Reason::of_miss(access.op)));
        }
    })
}

/// Oldest first, the hand an index.
pub(in super::super) fn sieve(capacity: Capacity, accesses: &[Access]) -> Vec<Vec<Action>> {
    let size = capacity.in_one_tier().dram as usize;
    let mut pages: Vec<Page> = Vec::new();
    let mut hand = 0;
    each(accesses, |access, actions| {
        if let Some(at) = find(&pages, access) {
            pages[at].dirty |= access.op == Op::Write;
            pages[at].uses = 1;
            actions.push(hit());
        } else {
            if pages.len() == size {
                if hand >= pages.len() {
                    hand = 0;
                }
                while pages[hand].uses > 0 {
                    pages[hand].uses = 0;
                    hand = (hand + 1) % pages.len();
                }
                let at_the_end = hand == pages.len() - 1;
                actions.push(gone(pages.remove(hand), Reason::Victim));
                if at_the_end {
                    hand = 0;
                }
            }
            pages.push(new(access));
            actions.push(fill(access, Reason::of_miss(access.op)));
        }
    })
}

/// Three queues, oldest first. Ghosts are ordered by number of eviction, so that a returned one
/// keeps its place until it is old.
pub(in super::super) fn s3_fifo(capacity: Capacity, accesses: &[Access]) -> Vec<Vec<Action>> {
    let size = capacity.in_one_tier().dram as usize;
    let small_max = (size / 10).max(1);
    let ghosts_max = size - small_max;
    let (mut small, mut main) = (Vec::<Page>::new(), Vec::<Page>::new());
    let mut ghosts: Vec<Option<u32>> = Vec::new();
    each(accesses, |access, actions| {
        for queue in [&mut small, &mut main] {
            if let Some(at) = find(queue, access) {
                queue[at].uses = (queue[at].uses + 1).min(3);
                queue[at].dirty |= access.op == Op::Write;
                actions.push(hit());
                return;
            }
        }
        let back = ghosts.contains(&Some(access.page.0));
        if small.len() + main.len() == size {
            let mut done = false;
            if small.len() >= small_max {
                while !done && !small.is_empty() {
                    let page = small.remove(0);
                    if page.uses >= 2 {
                        main.push(Page { uses: 0, ..page });
                    } else {
                        actions.push(gone(page, Reason::NoEvidence));
                        ghosts.push(Some(page.page));
                        done = true;
                    }
                }
            }
            while ghosts.len() > ghosts_max {
                ghosts.remove(0);
            }
            while !done {
                let page = main.remove(0);
                if page.uses > 0 {
                    main.push(Page { uses: page.uses - 1, ..page });
                } else {
                    actions.push(gone(page, Reason::Victim));
                    done = true;
                }
            }
        }
        for ghost in &mut ghosts {
            if *ghost == Some(access.page.0) {
                *ghost = None;
            }
        }
        let queue = if back { &mut main } else { &mut small };
        queue.push(new(access));
        let why = if back { Reason::GhostHit } else { Reason::of_miss(access.op) };
        actions.push(fill(access, why));
    })
}

fn count(pages: usize) -> f64 {
    f64::from(u32::try_from(pages).expect("lists are short"))
}

/// The four lists of the paper's figure, oldest first.
pub(in super::super) fn arc(capacity: Capacity, accesses: &[Access]) -> Vec<Vec<Action>> {
    let c = capacity.in_one_tier().dram as usize;
    let mut lists: [Vec<Page>; 4] = Default::default();
    let mut p = 0.0;
    fn replace(lists: &mut [Vec<Page>; 4], p: f64, from_b2: bool, actions: &mut Vec<Action>) {
        let t1 = lists[0].len();
        let is_over = count(t1) > p || (from_b2 && count(t1) >= p);
        let first = t1 > 0 && (is_over || lists[1].is_empty());
        let (from, to) = if first { (0, 2) } else { (1, 3) };
        if !lists[from].is_empty() {
            let page = lists[from].remove(0);
            lists[to].push(page);
            actions.push(gone(page, Reason::Victim));
        }
    }
    each(accesses, |access, actions| {
        let place = (0..4).find_map(|list| find(&lists[list], access).map(|at| (list, at)));
        let write = access.op == Op::Write;
        if let Some((list @ (0 | 1), at)) = place {
            let mut page = lists[list].remove(at);
            page.dirty |= write;
            lists[1].push(page);
            actions.push(hit());
            return;
        }
        let (b1, b2) = (lists[2].len(), lists[3].len());
        match place {
            Some((list, _)) => {
                if list == 2 {
                    p = (p + (count(b2.max(1)) / count(b1.max(1))).max(1.0)).min(count(c));
                } else {
                    p = (p - (count(b1.max(1)) / count(b2.max(1))).max(1.0)).max(0.0);
                }
                if lists[0].len() + lists[1].len() == c {
                    replace(&mut lists, p, list == 3, actions);
                }
                let at = find(&lists[list], access).expect("a ghost stays until it is taken");
                lists[list].remove(at);
                lists[1].push(new(access));
            }
            None => {
                let known: usize = lists.iter().map(Vec::len).sum();
                if lists[0].len() + b1 >= c {
                    if lists[0].len() < c {
                        lists[2].remove(0);
                        replace(&mut lists, p, false, actions);
                    } else {
                        actions.push(gone(lists[0].remove(0), Reason::NoEvidence));
                    }
                } else if known >= c {
                    if known >= 2 * c {
                        lists[3].remove(0);
                    }
                    if lists[0].len() + lists[1].len() == c {
                        replace(&mut lists, p, false, actions);
                    }
                }
                lists[0].push(new(access));
            }
        }
        let why = if place.is_some() { Reason::GhostHit } else { Reason::of_miss(access.op) };
        actions.push(fill(access, why));
    })
}

/// A byte for each counter.
struct Counters {
    rows: Vec<Vec<u8>>,
    uses: usize,
}

impl Counters {
    fn of(&self, page: u32) -> u8 {
        let width = u32::try_from(self.rows[0].len()).expect("rows are short");
        let each = self.rows.iter().enumerate();
        let counters = each.map(|(row, counters)| counters[place(row, page, width) as usize]);
        counters.min().expect("there are rows")
    }

    fn count(&mut self, page: u32, size: usize) {
        for (row, counters) in self.rows.iter_mut().enumerate() {
            let width = u32::try_from(counters.len()).expect("rows are short");
            let counter = &mut counters[place(row, page, width) as usize];
            *counter = (*counter + 1).min(15);
        }
        self.uses += 1;
        if self.uses == 10 * size {
            self.uses /= 2;
            self.rows.iter_mut().flatten().for_each(|counter| *counter /= 2);
        }
    }
}

/// Window, probation, protected, oldest first. Only the hash of the sketch is shared.
pub(in super::super) fn w_tinylfu(capacity: Capacity, accesses: &[Access]) -> Vec<Vec<Action>> {
    let size = capacity.in_one_tier().dram as usize;
    let window_max = (size / 100).max(1);
    let protected_max = (size - window_max) * 80 / 100;
    let width = (4 * size).max(16).next_power_of_two();
    let mut counters = Counters { rows: vec![vec![0; width]; 4], uses: 0 };
    let [mut window, mut probation, mut protected] = [const { Vec::<Page>::new() }; 3];
    each(accesses, |access, actions| {
        counters.count(access.page.0, size);
        let dirt = access.op == Op::Write;
        if let Some(at) = find(&window, access) {
            let page = window.remove(at);
            window.push(Page { dirty: page.dirty | dirt, ..page });
            actions.push(hit());
            return;
        }
        if let Some(at) = find(&protected, access) {
            let page = protected.remove(at);
            protected.push(Page { dirty: page.dirty | dirt, ..page });
            actions.push(hit());
            return;
        }
        if let Some(at) = find(&probation, access) {
            let page = probation.remove(at);
            protected.push(Page { dirty: page.dirty | dirt, ..page });
            if protected.len() > protected_max {
                probation.push(protected.remove(0));
            }
            actions.push(hit());
            return;
        }
        let is_full = window.len() + probation.len() + protected.len() == size;
        if window.len() == window_max {
            let newcomer = window.remove(0);
            let main = if probation.is_empty() { &mut protected } else { &mut probation };
            if !is_full {
                probation.push(newcomer);
            } else if counters.of(newcomer.page) > counters.of(main[0].page) {
                actions.push(gone(main.remove(0), Reason::Victim));
                probation.push(newcomer);
            } else {
                actions.push(gone(newcomer, Reason::NoEvidence));
            }
        }
        window.push(new(access));
        actions.push(fill(access, Reason::of_miss(access.op)));
    })
}

/// Looks for the next use of each page in the rest of the trace; of pages without one, the
/// highest number goes.
pub(in super::super) fn belady(capacity: Capacity, accesses: &[Access]) -> Vec<Vec<Action>> {
    let size = capacity.in_one_tier().dram as usize;
    let mut pages: Vec<Page> = Vec::new();
    let mut now = 0;
    each(accesses, |access, actions| {
        let rest = &accesses[now..];
        now += 1;
        if let Some(at) = find(&pages, access) {
            pages[at].dirty |= access.op == Op::Write;
            actions.push(hit());
            return;
        }
        if pages.len() == size {
            let next_use = |page: &Page| {
                let used = rest.iter().position(|access| access.page.0 == page.page);
                (used.unwrap_or(usize::MAX), page.page)
            };
            let victim = (0..size).max_by_key(|&at| next_use(&pages[at])).expect("it is full");
            actions.push(gone(pages.remove(victim), Reason::Victim));
        }
        pages.push(new(access));
        actions.push(fill(access, Reason::of_miss(access.op)));
    })
}
