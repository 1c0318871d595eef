//! The rules of `everbyte`: in larger caches than those of the properties it agrees with its slow
//! implementation, each rule has an effect, and a cheaper mode takes over.

use super::*;
use crate::access::{Op, PageAddress};

/// Pages by halves of chance, with scans between, reads and writes of all sizes.
fn mixture(pages: u32, count: u32, seed: u64) -> Vec<Access> {
    let mut number = seed;
    let mut chance = move || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (number >> 33) as u32
    };
    let access = |at: u32| {
        let scans = at / 300 % 4 == 3;
        let wide = chance() % pages;
        let hot = wide % (1 + chance() % pages) % (1 + chance() % pages);
        let page = PageNo(if scans { at % pages } else { hot });
        let len = [64, 400, 2000, 4096][chance() as usize % 4];
        let op = if scans || chance() % 3 == 0 { Op::Read } else { Op::Write };
        Access { page, start: 0, len, op }
    };
    (0..count).map(access).collect()
}

fn larger() -> Vec<(Capacity, u32, Vec<Access>)> {
    let case = |dram, scm, pages, seed| (Capacity { dram, scm }, pages, mixture(pages, 6000, seed));
    let mut cases = vec![case(60, 180, 400, 1), case(20, 20, 300, 2), case(50, 90, 900, 4)];
    // Few pages are written again.
    let (capacity, pages) = (Capacity { dram: 40, scm: 160 }, 3000);
    let mostly_new = |(at, access): (u32, Access)| match at % 8 {
        0 => access,
        1 => Access { op: Op::Read, ..access },
        _ => Access { page: PageNo(at * 7 % pages), len: 4096, op: Op::Write, ..access },
    };
    let accesses = (0..).zip(mixture(pages, 6000, 5)).map(mostly_new).collect();
    cases.push((capacity, pages, accesses));
    cases
}

fn in_mode(capacity: Capacity, pages: u32, accesses: &[Access], rules: Rules) -> Vec<Vec<Action>> {
    by_access(Everbyte::with_rules(Dense { pages }, capacity, rules, FAST), accesses)
}

#[test]
fn everbyte_is_everbyte_in_larger_caches() {
    for (capacity, pages, accesses) in larger() {
        for rules in [Rules::ALL, LRU_ORDER, PASSING, RESTING] {
            let ours = in_mode(capacity, pages, &accesses, rules);
            let theirs = reference::everbyte(capacity, &accesses, rules, FAST);
            assert!(ours == theirs, "{capacity:?}, {rules:?}");
        }
    }
}

/// All modes and their changes: no frame too many, nothing dirty dropped.
#[test]
fn everbyte_conforms_in_larger_caches() {
    let mut steps: Vec<Step> = mixture(PAGES, 4000, 9).into_iter().map(Step::Access).collect();
    steps.insert(1500, Step::Resize(Capacity { dram: 3, scm: 5 }));
    steps.insert(3000, Step::Resize(Capacity { dram: 6, scm: 17 }));
    for costs in [FAST, SLOW] {
        let capacity = Capacity { dram: 5, scm: 14 };
        conform(Everbyte::new(Dense { pages: PAGES }, capacity, 512, costs), &steps, true);
    }
}

/// The actions in a cache in use with a distance of `gap` pages, by the page numbers of a trace.
fn in_use(gap: u32, capacity: Capacity, accesses: &[Access]) -> Vec<Vec<Action>> {
    let number = |PageNo(page)| PageNo(page / gap);
    let far = |access: &Access| Access { page: PageNo(access.page.0 * gap), ..*access };
    let accesses: Vec<Access> = accesses.iter().map(far).collect();
    let mut actions = by_access(Everbyte::new(Sparse, capacity, 512, FAST), &accesses);
    for action in actions.iter_mut().flatten() {
        match action {
            Action::Fill { page, .. }
            | Action::Move { page, .. }
            | Action::Evict { page, .. }
            | Action::Drop { page, .. } => *page = number(*page),
            Action::Hit { .. } | Action::Copy { .. } | Action::Update { .. } => {}
        }
    }
    actions
}

