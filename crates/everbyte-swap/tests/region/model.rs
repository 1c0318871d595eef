//! Random sequences of calls, compared with a vector.

use everbyte_swap::{DirectMode, Region, RegionError, RegionOptions, Statistics};
use proptest::prelude::*;

use crate::{MIB, UNIT, space, transparent};

/// Steps of a region for the ranges of calls.
const STEPS: u64 = 512;

/// Sizes in bytes.
#[derive(Clone, Copy)]
struct Sizes {
    /// Of a step.
    step: u64,
    limit: u64,
    /// Minimum multiple kept by a pin.
    pin: u64,
}

const PAGED: Sizes = Sizes { step: UNIT, limit: MIB / 4, pin: UNIT };
const DIRECT: Sizes = Sizes { step: 8 * UNIT, limit: 4 * MIB, pin: 2 * MIB };

/// A call on a range of steps, from the first, so many.
#[derive(Clone, Debug)]
enum Call {
    Fill(u64, u64, u8),
    Zero(u64, u64),
    Change(u64, u64),
    Read(u64, u64),
    Discard(u64, u64),
    Prefetch(u64, u64),
    Pin(u64, u64),
    Unpin,
    Limit(u64),
}

fn call() -> impl Strategy<Value = Call> {
    let range = || (0..STEPS, 1..80u64);
    prop_oneof![
        4 => (range(), 1..255u8).prop_map(|((at, units), byte)| Call::Fill(at, units, byte)),
        1 => range().prop_map(|(at, units)| Call::Zero(at, units)),
        3 => range().prop_map(|(at, units)| Call::Change(at, units)),
        3 => range().prop_map(|(at, units)| Call::Read(at, units)),
        1 => range().prop_map(|(at, units)| Call::Discard(at, units)),
        1 => range().prop_map(|(at, units)| Call::Prefetch(at, units)),
        2 => (0..STEPS, 1..12u64).prop_map(|(at, units)| Call::Pin(at, units)),
        2 => Just(Call::Unpin),
        1 => (64..400u64).prop_map(Call::Limit),
    ]
}

/// A region and its expected contents.
struct ModelledRegion {
    sizes: Sizes,
    region: Region,
    model: Vec<u8>,
    pinned: Vec<(u64, u64)>,
}

impl ModelledRegion {
    fn new(options: &RegionOptions, sizes: Sizes) -> Self {
        let len = STEPS * sizes.step;
        let region = Region::map(len, sizes.limit, &space(len), options).unwrap();
        let model = vec![0; usize::try_from(len).unwrap()];
        Self { sizes, region, model, pinned: Vec::new() }
    }

    fn bytes(&self, at: u64, steps: u64) -> std::ops::Range<u64> {
        let step = self.sizes.step;
        at * step..(at + steps).min(STEPS) * step
    }

    /// The bytes kept by a pin of a range.
    fn kept(&self, range: &std::ops::Range<u64>) -> std::ops::Range<u64> {
        let pin = self.sizes.pin;
        range.start / pin * pin..range.end.next_multiple_of(pin)
    }

    /// Changes bytes of region and model in the same way.
    fn change(&mut self, at: u64, units: u64, change: impl Fn(usize, &mut u8)) {
        let range = self.bytes(at, units);
        let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        for bytes in [self.region.as_mut_slice(), &mut self.model[..]] {
            // Every 97th byte: enough to touch each unit in some 40 places.
            for at in range.clone().step_by(97) {
                change(at, &mut bytes[at]);
            }
        }
    }

