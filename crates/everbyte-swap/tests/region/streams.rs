//! Faults saved by a region: by read-ahead, and by protection only if it pays.

use everbyte_swap::{Region, RegionOptions};

use crate::{MIB, UNIT, space};

const UNITS: u64 = 16 * MIB / UNIT;

fn first_byte(unit: u64) -> usize {
    usize::try_from(unit * UNIT).unwrap()
}

/// A region with half of it in DRAM, and nonzero bytes in every unit.
fn filled(options: &RegionOptions) -> Region {
    let mut region = Region::map(16 * MIB, 8 * MIB, &space(20 * MIB), options).unwrap();
    (0..UNITS).for_each(|unit| region.as_mut_slice()[first_byte(unit)] = 1);
    region
}

#[test]
fn units_read_ahead_for_stores_are_writable() {
    for stride in [8, 256] {
        let mut region = filled(&RegionOptions::new());
        // The last units have pages: without them there is room for read-ahead.
        region.discard(12 * MIB..16 * MIB).unwrap();
        let before = region.statistics();
        for unit in (0..UNITS / 4).step_by(stride).chain((1..UNITS / 4).step_by(stride)) {
            region.as_mut_slice()[first_byte(unit)] = 2;
        }
        let after = region.statistics();
        if stride == 8 {
            assert!(after.units_read_ahead > before.units_read_ahead + 100, "{after:?}");
        }
        assert_eq!(after.faults_protected, before.faults_protected, "{after:?}");
    }
}

#[test]
fn protection_lasts_while_most_leave_clean() {
    let mut region = filled(&RegionOptions::new().read_ahead(1));
    let before = region.statistics();
    for _pass in 0..2 {
        for unit in 0..UNITS {
            let byte = &mut region.as_mut_slice()[first_byte(unit)];
            *byte = std::hint::black_box(*byte) + 1;
        }
    }
    let changed = region.statistics();
    let loads = changed.faults_load - before.faults_load;
    let stores = changed.faults_protected - before.faults_protected;
    assert!(stores < loads / 4, "{stores} faults on protected pages, {loads} loads");
    let load_all = || (0..UNITS).all(|unit| region.as_slice()[first_byte(unit)] == 3);
    assert!(load_all() && load_all() && load_all());
    let before = region.statistics();
    assert!(load_all());
    let after = region.statistics();
    let clean = after.units_evicted_clean - before.units_evicted_clean;
    let evicted = after.units_evicted - before.units_evicted;
    assert!(clean > evicted / 4 * 3, "{clean} of {evicted} units left clean");
}