/// Pages with consecutive numbers may be far apart: the policy weighs the actual jumps. Of the last
/// cache only a part is simulated in miniature.
#[test]
fn shadow_weighs_jumps_of_a_cache_in_use() {
    let mut cases = larger();
    cases.push((Capacity { dram: 800, scm: 2400 }, 9000, mixture(9000, 60_000, 7)));
    for (capacity, pages, accesses) in cases {
        for gap in [1, 8, 9, 300] {
            let address = |page| PageAddress { device: 0, page: u64::from(page * gap) };
            let addresses: Vec<PageAddress> = (0..pages).map(address).collect();
            let simulated = Everbyte::new(AddressedPages(&addresses), capacity, 512, FAST);
            let simulated = by_access(simulated, &accesses);
            assert!(simulated == in_use(gap, capacity, &accesses), "{capacity:?}, {gap}");
            let dense = by_access(Everbyte::new(Dense { pages }, capacity, 512, FAST), &accesses);
            assert_eq!(simulated == dense, gap == 1, "{capacity:?}, {gap}");
        }
    }
}

/// The comparison can fail: without any one rule, the actions are others.
#[test]
fn every_rule_of_everbyte_shows() {
    let all = Rules::ALL;
    let changed = [
        Rules { small_write_bytes: 0, ..all },
        Rules { order: Order::Lru, ..all },
        Rules { waiting_permille: 0, ..all },
        Rules { straight: false, ..all },
        Rules { rests: true, ..all },
        Rules { new_leave_first: true, ..all },
        Rules { keeps: false, ..all },
        Rules { weighs: false, ..all },
        Rules { drops: false, ..all },
        Rules { promotes: false, ..all },
    ];
    let cases = larger();
    for rules in changed {
        let shows = cases.iter().any(|(capacity, pages, accesses)| {
            in_mode(*capacity, *pages, accesses, all)
                != reference::everbyte(*capacity, accesses, rules, FAST)
        });
        assert!(shows, "{rules:?} acts as all rules do");
    }
}

/// It begins in the order of LRU, which is wrong for this: pages are written once, all over the device,
/// while 150 pages, three quarters of the cache, are read over and over.
#[test]
fn cheaper_mode_takes_over() {
    let (capacity, pages) = (Capacity { dram: 50, scm: 150 }, 20_000);
    let access = |at: u32| {
        let (page, op) = match at % 4 {
            0 => (200 + at * 7919 % (pages - 200), Op::Write),
            _ => (at * 31 % 200, Op::Read),
        };
        Access { page: PageNo(page), start: 0, len: 4096, op }
    };
    let accesses: Vec<Access> = (0..30_000).map(access).collect();
    let misses = |actions: &[Vec<Action>]| {
        let last = &actions[accesses.len() / 2..];
        let is_read =
            |action: &&Action| matches!(action, Action::Fill { why: Reason::ReadMiss, .. });
        last.iter().flatten().filter(is_read).count()
    };
    let first = in_mode(capacity, pages, &accesses, RESTING);
    let chosen = by_access(Everbyte::new(Dense { pages }, capacity, 512, FAST), &accesses);
    assert!(misses(&chosen) * 3 < misses(&first) * 2, "{} {}", misses(&chosen), misses(&first));
}

/// Writes each page of a long row `times` times. Returns how many of the second half of the pages came
/// straight to SCM.
fn straight_ways(times: u32) -> usize {
    let (capacity, pages) = (Capacity { dram: 50, scm: 150 }, 20_000);
    let write = |at: u32| Access {
        page: PageNo(at / times * 3 % pages),
        start: 0,
        len: 4096,
        op: Op::Write,
    };
    let accesses: Vec<Access> = (0..4000 * times).map(write).collect();
    let actions = in_mode(capacity, pages, &accesses, Rules::ALL);
    let is_straight = |action: &&Action| matches!(action, Action::Fill { tier: Tier::Scm, .. });
    actions[accesses.len() / 2..].iter().flatten().filter(is_straight).count()
}

/// Of 2000 pages; some go through DRAM, so that it is noticed when they are written again.
#[test]
fn pages_without_rewrites_enter_scm_directly() {
    let straight = straight_ways(1);
    assert!((1000..2000).contains(&straight), "{straight}");
    assert_eq!(straight_ways(2), 0);
}

