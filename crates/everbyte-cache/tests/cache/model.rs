//! Random requests, write-backs and restarts against a plain array of bytes.

use std::sync::Arc;

use everbyte_cache::{Mode, Settings};
use everbyte_device::{BlockDevice, Fua, Hole, MemoryDevice};
use proptest::prelude::*;

use crate::{Dice, PAGE, POLICIES, medium, open, settings};

/// Not a multiple of the page size.
const SIZE: u64 = 40 * PAGE - 1000;

#[derive(Clone, Debug)]
enum Step {
    Write {
        at: u64,
        len: u64,
        seed: u64,
        fua: bool,
    },
    Read {
        at: u64,
        len: u64,
    },
    Zero {
        at: u64,
        len: u64,
        discard: bool,
        fua: bool,
    },
    Flush,
    Sweep,
    Drain,
    /// Opened again without having been closed, after a flush.
    Kill,
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    let len = prop_oneof![1..600_u64, Just(4096), 1..20_000_u64];
    (0..SIZE, len, any::<bool>()).prop_map(|(at, len, aligned)| {
        let at = if aligned { at / PAGE * PAGE } else { at };
        (at, len.min(SIZE - at))
    })
}

fn step() -> impl Strategy<Value = Step> {
    let write = (range(), any::<u64>(), proptest::bool::weighted(0.1))
        .prop_map(|((at, len), seed, fua)| Step::Write { at, len, seed, fua });
    let zero = (range(), any::<bool>(), proptest::bool::weighted(0.1))
        .prop_map(|((at, len), discard, fua)| Step::Zero { at, len, discard, fua });
    prop_oneof![
        10 => write,
        8 => range().prop_map(|(at, len)| Step::Read { at, len }),
        2 => zero,
        1 => Just(Step::Flush),
        2 => Just(Step::Sweep),
        1 => Just(Step::Drain),
        1 => Just(Step::Kill),
    ]
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

fn run(settings: &Settings, steps: &[Step]) -> Result<(), TestCaseError> {
    let medium = medium(512, settings);
    let backing = Arc::new(MemoryDevice::new(SIZE));
    let reopen = || open(&medium, Arc::<MemoryDevice>::clone(&backing)).unwrap();
    let mut cache = reopen();
    let mut model = vec![0; usize_of(SIZE)];
    let fua = |is_set| if is_set { Fua::Yes } else { Fua::No };
    for step in steps {
        match *step {
            Step::Write { at, len, seed, fua: is_set } => {
                let data = Dice(seed).bytes(usize_of(len));
                cache.write(at, &data, fua(is_set)).unwrap();
                model[usize_of(at)..usize_of(at + len)].copy_from_slice(&data);
            }
            Step::Read { at, len } => {
                let mut found = vec![0; usize_of(len)];
                cache.read(at, &mut found).unwrap();
                prop_assert!(found == model[usize_of(at)..usize_of(at + len)], "{:?}", step);
            }
            Step::Zero { at, len, discard, fua: is_set } => {
                if discard {
                    cache.discard(at, len, fua(is_set)).unwrap();
                } else {
                    cache.write_zeroes(at, len, Hole::Forbidden, false, fua(is_set)).unwrap();
                }
                model[usize_of(at)..usize_of(at + len)].fill(0);
            }
            Step::Flush => cache.flush().unwrap(),
            Step::Sweep => drop(cache.sweep().unwrap()),
            Step::Drain => {
                cache.drain().unwrap();
                let mut found = vec![0; usize_of(SIZE)];
                backing.read(0, &mut found).unwrap();
                prop_assert!(found == model, "drained, the backing device differs");
            }
            Step::Kill => {
                cache.flush().unwrap();
                drop(cache);
                cache = reopen();
            }
        }
        let stats = cache.stats();
        // All pages of the tiers, and the waiting ones.
        let room = (settings.dram_bytes + settings.scm_bytes) / PAGE + 2 * 4;
        prop_assert!(stats.pages <= room, "{:?}", stats);
    }
    let mut found = vec![0; usize_of(SIZE)];
    cache.read(0, &mut found).unwrap();
    prop_assert!(found == model, "at the end");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 2000, ..Default::default() })]

    #[test]
    fn is_an_array_of_bytes(
        mode in proptest::sample::select(&Mode::ALL[..]),
        policy in proptest::sample::select(&POLICIES[..]),
        (dram, scm) in (1..5_u64, 1..12_u64),
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        run(&Settings { mode, policy, ..settings(SIZE, dram, scm) }, &steps)?;
    }
}
