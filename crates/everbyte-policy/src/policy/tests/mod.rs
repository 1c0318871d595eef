//! The conformance suite of policies, run against each of them, and each against a slow, obvious
//! implementation of itself.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::reference;
use super::*;
use crate::access::Op;
use crate::costs::{BackingCosts, Costs};

mod decisions;
mod inclusive;
mod rules;

const PAGES: u32 = 40;

#[derive(Clone, Debug)]
enum Step {
    Access(Access),
    Remove(u32),
    Clean(u32),
    Resize(Capacity),
}

fn access() -> impl Strategy<Value = Access> {
    let length = prop_oneof![Just(4096_u16), 1..600_u16, 1..4096_u16];
    let page = prop_oneof![0..PAGES, 0..PAGES / 4];
    (page, length, any::<u16>(), any::<bool>()).prop_map(|(page, len, start, write)| Access {
        page: PageNo(page),
        start: start % (4097 - len),
        len,
        op: if write { Op::Write } else { Op::Read },
    })
}

fn capacity() -> impl Strategy<Value = Capacity> {
    (1..8_u32, 1..16_u32).prop_map(|(dram, scm)| Capacity { dram, scm })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        40 => access().prop_map(Step::Access),
        2 => (0..PAGES).prop_map(Step::Remove),
        2 => (0..PAGES).prop_map(Step::Clean),
        1 => capacity().prop_map(Step::Resize),
    ];
    proptest::collection::vec(step, 1..400)
}

/// Checks actions against nothing but the actions before them.
struct Judge {
    /// Tier of each page, and true if it is dirty.
    pages: BTreeMap<u32, (Tier, bool)>,
    capacity: Capacity,
    access: Option<Access>,
    served: u32,
}

impl Judge {
    fn new(capacity: Capacity) -> Self {
        Self { pages: BTreeMap::new(), capacity, access: None, served: 0 }
    }

    fn used(&self, tier: Tier) -> usize {
        self.pages.values().filter(|(its, _)| *its == tier).count()
    }

    fn serve(&mut self, page: PageNo, tier: Tier) {
        let access = self.access.expect("pages are served during an access only");
        assert_eq!(access.page, page);
        let place = self.pages.get_mut(&page.0).expect("a page is present when it is served");
        assert_eq!(place.0, tier, "served where the page is not");
        place.1 |= access.op == Op::Write;
        self.served += 1;
    }

    fn leave(&mut self, page: PageNo, from: Tier, dirty: bool) {
        let place = self.pages.remove(&page.0);
        assert_eq!(place, Some((from, dirty)), "{page:?} left as what it was not");
    }
}

impl Actions for Judge {
    fn act(&mut self, action: Action) {
        match action {
            Action::Hit { found, served } => {
                let page = self.access.expect("a hit belongs to an access").page;
                assert!(found == served || (found, served) == (Tier::Scm, Tier::Dram));
                self.serve(page, served);
            }
            Action::Fill { page, tier, .. } => {
                assert_eq!(self.pages.insert(page.0, (tier, false)), None, "filled twice");
                self.serve(page, tier);
            }
            Action::Move { page, to, dirty, .. } => {
                let from = if to == Tier::Dram { Tier::Scm } else { Tier::Dram };
                self.leave(page, from, dirty);
                self.pages.insert(page.0, (to, dirty));
            }
            Action::Copy { .. } | Action::Update { .. } => {
                panic!("the tiers of this policy are exclusive")
            }
            Action::Drop { page, from, .. } => self.leave(page, from, false),
            Action::Evict { page, from, .. } => self.leave(page, from, true),
        }
        assert!(self.used(Tier::Scm) <= self.capacity.scm as usize, "SCM is over its capacity");
        assert!(self.used(Tier::Dram) <= self.capacity.dram as usize + 1, "DRAM is far too full");
    }
}

