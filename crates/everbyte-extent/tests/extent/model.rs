//! Random requests to both extents, against vectors of bytes: the present contents, after a clean shutdown,
//! and after the end of the process, with volatile changes undone.

use std::sync::Arc;

use everbyte_extent::{Delta, FuaOutcome};
use everbyte_media::{Mapped, MediaOptions};
use proptest::prelude::*;

use crate::pair::{BOTH, Pair, Settings, pattern};

/// Blocks of the pool. No workload fills it, and no workload fills the log: checkpoints come only on request.
const POOL_BLOCKS: u64 = 3000;
/// Sizes of extents in bytes. The largest has a leaf that can be unlinked, and needs a larger table.
const SIZES: [u64; 7] = [1, 511, 4096, 33_333, 70_001, (2 << 20) + 3, (4 << 20) + 4097];

#[derive(Clone, Debug)]
enum Step {
    /// Places are parts of the size, in 1/65536; bytes beyond the end are cut off.
    Write {
        which: usize,
        at: u16,
        len: u16,
        seed: u8,
        fast: bool,
    },
    /// A write of up to so many whole blocks on the direct path, or by a plan.
    Blocks {
        which: usize,
        at: u16,
        count: usize,
        seed: u8,
        is_durable: bool,
    },
    /// The same, of blocks.
    Zero {
        which: usize,
        at: u16,
        len: u32,
        whole_blocks: bool,
        reserve: bool,
    },
    Resize {
        which: usize,
        size: usize,
    },
    Flush,
    Reopen,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..2_usize, any::<u16>());
    let len = || prop_oneof![1..200_u16, 1..9000_u16, Just(4096)];
    let zeroed = || prop_oneof![1..9000_u32, Just(2 << 20), 1..5_000_000_u32];
    prop_oneof![
        10 => (place(), len(), any::<u8>(), any::<bool>())
            .prop_map(|((which, at), len, seed, fast)| Step::Write { which, at, len, seed, fast }),
        6 => (place(), 2..7_usize, any::<u8>(), any::<bool>())
            .prop_map(|((which, at), count, seed, is_durable)| {
                Step::Blocks { which, at, count, seed, is_durable }
            }),
        4 => (place(), zeroed(), any::<bool>(), any::<bool>())
            .prop_map(|((which, at), len, whole_blocks, reserve)| {
                // Space that is kept for whole leaves would fill the pool.
                let len = if reserve { len % 9000 } else { len };
                Step::Zero { which, at, len, whole_blocks, reserve }
            }),
        2 => (0..2_usize, 0..SIZES.len()).prop_map(|(which, size)| Step::Resize { which, size }),
        3 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
    ]
}

/// Bytes of both extents.
type Contents = [Vec<u8>; 2];

/// Contents of both extents, now and after a crash.
struct Model {
    now: Contents,
    durable: Contents,
}

/// The byte of `content` for `at`.
fn place(content: &[u8], at: u16) -> usize {
    content.len() * usize::from(at) / (1 << 16)
}

fn write(pair: &Pair<Mapped>, model: &mut Model, step: &Step) {
    let &Step::Write { which, at, len, seed, fast } = step else { return };
    let start = place(&model.now[which], at);
    let end = model.now[which].len().min(start + usize::from(len));
    let data = pattern(u64::from(seed), end - start);
    if fast && pair.write_fast(which, start as u64, &data).unwrap() == FuaOutcome::Durable {
        model.durable[which][start..end].copy_from_slice(&data);
    } else {
        pair.write(which, start as u64, &data).unwrap();
    }
    model.now[which][start..end].copy_from_slice(&data);
}

fn write_blocks(pair: &Pair<Mapped>, model: &mut Model, step: &Step) {
    let &Step::Blocks { which, at, count, seed, is_durable } = step else { return };
    let start = place(&model.now[which], at) & !4095;
    let end = (model.now[which].len() & !4095).min(start + count * 4096);
    let data = pattern(300 + u64::from(seed), end.saturating_sub(start));
    if data.is_empty() {
        return;
    }
    let is_done = is_durable
        && pair.write_blocks_durably(which, start as u64, &data).unwrap() == FuaOutcome::Durable;
    if is_done {
        model.durable[which][start..end].copy_from_slice(&data);
    } else if pair.try_direct_path(which, start as u64, &data).unwrap().is_none() {
        pair.write(which, start as u64, &data).unwrap();
    }
    model.now[which][start..end].copy_from_slice(&data);
}

fn zero(pair: &Pair<Mapped>, model: &mut Model, step: &Step) {
    let &Step::Zero { which, at, len, whole_blocks, reserve } = step else { return };
    let mask = if whole_blocks { !4095 } else { !0 };
    let start = place(&model.now[which], at) & mask;
    let end = model.now[which].len().min(start + usize::try_from(len).unwrap());
    pair.zero(which, start as u64, (end - start) as u64, reserve).unwrap();
    model.now[which][start..end].fill(0);
}

/// Makes a step, and returns the pair; it may be another one.
fn apply(pair: Pair<Mapped>, model: &mut Model, step: &Step) -> Pair<Mapped> {
    match *step {
        Step::Write { .. } => write(&pair, model, step),
        Step::Blocks { .. } => write_blocks(&pair, model, step),
        Step::Zero { .. } => zero(&pair, model, step),
        Step::Resize { which, size } => {
            pair.resize(which, SIZES[size]).unwrap();
            model.now[which].resize(usize::try_from(SIZES[size]).unwrap(), 0);
            model.durable = model.now.clone();
        }
        Step::Flush => {
            pair.volume().flush().unwrap();
            model.durable = model.now.clone();
        }
        Step::Reopen => {
            model.durable = model.now.clone();
            return pair.reopened();
        }
        Step::Crash => {
            model.now = model.durable.clone();
            return pair.crashed();
        }
    }
    pair
}

fn check(pair: &Pair<Mapped>, model: &Model, step: &Step) -> Result<(), TestCaseError> {
    for which in BOTH {
        let found = pair.content(which).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let expected = &model.now[which];
        prop_assert_eq!(found.len(), expected.len(), "extent {} after {:?}", which, step);
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        prop_assert_eq!(wrong, None, "byte of extent {} after {:?}", which, step);
    }
    pair.judge().map_err(TestCaseError::fail)
}

fn settings() -> impl Strategy<Value = Settings> {
    let delta = prop_oneof![Just(Delta::On), Just(Delta::Off), Just(Delta::Auto)];
    let threshold = prop_oneof![Just(0), Just(1), Just(32), Just(65)];
    (delta, threshold, any::<bool>()).prop_map(|(delta, threshold_lines, checksums)| Settings {
        sizes: [33_333, 70_001],
        delta,
        threshold_lines,
        checksums,
        lanes: 2,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn extents_match_byte_vectors(
        settings in settings(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let medium = Mapped::anonymous(POOL_BLOCKS * 4096, &MediaOptions::new()).unwrap();
        let mut pair = Pair::make(&Arc::new(medium), &settings);
        let empty = settings.sizes.map(|size| vec![0; usize::try_from(size).unwrap()]);
        let mut model = Model { now: empty.clone(), durable: empty };
        for (index, step) in steps.iter().enumerate() {
            pair = apply(pair, &mut model, step);
            // To compare everything costs most, and to judge makes a checkpoint.
            if index % 7 == 6 || matches!(step, Step::Crash | Step::Reopen | Step::Resize { .. }) {
                check(&pair, &model, step)?;
                model.durable = model.now.clone();
            }
        }
        pair = apply(pair, &mut model, &Step::Crash);
        check(&pair, &model, &Step::Crash)?;
    }
}
