//! The decisions of `everbyte`, action by action, on generated traces: a change that is meant to make it
//! faster or smaller must not change one of them.
//!
//! The digests are those of the policy as it is. A change of its rules changes them, on purpose: the
//! failure prints the new ones.

use super::*;

const TRACE_PAGES: u32 = 12_000;
const ACCESSES: u32 = 30_000;
/// Full simulations of modes, and sampled ones.
const FRAMES: [u32; 4] = [24, 300, 1900, 5000];
const DEVICES: [BackingCosts; 3] = [BackingCosts::SD_CARD, BackingCosts::SSD, BackingCosts::HDD];

/// Part of the digests: a page that moves is copied whole.
const ALL_LINES: u64 = u64::MAX;

/// Makes an access from its number and chance.
type Trace = fn(u32, &mut Chance) -> Access;

/// Each trace with the digests of its sizes.
const GOLDEN: [(&str, Trace, [u64; FRAMES.len()]); 4] = [
    (
        "popular pages",
        popular,
        [
            0xDEF6_E913_82BA_38A6,
            0xC02C_69CF_FD31_F89B,
            0x2CB0_47AB_BF15_A88F,
            0xC84B_043E_877A_93EF,
        ],
    ),
    (
        "scans and loops",
        scans,
        [
            0xE3DA_238D_9A6D_1598,
            0x4B73_21A6_43B4_0018,
            0x2ACE_8835_BDBE_EDFD,
            0x6AE6_F621_9D89_4EB9,
        ],
    ),
    (
        "a log and its checkpoints",
        log,
        [
            0x9C2A_B1F2_34CC_2FF5,
            0xEDC0_A4F2_968B_BE5C,
            0xB6B2_2508_CFC0_D8FD,
            0x7591_5B99_7682_0D14,
        ],
    ),
    (
        "a moving working set",
        moving,
        [
            0x8716_D0B6_124B_1574,
            0x7232_949A_5AAE_5396,
            0xC592_C4AB_3265_9433,
            0x9ED4_E82B_C0AB_C36B,
        ],
    ),
];
/// Of caches in use: pages are cleaned and removed, they are resized, their device gets slower. The modes
/// in turn, then each order alone.
const IN_USE: [u64; 3] = [0x96CB_7B81_0888_C926, 0xB599_F2FD_5239_AFCF, 0xE4C9_5D02_774F_6613];

struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(((self.0 >> 32) * u64::from(limit)) >> 32).expect("less than the limit")
    }

    /// Returns lower numbers more often.
    fn low(&mut self, limit: u32) -> u32 {
        let limit = 1 + self.below(limit);
        self.below(limit)
    }
}

fn one(page: u32, len: u16, op: Op) -> Access {
    Access { page: PageNo(page % TRACE_PAGES), start: 0, len, op }
}

fn popular(_: u32, chance: &mut Chance) -> Access {
    let rank = chance.low(TRACE_PAGES);
    let len = [64, 512, 1500, 4096][chance.below(4) as usize];
    let op = if chance.below(2) == 0 { Op::Read } else { Op::Write };
    // Popular pages lie apart.
    one(rank.wrapping_mul(7919), len, op)
}

fn scans(at: u32, chance: &mut Chance) -> Access {
    match at / 700 % 4 {
        0 => one(at, 4096, Op::Read),
        1 => one(at % 2500, 4096, Op::Write),
        2 => one(at % 900 * 3, 4096, Op::Read),
        _ => one(chance.below(TRACE_PAGES), 256, Op::Write),
    }
}

fn log(at: u32, chance: &mut Chance) -> Access {
    match at % 8 {
        0..3 => one(10_000 + at / 16 % 2000, 1200, Op::Write),
        3 => one(10_000 + at / 16 % 2000, 4096, Op::Write),
        4 if at / 2000 % 3 == 2 => one(chance.below(9000), 4096, Op::Write),
        4..6 => one(chance.below(2500), 4096, Op::Read),
        _ => one(chance.low(9000), 4096, Op::Read),
    }
}

fn moving(at: u32, chance: &mut Chance) -> Access {
    let page = at / 3 + chance.low(1500);
    let len = if chance.below(5) == 0 { 4096 } else { 128 };
    one(page, len, if chance.below(3) == 0 { Op::Read } else { Op::Write })
}

/// FNV-1a over the actions.
struct Digest {
    hash: u64,
    evictions: u32,
}

impl Digest {
    fn new() -> Self {
        Self { hash: 0xCBF2_9CE4_8422_2325, evictions: 0 }
    }

    fn add(&mut self, words: &[u64]) {
        for word in words {
            self.hash = (self.hash ^ word).wrapping_mul(0x0100_0000_01B3);
            self.hash ^= self.hash >> 32;
        }
    }