fn agree<P: Policy>(policy: &P, judge: &Judge) {
    for page in 0..PAGES {
        let place = judge.pages.get(&page);
        assert_eq!(policy.directory().tier(PageNo(page)), place.map(|place| place.0));
        let dirty = place.is_some_and(|place| place.1);
        assert_eq!(policy.directory().is_dirty(PageNo(page)), dirty);
        let mut dirty = judge.pages.range(page..).filter(|(_, place)| place.1);
        let next = policy.directory().next_dirty(PageNo(page)).map(|page| page.0);
        assert_eq!(next, dirty.next().map(|(page, _)| *page));
    }
    for tier in [Tier::Dram, Tier::Scm] {
        assert_eq!(policy.directory().used().of(tier) as usize, judge.used(tier));
        assert!(judge.used(tier) <= judge.capacity.of(tier) as usize, "{tier:?} is too full");
    }
}

fn conform<P: Policy>(mut policy: P, steps: &[Step], two_tiers: bool) {
    let mut judge = Judge::new(policy.directory().capacity());
    for step in steps {
        match step {
            Step::Access(access) => {
                judge.access = Some(*access);
                judge.served = 0;
                policy.access(*access, &mut judge);
                assert_eq!(judge.served, 1, "an access is served once");
                judge.access = None;
            }
            Step::Remove(page) => {
                policy.remove(PageNo(*page));
                judge.pages.remove(page);
            }
            Step::Clean(page) => {
                policy.cleaned(PageNo(*page));
                if let Some(place) = judge.pages.get_mut(page) {
                    place.1 = false;
                }
            }
            Step::Resize(capacity) => {
                let capacity = if two_tiers { *capacity } else { capacity.in_one_tier() };
                // Until the end of the resize, the old pages are present.
                judge.capacity = Capacity { dram: u32::MAX - 1, scm: u32::MAX };
                policy.resize(capacity, &mut judge);
                judge.capacity = capacity;
            }
        }
        agree(&policy, &judge);
    }
}

fn actions_of<P: Policy>(mut policy: P, steps: &[Step]) -> Vec<Action> {
    let mut actions = Vec::new();
    for step in steps {
        take_step(&mut policy, step, &mut actions);
    }
    actions
}

fn take_step(policy: &mut impl Policy, step: &Step, actions: &mut Vec<Action>) {
    match step {
        Step::Access(access) => policy.access(*access, actions),
        Step::Remove(page) => policy.remove(PageNo(*page)),
        Step::Clean(page) => policy.cleaned(PageNo(*page)),
        Step::Resize(capacity) => policy.resize(*capacity, actions),
    }
}

/// Runs a policy in both kinds of storage: both do the same, and the actions conform.
macro_rules! conformance {
    ($($test:ident: $policy:ident($($config:expr),*), $two_tiers:expr;)*) => {
        proptest! {
            $(#[test]
            fn $test(capacity in capacity(), steps in steps()) {
                let storage = Dense { pages: PAGES };
                conform($policy::new(storage, capacity $(, $config)*), &steps, $two_tiers);
                let dense = actions_of($policy::new(storage, capacity $(, $config)*), &steps);
                let sparse = actions_of($policy::new(Sparse, capacity $(, $config)*), &steps);
                prop_assert_eq!(dense, sparse);
            })*
        }
    };
}

const PSEUDO_CODE: HybridConfig = HybridConfig {
    small_write_bytes: 512,
    dirty_victims: DirtyVictims::MoveLikeClean,
    clean_victims: CleanVictims::Move,
};

const DROP: HybridConfig = HybridConfig {
    small_write_bytes: 512,
    dirty_victims: DirtyVictims::AlwaysMove,
    clean_victims: CleanVictims::Drop,
};
const DROP_UNUSED: HybridConfig = HybridConfig { clean_victims: CleanVictims::DropUnused, ..DROP };

/// Fast backing devices, before which demotions are weighed against write-backs and fetches.
const FAST: Costs = Costs::with_backing(BackingCosts::SSD);
const SLOW: Costs = Costs::with_backing(BackingCosts::HDD);
const LRU_ORDER: Rules = Rules { order: Order::Lru, waiting_permille: 900, ..Rules::ALL };
const PASSING: Rules = Rules { new_leave_first: true, ..LRU_ORDER };
const RESTING: Rules = Rules { waiting_permille: 200, rests: true, ..LRU_ORDER };
const FEWER_RULES: Rules = Rules {
    straight: false,
    keeps: false,
    weighs: false,
    drops: false,
    promotes: false,
    ..Rules::ALL
};

