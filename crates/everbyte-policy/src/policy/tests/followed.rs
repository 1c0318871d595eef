//! What our own policy promises of any trace: what comes and goes, comes and goes as in the paper's
//! policy, and PRAM is written to hardly more. And that its comparison with a slow implementation
//! would notice each of its rules.

use proptest::prelude::*;

use super::reference::{self, Rule};
use super::*;
use crate::access::Op;

/// What storage and clients notice: misses, and pages that leave, clean or dirty, in their order.
fn seen_from_outside(actions: &[Action]) -> Vec<(&'static str, Option<PageNo>)> {
    let outside = |action: &Action| match *action {
        Action::Hit { .. } => Some(("hit", None)),
        Action::Fill { page, .. } => Some(("fetch", Some(page))),
        Action::Drop { page, .. } => Some(("drop", Some(page))),
        Action::Evict { page, .. } => Some(("write back", Some(page))),
        Action::Move { .. } | Action::Copy { .. } | Action::Update { .. } => None,
    };
    actions.iter().filter_map(outside).collect()
}

fn pram_bytes(accesses: &[Access], actions: &[Vec<Action>]) -> u64 {
    let of_one = |(access, actions): (&Access, &Vec<Action>)| -> u64 {
        let bytes = |action: &Action| match *action {
            Action::Move { to: Tier::Pram, lines, .. } => u64::from(lines.bytes()),
            Action::Hit { served: Tier::Pram, .. } if access.op == Op::Write => {
                u64::from(access.len)
            }
            _ => 0,
        };
        actions.iter().map(bytes).sum()
    };
    accesses.iter().zip(actions).map(of_one).sum()
}

fn both(
    capacity: Capacity,
    pages: u32,
    accesses: &[Access],
) -> (Vec<Vec<Action>>, Vec<Vec<Action>>) {
    let (space, config) = (Dense { pages }, HybridConfig::default());
    let ours = by_access(Everbyte::new(space, capacity, config), accesses);
    (ours, by_access(Hybrid::new(space, capacity, config), accesses))
}

fn assert_promises(accesses: &[Access], ours: &[Vec<Action>], theirs: &[Vec<Action>]) {
    for (number, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(seen_from_outside(ours), seen_from_outside(theirs), "access {number}");
    }
    for end in 1..=accesses.len() {
        if end % 500 != 0 && end != accesses.len() {
            continue;
        }
        let ours = pram_bytes(&accesses[..end], &ours[..end]);
        let theirs = pram_bytes(&accesses[..end], &theirs[..end]);
        assert!(ours <= theirs + theirs / 125 + 24 * 1024, "{ours} bytes, not {theirs}");
    }
}

proptest! {
    #[test]
    fn everbyte_does_outside_what_hybrid_does(capacity in capacity(), accesses in accesses()) {
        let (ours, theirs) = both(capacity, PAGES, &accesses);
        assert_promises(&accesses, &ours, &theirs);
    }

    /// Also if pages are trimmed and written back, and the cache gets another size.
    #[test]
    fn everbyte_holds_what_hybrid_holds(capacity in capacity(), steps in steps()) {
        let (space, config) = (Dense { pages: PAGES }, HybridConfig::default());
        let mut ours = Everbyte::new(space, capacity, config);
        let mut theirs = Hybrid::new(space, capacity, config);
        let mut actions = Vec::new();
        for step in &steps {
            take_step(&mut ours, step, &mut actions);
            take_step(&mut theirs, step, &mut actions);
            for page in (0..PAGES).map(PageNo) {
                let (ours, theirs) = (ours.residents(), theirs.residents());
                prop_assert_eq!(ours.tier(page).is_some(), theirs.tier(page).is_some());
                prop_assert_eq!(ours.is_dirty(page), theirs.is_dirty(page));
            }
        }
    }

    #[test]
    fn everbyte_frees_a_frame_when_asked(capacity in capacity(), accesses in accesses()) {
        let mut policy = Everbyte::new(Dense { pages: PAGES }, capacity, HybridConfig::default());
        let mut actions = Vec::new();
        for &access in &accesses {
            policy.access(access, &mut actions);
        }
        for tier in [Tier::Pram, Tier::Dram, Tier::Pram, Tier::Dram] {
            let used = policy.residents().used();
            if used.of(tier) > 0 {
                policy.reclaim(tier, &mut actions);
                prop_assert!(policy.residents().used().of(tier) < used.of(tier));
            }
        }
    }
}

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

/// Larger caches than those of the properties: room to choose, and bytes enough to be in debt.
fn larger() -> Vec<(Capacity, u32, Vec<Access>)> {
    let case =
        |dram, pram, pages, seed| (Capacity { dram, pram }, pages, mixture(pages, 6000, seed));
    vec![case(60, 180, 400, 1), case(20, 20, 300, 2), case(40, 280, 360, 3), case(50, 90, 900, 4)]
}

#[test]
fn everbyte_is_everbyte_in_larger_caches() {
    for (capacity, pages, accesses) in larger() {
        let (ours, theirs) = both(capacity, pages, &accesses);
        assert_eq!(ours, reference::everbyte(capacity, &accesses, None), "{capacity:?}");
        assert_promises(&accesses, &ours, &theirs);
    }
}

/// The comparisons can fail: without any one rule, the actions are others.
#[test]
fn every_rule_of_everbyte_shows() {
    let cases = larger();
    for rule in Rule::ALL {
        let shows = cases.iter().any(|(capacity, pages, accesses)| {
            let (ours, _) = both(*capacity, *pages, accesses);
            ours != reference::everbyte(*capacity, accesses, Some(rule))
        });
        assert!(shows, "{rule:?} makes no difference");
    }
}

#[test]
fn of_pages_used_once_fewer_reach_pram() {
    let (capacity, pages) = (Capacity { dram: 100, pram: 300 }, 20_000);
    let read = |page| Access { page: PageNo(page), start: 0, len: 4096, op: Op::Read };
    let scan: Vec<Access> = (0..pages).map(|number| read(number * 7919 % pages)).collect();
    let (ours, theirs) = both(capacity, pages, &scan);
    let (ours, theirs) = (pram_bytes(&scan, &ours), pram_bytes(&scan, &theirs));
    assert!(ours * 5 < theirs * 4, "{ours} bytes, not {theirs}");
}