    /// Adds the policy's reports on its pages.
    fn add_state<S: Storage>(&mut self, policy: &Everbyte<S>) {
        let directory = policy.directory();
        let Capacity { dram, scm } = directory.used();
        self.add(&[dram.into(), scm.into(), directory.dirty_pages().into()]);
        for page in (0..TRACE_PAGES).map(PageNo) {
            let tier = directory.tier(page).map_or(0, |tier| 1 + tier as u64);
            self.add(&[tier, directory.is_dirty(page).into()]);
        }
        let mut from = Some(PageNo(0));
        while let Some(page) = from.and_then(|from| policy.next_waiting(from)) {
            self.add(&[page.0.into()]);
            from = page.0.checked_add(1).map(PageNo);
        }
    }
}

impl Actions for Digest {
    fn act(&mut self, action: Action) {
        match action {
            Action::Hit { found, served } => self.add(&[1, found as u64, served as u64]),
            Action::Fill { page, tier, why } => {
                self.add(&[2, page.0.into(), tier as u64, why as u64]);
            }
            Action::Move { page, to, dirty, why } => {
                self.add(&[3, page.0.into(), to as u64, ALL_LINES, dirty.into(), why as u64]);
            }
            Action::Drop { page, from, why } => {
                self.evictions += 1;
                self.add(&[4, page.0.into(), from as u64, why as u64]);
            }
            Action::Evict { page, from, why } => {
                self.evictions += 1;
                self.add(&[5, page.0.into(), from as u64, why as u64]);
            }
            Action::Copy { .. } | Action::Update { .. } => panic!("its tiers are exclusive"),
        }
    }
}

fn capacity_of(frames: u32) -> Capacity {
    Capacity { dram: frames / 4, scm: frames - frames / 4 }
}

fn digest(trace: Trace, frames: u32) -> u64 {
    let mut digest = Digest::new();
    for backing in DEVICES {
        let (mut chance, storage) = (Chance(frames.into()), Dense { pages: TRACE_PAGES });
        let costs = Costs::with_backing(backing);
        let mut policy = Everbyte::new(storage, capacity_of(frames), 512, costs);
        for at in 0..ACCESSES {
            policy.access(trace(at, &mut chance), &mut digest);
        }
        digest.add_state(&policy);
    }
    assert!(digest.evictions > 1000, "{} decisions at {frames}", digest.evictions);
    digest.hash
}

#[test]
fn decisions_on_traces_stay_what_they_are() {
    let now = GOLDEN.map(|(name, trace, _)| (name, FRAMES.map(|frames| digest(trace, frames))));
    let golden = GOLDEN.map(|(name, _, digests)| (name, digests));
    assert_eq!(now, golden, "{now:#X?}");
}

/// Accesses mixed with the events of a cache in use.
fn use_it<S: Storage>(mut policy: Everbyte<S>) -> u64 {
    let (mut digest, mut chance) = (Digest::new(), Chance(5));
    let traces = [popular, scans, log, moving];
    for at in 0..ACCESSES {
        policy.access(traces[at as usize / 5000 % 4](at, &mut chance), &mut digest);
        let page = PageNo(chance.below(TRACE_PAGES));
        match chance.below(64) {
            0 => policy.remove(page),
            1 => policy.cleaned(page),
            // Those that are about to be written back are cleaned in the order of sectors.
            2..6 => {
                let next = policy.next_waiting(page);
                next.into_iter().for_each(|page| policy.cleaned(page));
            }
            _ => {}
        }
        match at {
            9000 => policy.resize(capacity_of(4000), &mut digest),
            15_000 => policy.set_costs(Costs::with_backing(BackingCosts::HDD)),
            21_000 => policy.resize(Capacity { dram: 100, scm: 300 }, &mut digest),
            _ => {}
        }
        if at % 3000 == 0 {
            digest.add_state(&policy);
        }
    }
    digest.hash
}

fn use_each<S: Storage>(storage: S) -> [u64; 3] {
    let capacity = capacity_of(1000);
    [
        use_it(Everbyte::new(storage, capacity_of(400), 512, Costs::default())),
        use_it(Everbyte::with_rules(storage, capacity, Rules::ALL, FAST)),
        use_it(Everbyte::with_rules(storage, capacity, LRU_ORDER, FAST)),
    ]
}

#[test]
fn decisions_of_a_cache_in_use_stay_what_they_are() {
    let (dense, sparse) = (use_each(Dense { pages: TRACE_PAGES }), use_each(Sparse));
    assert_eq!((dense, sparse), (IN_USE, IN_USE), "{dense:#X?}");
}