/// Independent of the number of pages written again without a miss: the learned counts are soon
/// forgotten.
#[test]
fn rewrites_are_soon_forgotten() {
    let (capacity, pages) = (Capacity { dram: 500, scm: 1500 }, 20_000);
    let write = |page| Access { page: PageNo(page), start: 0, len: 4096, op: Op::Write };
    let accesses: Vec<Access> =
        (0..6000).chain(4000..6000).chain(10_000..10_500).map(write).collect();
    let actions = in_mode(capacity, pages, &accesses, Rules::ALL);
    let tier = |actions: &Vec<Action>| {
        actions.iter().find_map(|action| match action {
            Action::Fill { tier, .. } => Some(*tier),
            _ => None,
        })
    };
    let again = actions[6000..8000].iter().filter(|actions| tier(actions).is_none()).count();
    assert!(again > 1500, "{again} were still there");
    let first = actions[8000..].iter().position(|actions| tier(actions) == Some(Tier::Scm));
    assert!(first.is_some_and(|first| (100..300).contains(&first)), "the first is {first:?}");
}

/// Pages in a loop that is a little larger than the cache: no order of recency hits any.
#[test]
fn loop_is_kept_where_new_pages_leave_first() {
    let (capacity, pages) = (Capacity { dram: 50, scm: 150 }, 220);
    let read = |at: u32| Access { page: PageNo(at % pages), start: 0, len: 4096, op: Op::Read };
    let accesses: Vec<Access> = (0..20 * pages).map(read).collect();
    let hits = |actions: Vec<Vec<Action>>| {
        let last = actions.iter().skip(10 * pages as usize).flatten();
        last.filter(|action| matches!(action, Action::Hit { .. })).count()
    };
    let kept = hits(in_mode(capacity, pages, &accesses, PASSING));
    let chosen = Everbyte::new(Dense { pages }, capacity, 512, SLOW);
    let chosen = hits(by_access(chosen, &accesses));
    let late = hits(in_mode(capacity, pages, &accesses, LRU_ORDER));
    assert!(kept > 1800 && chosen > 1800 && late < 1700, "{kept} {chosen} {late}");
}

/// Returns at which of the writes of `len` bytes to a page of SCM the page comes to DRAM.
fn promoted_at(len: u16) -> Option<usize> {
    let (capacity, pages) = (Capacity { dram: 2, scm: 8 }, 100);
    let rules = Rules { weighs: false, straight: false, ..Rules::ALL };
    let access = |page, len, op| Access { page: PageNo(page), start: 0, len, op };
    let fetches = (0..8).map(|page| access(page, 4096, Op::Read));
    let writes = (0..20).map(|_| access(0, len, Op::Write));
    let accesses: Vec<Access> = fetches.chain(writes).collect();
    let actions = in_mode(capacity, pages, &accesses, rules);
    let comes = |action: &Action| matches!(action, Action::Move { to: Tier::Dram, .. });
    actions[8..].iter().position(|actions| actions.iter().any(comes)).map(|at| at + 1)
}

#[test]
fn pages_are_promoted_for_what_is_written_to_them() {
    assert_eq!([512, 513, 4095, 4096].map(promoted_at), [None, Some(7), Some(7), Some(4)]);
}

/// A page that waits is next to go once it is clean.
#[test]
fn cleaned_waiting_page_is_evicted_next() {
    let (capacity, pages) = (Capacity { dram: 2, scm: 8 }, 100);
    let rules = Rules { waiting_permille: 900, weighs: false, drops: false, ..Rules::ALL };
    let mut policy = Everbyte::with_rules(Dense { pages }, capacity, rules, SLOW);
    let mut actions = Vec::new();
    let write = |page| Access { page: PageNo(page), start: 0, len: 64, op: Op::Write };
    (0..10).for_each(|page| policy.access(write(page), &mut actions));
    let mut page = 10;
    while policy.next_waiting(PageNo(3)).is_none() {
        policy.access(Access { op: Op::Read, ..write(page) }, &mut actions);
        page += 1;
    }
    let waiting = policy.next_waiting(PageNo(3)).expect("one waits");
    policy.cleaned(waiting);
    assert_ne!(policy.next_waiting(PageNo(3)), Some(waiting));
    actions.clear();
    policy.reclaim(Tier::Scm, &mut actions);
    let gone = Action::Drop { page: waiting, from: Tier::Scm, why: Reason::Victim };
    assert_eq!(actions, [gone]);
}
