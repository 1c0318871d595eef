//! The conformance suite for a policy with pages in both tiers: no excess frame, an access is
//! served from the newest bytes, and their last copy is never dropped.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A page's bytes, as the number of the write that made them; 0 before any.
#[derive(Clone, Copy, Default)]
struct Copies {
    dram: Option<usize>,
    scm: Option<usize>,
    storage: usize,
}

impl Copies {
    fn newest(self) -> usize {
        self.storage.max(self.dram.unwrap_or(0)).max(self.scm.unwrap_or(0))
    }

    fn of(&mut self, tier: Tier) -> &mut Option<usize> {
        match tier {
            Tier::Dram => &mut self.dram,
            Tier::Scm => &mut self.scm,
        }
    }

    fn tier(self) -> Option<Tier> {
        self.dram.map(|_| Tier::Dram).or(self.scm.map(|_| Tier::Scm))
    }

    fn is_dirty(self) -> bool {
        self.newest() > self.storage
    }
}

/// Checks actions against nothing but the actions before them.
struct Judge {
    pages: BTreeMap<u32, Copies>,
    capacity: Capacity,
    access: Option<Access>,
    served: u32,
    writes: usize,
}

impl Judge {
    fn page(&mut self, page: PageNo) -> &mut Copies {
        self.pages.entry(page.0).or_default()
    }

    fn used(&self, tier: Tier) -> usize {
        let held = self.pages.values().filter(|&&(mut copies)| copies.of(tier).is_some());
        held.count()
    }

    fn serve(&mut self, tier: Tier) {
        let access = self.access.expect("pages are served during an access only");
        self.served += 1;
        self.writes += 1;
        let number = self.writes;
        let copies = self.page(access.page);
        let newest = copies.newest();
        assert_eq!(*copies.of(tier), Some(newest), "served with old bytes");
        if access.op == Op::Write {
            *copies.of(tier) = Some(number);
        }
    }

    fn drop_copy(&mut self, page: PageNo, from: Tier) {
        let copies = self.page(page);
        let newest = copies.newest();
        assert!(copies.of(from).take().is_some(), "dropped from where it is not");
        assert_eq!(copies.newest(), newest, "the newest bytes of {page:?} are lost");
        assert!(copies.tier().is_some() || copies.storage == newest);
    }

    fn evict(&mut self, page: PageNo, from: Tier) {
        let copies = self.page(page);
        let newest = copies.newest();
        assert!(newest > copies.storage, "a clean page is written back");
        assert_eq!(copies.of(from).take(), Some(newest));
        assert_eq!(copies.tier(), None, "the other tier still has it");
        copies.storage = newest;
    }

    fn lower(&mut self, page: PageNo, dirty: bool, has_copy: bool) {
        let copies = self.page(page);
        let newest = copies.newest();
        assert_eq!(copies.dram, Some(newest));
        assert_eq!(copies.scm.is_some(), has_copy);
        assert_ne!(copies.scm, Some(newest), "SCM is written to for nothing");
        assert_eq!(dirty, newest > copies.storage);
        copies.scm = Some(newest);
    }
}

impl Actions for Judge {
    fn act(&mut self, action: Action) {
        match action {
            Action::Hit { found, served } => {
                assert!(found == served || (found, served) == (Tier::Scm, Tier::Dram));
                self.serve(served);
            }
            Action::Fill { page, tier, .. } => {
                let copies = self.page(page);
                assert_eq!(copies.tier(), None, "filled twice");
                *copies.of(tier) = Some(copies.storage);
                self.serve(tier);
            }
            Action::Move { page, to, dirty, .. } => {
                assert_eq!(to, Tier::Scm, "pages are promoted as copies");
                self.lower(page, dirty, false);
                self.page(page).dram = None;
            }
            Action::Update { page, dirty, .. } => self.lower(page, dirty, true),
            Action::Copy { page, .. } => {
                let copies = self.page(page);
                assert!(copies.scm.is_some() && copies.dram.is_none());
                copies.dram = copies.scm;
            }
            Action::Drop { page, from, .. } => self.drop_copy(page, from),
            Action::Evict { page, from, .. } => self.evict(page, from),
        }
        assert!(self.used(Tier::Scm) <= self.capacity.scm as usize, "SCM is over its capacity");
        assert!(self.used(Tier::Dram) <= self.capacity.dram as usize + 1, "DRAM is far too full");
    }
}

fn agree<P: Policy>(policy: &P, judge: &Judge) {
    for page in 0..PAGES {
        let copies = judge.pages.get(&page).copied().unwrap_or_default();
        assert_eq!(policy.directory().tier(PageNo(page)), copies.tier());
        assert_eq!(policy.directory().is_dirty(PageNo(page)), copies.is_dirty());
        let next = policy.directory().next_dirty(PageNo(page)).map(|page| page.0);
        let mut dirty = judge.pages.range(page..).filter(|(_, copies)| copies.is_dirty());
        assert_eq!(next, dirty.next().map(|(page, _)| *page));
    }
    for tier in [Tier::Dram, Tier::Scm] {
        assert_eq!(policy.directory().used().of(tier) as usize, judge.used(tier));
        assert!(judge.used(tier) <= judge.capacity.of(tier) as usize, "{tier:?} is too full");
    }
}

fn conform<P: Policy>(mut policy: P, steps: &[Step]) {
    let capacity = policy.directory().capacity();
    let mut judge = Judge { pages: BTreeMap::new(), capacity, access: None, served: 0, writes: 0 };
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
                let copies = judge.page(PageNo(*page));
                copies.storage = copies.newest();
            }
            Step::Resize(capacity) => {
                // Until the end of the resize, the old pages are present.
                judge.capacity = Capacity { dram: u32::MAX - 1, scm: u32::MAX };
                policy.resize(*capacity, &mut judge);
                judge.capacity = *capacity;
            }
        }
        agree(&policy, &judge);
    }
}

fn chances() -> impl Strategy<Value = SpitfireConfig> {
    let percent = || prop_oneof![Just(0_u8), Just(100), 0..=100_u8];
    let any = (percent(), percent(), percent(), percent(), any::<u64>()).prop_map(
        |(dram_for_reads, dram_for_writes, scm_from_backing, scm_from_dram, seed)| SpitfireConfig {
            dram_for_reads,
            dram_for_writes,
            scm_from_backing,
            scm_from_dram,
            seed,
        },
    );
    prop_oneof![1 => Just(SpitfireConfig::default()), 3 => any]
}

proptest! {
    #[test]
    fn spitfire_conforms(capacity in capacity(), steps in steps(), chances in chances()) {
        let storage = Dense { pages: PAGES };
        conform(Spitfire::new(storage, capacity, chances), &steps);
        let dense = actions_of(Spitfire::new(storage, capacity, chances), &steps);
        let sparse = actions_of(Spitfire::new(Sparse, capacity, chances), &steps);
        prop_assert_eq!(dense, sparse);
    }

    #[test]
    fn spitfire_is_spitfire(
        capacity in capacity(),
        accesses in accesses(),
        chances in chances(),
    ) {
        let policy = Spitfire::new(Dense { pages: PAGES }, capacity, chances);
        let ours = by_access(policy, &accesses);
        prop_assert_eq!(ours, reference::spitfire(capacity, &accesses, chances));
    }
}
