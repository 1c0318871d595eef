//! Promises of the policy `everbyte` on any trace: dirty pages are written back as by the paper's
//! policy, misses and bytes written to SCM are hardly more. And a check that the comparison with
//! its slow implementation would notice each of its rules.

use proptest::prelude::*;

use super::reference::{self, Rule};
use super::*;
use crate::access::Op;

/// Returns the pages written back, in their order.
fn written_back(actions: &[Action]) -> Vec<PageNo> {
    let page = |action: &Action| match *action {
        Action::Evict { page, .. } => Some(page),
        _ => None,
    };
    actions.iter().filter_map(page).collect()
}

fn misses(actions: &[Vec<Action>]) -> usize {
    actions.iter().flatten().filter(|action| matches!(action, Action::Fill { .. })).count()
}

fn scm_bytes(accesses: &[Access], actions: &[Vec<Action>]) -> u64 {
    let of_one = |(access, actions): (&Access, &Vec<Action>)| -> u64 {
        let bytes = |action: &Action| match *action {
            Action::Move { to: Tier::Scm, lines, .. } => u64::from(lines.bytes()),
            Action::Fill { tier: Tier::Scm, .. } => u64::from(PAGE_BYTES),
            Action::Hit { served: Tier::Scm, .. } if access.op == Op::Write => {
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
    let (storage, config) = (Dense { pages }, HybridConfig::default());
    let ours = by_access(Everbyte::new(storage, capacity, config), accesses);
    (ours, by_access(Hybrid::new(storage, capacity, config), accesses))
}

fn assert_promises(accesses: &[Access], ours: &[Vec<Action>], theirs: &[Vec<Action>]) {
    for (number, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(written_back(ours), written_back(theirs), "access {number}");
    }
    for end in 1..=accesses.len() {
        if end % 500 != 0 && end != accesses.len() {
            continue;
        }
        let (ours, theirs) = (&ours[..end], &theirs[..end]);
        let missed = (misses(ours), misses(theirs));
        assert!(missed.0 <= missed.1 + (end / 210).min(missed.1 / 32), "{missed:?} misses");
        let ours = scm_bytes(&accesses[..end], ours);
        let theirs = scm_bytes(&accesses[..end], theirs);
        assert!(ours <= theirs + theirs / 125 + 24 * 1024, "{ours} bytes, not {theirs}");
    }
}

proptest! {
    #[test]
    fn everbyte_keeps_its_promises(capacity in capacity(), accesses in accesses()) {
        let (ours, theirs) = both(capacity, PAGES, &accesses);
        assert_promises(&accesses, &ours, &theirs);
    }

    /// Also if pages are trimmed and written back, and the cache gets another size.
    #[test]
    fn what_is_dirty_in_hybrid_is_dirty_in_everbyte(capacity in capacity(), steps in steps()) {
        let (storage, config) = (Dense { pages: PAGES }, HybridConfig::default());
        let mut ours = Everbyte::new(storage, capacity, config);
        let mut theirs = Hybrid::new(storage, capacity, config);
        let mut actions = Vec::new();
        for step in &steps {
            take_step(&mut ours, step, &mut actions);
            take_step(&mut theirs, step, &mut actions);
            for page in (0..PAGES).map(PageNo) {
                let (ours, theirs) = (ours.directory(), theirs.directory());
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
        for tier in [Tier::Scm, Tier::Dram, Tier::Scm, Tier::Dram] {
            let used = policy.directory().used();
            if used.of(tier) > 0 {
                policy.reclaim(tier, &mut actions);
                prop_assert!(policy.directory().used().of(tier) < used.of(tier));
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

/// All pages in order, over and over, and every now and then any.
fn turns(pages: u32, count: u32) -> Vec<Access> {
    let mut number: u64 = 1;
    let mut chance = move || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (number >> 33) as u32
    };
    let read = |at| {
        let page = if at % 20 == 0 { chance() } else { at } % pages;
        Access { page: PageNo(page), start: 0, len: 4096, op: Op::Read }
    };
    (0..count).map(read).collect()
}

/// Returns larger caches than those of the properties: room to choose, and bytes enough to exceed
/// the budget. The fifth is one where a page is fetched to SCM, which is rare; the last where the
/// backing device would jump.
fn larger() -> Vec<(Capacity, u32, Vec<Access>)> {
    let case = |dram, scm, pages, seed| (Capacity { dram, scm }, pages, mixture(pages, 6000, seed));
    vec![
        case(60, 180, 400, 1),
        case(20, 20, 300, 2),
        case(40, 280, 360, 3),
        case(50, 90, 900, 4),
        case(40, 280, 360, 123),
        (Capacity { dram: 30, scm: 90 }, 130, turns(130, 8000)),
    ]
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
fn of_pages_used_once_fewer_reach_scm() {
    let (capacity, pages) = (Capacity { dram: 100, scm: 300 }, 20_000);
    let read = |page| Access { page: PageNo(page), start: 0, len: 4096, op: Op::Read };
    let scan: Vec<Access> = (0..pages).map(|number| read(number * 7919 % pages)).collect();
    let (ours, theirs) = both(capacity, pages, &scan);
    let (ours, theirs) = (scm_bytes(&scan, &ours), scm_bytes(&scan, &theirs));
    assert!(ours * 5 < theirs * 4, "{ours} bytes, not {theirs}");
}