conformance! {
    everbyte_conforms: Everbyte(512, FAST), true;
    hybrid_conforms: Hybrid(HybridConfig::default()), true;
    hybrid_of_the_pseudo_code_conforms: Hybrid(PSEUDO_CODE), true;
    hybrid_drop_conforms: Hybrid(DROP), true;
    hybrid_drop_unused_conforms: Hybrid(DROP_UNUSED), true;
    clock_migration_conforms: ClockMigration(), true;
    clock_dwf_conforms: ClockDwf(), true;
    m_clock_conforms: MClock(), true;
    four_queue_conforms: FourQueue(), true;
    pdram_conforms: Pdram(), true;
    lru_conforms: Lru(), false;
    clock_conforms: Clock(), false;
    sieve_conforms: Sieve(), false;
    s3_fifo_conforms: S3Fifo(), false;
    arc_conforms: Arc(), false;
    w_tinylfu_conforms: WTinyLfu(), false;
}

proptest! {
    /// It knows the accesses, but not the other requests.
    #[test]
    fn belady_conforms(capacity in capacity(), steps in steps()) {
        let access = |step: &Step| match step {
            Step::Access(access) => Some(*access),
            _ => None,
        };
        let accesses: Vec<Access> = steps.iter().filter_map(access).collect();
        let storage = Dense { pages: PAGES };
        conform(Belady::new(storage, capacity, &accesses), &steps, false);
        let dense = actions_of(Belady::new(storage, capacity, &accesses), &steps);
        let sparse = actions_of(Belady::new(Sparse, capacity, &accesses), &steps);
        prop_assert_eq!(dense, sparse);
    }

    /// Nothing misses less; policies that keep a page out of the cache are not among ours.
    #[test]
    fn belady_has_fewest_misses(capacity in capacity(), accesses in accesses()) {
        let storage = Dense { pages: PAGES };
        let misses = |actions: Vec<Vec<Action>>| {
            actions.iter().flatten().filter(|action| matches!(action, Action::Fill { .. })).count()
        };
        let least = misses(by_access(Belady::new(storage, capacity, &accesses), &accesses));
        prop_assert!(least <= misses(by_access(Lru::new(storage, capacity), &accesses)));
        prop_assert!(least <= misses(by_access(S3Fifo::new(storage, capacity), &accesses)));
        prop_assert!(least <= misses(by_access(WTinyLfu::new(storage, capacity), &accesses)));
        let hybrid = Hybrid::new(storage, capacity, HybridConfig::default());
        prop_assert!(least <= misses(by_access(hybrid, &accesses)));
    }
}

fn accesses() -> impl Strategy<Value = Vec<Access>> {
    proptest::collection::vec(access(), 1..500)
}

/// The actions of a policy, by access.
fn by_access(mut policy: impl Policy, accesses: &[Access]) -> Vec<Vec<Action>> {
    let each = accesses.iter().map(|&access| {
        let mut actions = Vec::new();
        policy.access(access, &mut actions);
        actions
    });
    each.collect()
}

macro_rules! same_as_reference {
    ($($test:ident: $policy:expr, $reference:expr;)*) => {
        proptest! {
            $(#[test]
            fn $test(capacity in capacity(), accesses in accesses()) {
                let policy: fn(Dense, Capacity, &[Access]) -> _ = $policy;
                let reference: fn(Capacity, &[Access]) -> Vec<Vec<Action>> = $reference;
                let storage = Dense { pages: PAGES };
                let ours = by_access(policy(storage, capacity, &accesses), &accesses);
                let theirs = reference(capacity, &accesses);
                for (number, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                    prop_assert_eq!(ours, theirs, "at access {} of {:?}", number, accesses);
                }
                prop_assert_eq!(ours.len(), theirs.len());
            })*
        }
    };
}