    fn make(&mut self, call: &Call) {
        match *call {
            Call::Fill(at, units, byte) => {
                self.change(at, units, |at, place| *place = byte ^ at.to_le_bytes()[1]);
            }
            Call::Zero(at, units) => {
                let range = self.bytes(at, units);
                let (start, end) =
                    (usize::try_from(range.start).unwrap(), usize::try_from(range.end).unwrap());
                self.region.as_mut_slice()[start..end].fill(0);
                self.model[start..end].fill(0);
            }
            Call::Change(at, units) => {
                self.change(at, units, |_, place| *place = place.wrapping_add(1));
            }
            Call::Read(at, units) => self.compare(self.bytes(at, units)),
            Call::Discard(at, units) => self.discard(at, units),
            Call::Prefetch(at, units) => {
                let range = self.bytes(at, units);
                let most = range.end - range.start;
                assert!(self.region.prefetch(range).unwrap() <= most);
            }
            Call::Pin(at, units) => match self.region.pin(self.bytes(at, units)) {
                Ok(()) => self.pinned.push((at, units)),
                Err(RegionError::TooMuchPinned { .. }) => {}
                Err(error) => panic!("{error}"),
            },
            Call::Unpin => {
                if let Some((at, units)) = self.pinned.pop() {
                    self.region.unpin(self.bytes(at, units)).unwrap();
                }
            }
            Call::Limit(units) => match self.region.set_dram_limit(units * self.sizes.step) {
                Ok(()) | Err(RegionError::LimitTooLow { .. }) => {}
                Err(error) => panic!("{error}"),
            },
        }
    }

    fn discard(&mut self, at: u64, units: u64) {
        let range = self.bytes(at, units);
        let is_pinned = self.pinned.iter().any(|&(pin_at, pin_units)| {
            let pinned = self.kept(&self.bytes(pin_at, pin_units));
            pinned.start < range.end && range.start < pinned.end
        });
        match self.region.discard(range.clone()) {
            Ok(()) => assert!(!is_pinned),
            Err(RegionError::Pinned { offset }) => {
                assert!(is_pinned && range.contains(&offset));
                return;
            }
            Err(error) => panic!("{error}"),
        }
        let (start, end) =
            (usize::try_from(range.start).unwrap(), usize::try_from(range.end).unwrap());
        self.model[start..end].fill(0);
    }

    fn compare(&self, range: std::ops::Range<u64>) {
        let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        let is_equal = self.region.as_slice()[range.clone()] == self.model[range.clone()];
        assert!(is_equal, "bytes {range:?}");
    }
}

fn run(calls: &[Call], options: &RegionOptions, sizes: Sizes) -> ModelledRegion {
    let mut modelled = ModelledRegion::new(options, sizes);
    for call in calls {
        modelled.make(call);
    }
    modelled.compare(0..modelled.region.len());
    modelled.region.check().unwrap();
    let pinned = modelled.pinned.iter().map(|&(at, units)| {
        let range = modelled.bytes(at, units);
        (range.end - range.start) / UNIT
    });
    let statistics = modelled.region.statistics();
    assert_eq!(statistics.units_pinned, pinned.sum::<u64>());
    assert_eq!(statistics.units_over_limit, 0, "{statistics:?}");
    modelled
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn region_matches_memory(calls in prop::collection::vec(call(), 1..60)) {
        run(&calls, &RegionOptions::new(), PAGED);
    }

    #[test]
    fn untracked_region_matches_memory(
        calls in prop::collection::vec(call(), 1..60),
    ) {
        run(&calls, &RegionOptions::new().tracks_stores(false), PAGED);
    }

    #[test]
    fn transparent_region_matches_memory(calls in prop::collection::vec(call(), 1..30)) {
        let Some(options) = transparent(1) else { return Ok(()) };
        run(&calls, &options, PAGED);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn direct_region_matches_memory(calls in prop::collection::vec(call(), 1..30)) {
        for mode in [DirectMode::Still, DirectMode::Exchanging] {
            let options = RegionOptions::new().direct(mode);
            let modelled = run(&calls, &options, DIRECT);
            let Statistics { units_resident, units_limit, .. } = modelled.region.statistics();
            assert!(units_resident <= units_limit || !modelled.pinned.is_empty());
        }
    }
}