same_as_reference! {
    lru_is_lru: |s, c, _| Lru::new(s, c), reference::lru;
    clock_is_clock: |s, c, _| Clock::new(s, c), reference::clock;
    sieve_is_sieve: |s, c, _| Sieve::new(s, c), reference::sieve;
    s3_fifo_is_s3_fifo: |s, c, _| S3Fifo::new(s, c), reference::s3_fifo;
    w_tinylfu_is_w_tinylfu: |s, c, _| WTinyLfu::new(s, c), reference::w_tinylfu;
    arc_is_arc: |s, c, _| Arc::new(s, c), reference::arc;
    belady_is_belady: |s, c, a| Belady::new(s, c, a), reference::belady;
    clock_migration_is_clock_migration: |s, c, _| ClockMigration::new(s, c),
        reference::clock_migration;
    hybrid_is_the_papers_text: |s, c, _| Hybrid::new(s, c, HybridConfig::default()),
        |c, a| reference::hybrid(c, a, false, CleanVictims::Move);
    hybrid_is_the_papers_pseudo_code: |s, c, _| Hybrid::new(s, c, PSEUDO_CODE),
        |c, a| reference::hybrid(c, a, true, CleanVictims::Move);
    hybrid_drops_clean_victims: |s, c, _| Hybrid::new(s, c, DROP),
        |c, a| reference::hybrid(c, a, false, CleanVictims::Drop);
    hybrid_drops_unused_clean_victims: |s, c, _| Hybrid::new(s, c, DROP_UNUSED),
        |c, a| reference::hybrid(c, a, false, CleanVictims::DropUnused);
    everbyte_is_everbyte: |s, c, _| Everbyte::with_rules(s, c, Rules::ALL, FAST),
        |c, a| reference::everbyte(c, a, Rules::ALL, FAST);
    everbyte_in_the_order_of_lru: |s, c, _| Everbyte::with_rules(s, c, LRU_ORDER, SLOW),
        |c, a| reference::everbyte(c, a, LRU_ORDER, SLOW);
    everbyte_with_new_pages_leaving_first: |s, c, _| Everbyte::with_rules(s, c, PASSING, FAST),
        |c, a| reference::everbyte(c, a, PASSING, FAST);
    everbyte_with_pages_that_rest: |s, c, _| Everbyte::with_rules(s, c, RESTING, FAST),
        |c, a| reference::everbyte(c, a, RESTING, FAST);
    everbyte_of_fewer_rules: |s, c, _| Everbyte::with_rules(s, c, FEWER_RULES, FAST),
        |c, a| reference::everbyte(c, a, FEWER_RULES, FAST);
    clock_dwf_is_clock_dwf: |s, c, _| ClockDwf::new(s, c), reference::clock_dwf;
    m_clock_is_m_clock: |s, c, _| MClock::new(s, c), reference::m_clock;
    pdram_is_pdram: |s, c, _| Pdram::new(s, c), reference::pdram;
    four_queue_is_four_queue: |s, c, _| FourQueue::new(s, c), reference::four_queue;
}

#[test]
fn hybrid_writes_back_in_the_order_of_sectors() {
    let pages = 4000;
    let capacity = Capacity { dram: 100, scm: 300 };
    let mut policy = Hybrid::new(Dense { pages }, capacity, HybridConfig::default());
    let mut actions = Vec::new();
    for number in 0..pages {
        // A walk over all pages that jumps about.
        let page = PageNo(number * 1201 % pages);
        policy.access(Access { page, start: 0, len: 4096, op: Op::Write }, &mut actions);
    }
    let evicted: Vec<u32> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Evict { page, .. } => Some(page.0),
            _ => None,
        })
        .collect();
    let descents = evicted.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(evicted.len() > 3000);
    assert!(descents * 100 < evicted.len(), "{descents} descents in {}", evicted.len());
}

/// Caches of the other tests are too small for a window of more than a page.
#[test]
fn w_tinylfu_is_w_tinylfu_with_a_wide_window() {
    let (pages, capacity) = (900, Capacity { dram: 100, scm: 350 });
    let mut number: u64 = 1;
    let accesses = (0..20_000).map(|_| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let chance = (number >> 40) as u32;
        // Lower pages more often.
        let page = PageNo((chance % pages) * (chance >> 12) / (1 << 12));
        let op = if chance & 64 == 0 { Op::Read } else { Op::Write };
        Access { page, start: 0, len: 100, op }
    });
    let accesses: Vec<Access> = accesses.collect();
    let ours = by_access(WTinyLfu::new(Dense { pages }, capacity), &accesses);
    assert_eq!(ours, reference::w_tinylfu(capacity, &accesses));
    assert!(ours.iter().flatten().any(|action| matches!(action, Action::Drop { .. })));
}
