//! Regions in direct mode on real memory: the place of their bytes, their moves, and refusals.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::time::Duration;

use everbyte_swap::{
    DirectMode, FaultMode, FileStore, FreeSlots, Region, RegionError, RegionOptions, SlotNo,
    SwapSpace,
};

use crate::hazards::{fork, load_in_vforked, run_ignored};
use crate::{MIB, UNIT, space};

const CHUNK: u64 = 2 * MIB;
const CHUNKS: u64 = 6;
const LEN: u64 = CHUNKS * CHUNK;

fn still() -> RegionOptions {
    RegionOptions::new().direct(DirectMode::Still)
}

fn region(limit: u64, space: &Arc<SwapSpace>) -> Region {
    Region::map(LEN, limit, space, &still()).unwrap()
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

fn expected(unit: u64) -> u8 {
    u8::try_from(unit % 251).unwrap() + 1
}

/// Stores to every unit.
fn fill(region: &mut Region) {
    for unit in 0..region.len() / UNIT {
        region.as_mut_slice()[index(unit * UNIT)] = expected(unit);
    }
}

fn check(region: &Region) {
    for unit in 0..region.len() / UNIT {
        assert_eq!(region.as_slice()[index(unit * UNIT)], expected(unit), "unit {unit}");
    }
}

/// Lines of `/proc/self/maps` in the region.
fn mappings(region: &Region) -> usize {
    let first = region.as_mut_ptr().addr();
    let range = first..first + index(region.len());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let starts =
        maps.lines().filter_map(|line| usize::from_str_radix(line.split('-').next()?, 16).ok());
    starts.filter(|start| range.contains(start)).count()
}

#[test]
fn bytes_above_limit_are_store_memory() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("store");
    let space = SwapSpace::new(FileStore::create(&path, LEN).unwrap());
    let mut region = Region::map(LEN, 0, &space, &still()).unwrap();
    fill(&mut region);
    let faults = region.statistics().faults_store;
    assert_eq!(faults, CHUNKS, "one for each chunk");
    let mut file = Vec::new();
    File::open(&path).unwrap().read_to_end(&mut file).unwrap();
    assert!(file == region.as_slice(), "chunks and runs have one order, and the same bytes");
    assert_eq!(mappings(&region), 1, "neighbours are one mapping");
    assert_eq!(region.bytes_stored(UNIT..3 * UNIT).unwrap(), 2 * UNIT);
    assert_eq!(space.slots_free(), 0);
    let statistics = region.statistics();
    assert_eq!((statistics.units_resident, statistics.units_direct), (0, LEN / UNIT));
    drop(region);
    assert_eq!(space.slots_free(), LEN / UNIT);
}

#[test]
fn new_chunk_on_used_run_reads_zeroes() {
    let space = space(LEN);
    let mut before = region(0, &space);
    before.as_mut_slice().fill(7);
    drop(before);
    let mut after = region(CHUNK, &space);
    assert!(after.as_slice().iter().all(|byte| *byte == 0));
    after.as_mut_slice().fill(7);
    after.discard(UNIT..LEN - UNIT).unwrap();
    let last = index(LEN - UNIT);
    assert!(after.as_slice()[index(UNIT)..last].iter().all(|byte| *byte == 0));
    assert!(after.as_slice()[..index(UNIT)].iter().all(|byte| *byte == 7));
    assert!(after.as_slice()[last..].iter().all(|byte| *byte == 7));
}

#[test]
fn chunk_moves_preserve_bytes() {
    let space = space(LEN);
    let mut region = region(2 * CHUNK, &space);
    fill(&mut region);
    region.set_dram_limit(4 * CHUNK).unwrap();
    assert_eq!(region.prefetch(CHUNK..LEN).unwrap(), 3 * CHUNK);
    assert_eq!(region.statistics().units_in, 2 * CHUNK / UNIT);
    check(&region);
    region.set_dram_limit(CHUNK).unwrap();
    let statistics = region.statistics();
    assert_eq!(statistics.units_out, 3 * CHUNK / UNIT);
    assert_eq!(statistics.units_resident, CHUNK / UNIT);
    check(&region);
    region.check().unwrap();
}

/// Its last chunk is shorter.
#[test]
fn region_with_short_last_chunk_works() {
    let space = space(2 * CHUNK);
    let mut region = Region::map(CHUNK + UNIT, 0, &space, &still()).unwrap();
    fill(&mut region);
    check(&region);
    region.set_dram_limit(CHUNK).unwrap();
    assert_eq!(region.prefetch(CHUNK..CHUNK + UNIT).unwrap(), UNIT);
    check(&region);
    region.discard(CHUNK..CHUNK + UNIT).unwrap();
    assert_eq!(region.statistics().units_resident, 0, "all of the chunk's units are given up");
}

#[test]
fn system_call_on_touched_or_pinned_succeeds() {
    let space = space(LEN);
    let mut region = region(CHUNK, &space);
    let zeroes = || File::open("/dev/zero").unwrap();
    let error = zeroes().read(&mut region.as_mut_slice()[..8]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    fill(&mut region);
    for chunk in 0..CHUNKS {
        let at = index(chunk * CHUNK);
        assert_eq!(zeroes().read(&mut region.as_mut_slice()[at..at + 8]).unwrap(), 8);
    }
    let range = 3 * CHUNK + 5..4 * CHUNK + 5;
    region.pin(range.clone()).unwrap();
    region.set_dram_limit(LEN).unwrap();
    assert_eq!(region.prefetch(3 * CHUNK..LEN).unwrap(), 0, "what is pinned stays");
    assert!(
        matches!(region.discard(0..LEN), Err(RegionError::Pinned { offset }) if offset == 3 * CHUNK)
    );
    region.unpin(range).unwrap();
    assert_eq!(region.prefetch(3 * CHUNK..LEN).unwrap(), 3 * CHUNK);
}

#[test]
fn forked_child_lacks_direct_region() {
    let space = space(LEN);
    let mut region = region(2 * CHUNK, &space);
    fill(&mut region);
    region.set_dram_limit(3 * CHUNK).unwrap();
    region.prefetch(0..LEN).unwrap();
    region.discard(5 * CHUNK..LEN).unwrap();
    for chunk in 0..CHUNKS {
        let place = region.as_mut_ptr().wrapping_add(index(chunk * CHUNK));
        let status = fork(|| {
            // SAFETY: restores the default action, used by the handler of faults as its fallback.
            unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
            // SAFETY: not the child's memory; that it ends is what is tested.
            i32::from(unsafe { place.read_volatile() })
        });
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "chunk {chunk}: {status:?}");
    }
    let status = fork(|| {
        let done = region.prefetch(0..LEN).and_then(|_| region.discard(0..LEN));
        i32::from(!matches!(done, Err(RegionError::ForkedChild)))
    });
    assert_eq!(status.code(), Some(0), "a call in a child moves chunks of its parent's");
    assert!(matches!(region.fork_begins(0..LEN), Err(RegionError::NotDirect { .. })));
}

#[test]
fn vforked_child_touches_chunk_first() {
    let region = region(CHUNK, &space(LEN));
    assert_eq!(load_in_vforked(&region).code(), Some(0));
}

#[test]
fn foreign_segv_ends_process() {
    let space = space(LEN);
    let region = region(CHUNK, &space);
    let status = fork(|| {
        // SAFETY: nothing is mapped there; that it ends is what is tested.
        i32::from(unsafe { std::ptr::without_provenance::<u8>(4096).read_volatile() })
    });
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status:?}");
    drop(region);
}

#[test]
#[ignore = "ends the process; run by instruction_fetch_from_region_ends_process"]
fn child_calls_a_region() {
    let mut region = region(CHUNK, &space(LEN));
    region.as_mut_slice()[0] = 0xc3;
    // SAFETY: ends the process if it has not ended by then.
    unsafe { libc::alarm(20) };
    // SAFETY: no function is there; that the process ends is what is tested.
    let call: extern "C" fn() = unsafe { std::mem::transmute(region.as_mut_ptr()) };
    call();
}

#[test]
fn instruction_fetch_from_region_ends_process() {
    let status = run_ignored("direct::child_calls_a_region");
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status:?}");
}

/// A custom allocator without free slots.
struct NoSlots;

impl FreeSlots for NoSlots {
    fn capacity(&self) -> u64 {
        LEN / UNIT
    }

    fn free_count(&self) -> u64 {
        0
    }

    fn alloc(&self, _hint: SlotNo, _visits: &mut u64) -> Option<SlotNo> {
        None
    }

    fn free(&self, _slot: SlotNo) {}
}

#[test]
fn unsupported_direct_requests_are_refused() {
    let map = |space: &Arc<SwapSpace>, options| Region::map(LEN, CHUNK, space, &options);
    let own = SwapSpace::new(FileStore::anonymous(LEN).unwrap());
    assert!(matches!(map(&own, still()), Err(RegionError::NotMappable)));
    let custom = SwapSpace::with_free_slots(FileStore::anonymous(LEN).unwrap(), Box::new(NoSlots));
    assert!(matches!(map(&custom, still()), Err(RegionError::NotMappable)));
    let small = space(LEN - 2 * CHUNK);
    let needed = (CHUNKS * CHUNK) / UNIT;
    let refused = map(&small, still()).unwrap_err();
    assert!(
        matches!(refused, RegionError::SpaceTooSmall { needed: n, .. } if n == needed),
        "{refused}"
    );
    let good = space(LEN);
    let transparent = still().fault_mode(FaultMode::Transparent { handlers: 1 });
    assert!(matches!(map(&good, transparent), Err(RegionError::NotDirect { .. })));
    let bad = Region::map(UNIT + 1, 0, &good, &still());
    assert!(matches!(bad, Err(RegionError::BadLength { .. })));
    assert_eq!(good.slots_unreserved(), good.slots());
}

#[test]
fn no_chunk_moves_above_mapping_bound() {
    let space = space(LEN);
    let options = still().mappings_max(1);
    let mut region = Region::map(LEN, CHUNK, &space, &options).unwrap();
    fill(&mut region);
    region.set_dram_limit(LEN).unwrap();
    assert_eq!(region.prefetch(0..LEN).unwrap(), CHUNK);
    assert_eq!(region.statistics().moves_refused, 1);
    check(&region);
}

/// A truncated store lacks the memory of the run.
#[test]
fn truncated_run_is_reported_and_dram_stays() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("store");
    let space = SwapSpace::new(FileStore::create(&path, LEN).unwrap());
    let mut region = region(CHUNK, &space);
    fill(&mut region);
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    region.set_dram_limit(LEN).unwrap();
    let lost = region.prefetch(CHUNK..2 * CHUNK).unwrap_err();
    assert!(matches!(lost, RegionError::Unreadable { offset: CHUNK }), "{lost}");
    assert_eq!(region.as_slice()[index(UNIT)], expected(1), "what is in DRAM is still there");
}

/// Accesses one chunk repeatedly until it is in DRAM, after a few rounds.
#[test]
fn hot_chunk_replaces_cold_one() {
    let space = space(LEN);
    let options = RegionOptions::new().direct(DirectMode::Exchanging);
    let mut region = Region::map(LEN, 2 * CHUNK, &space, &options).unwrap();
    fill(&mut region);
    let hot = index(LEN - CHUNK);
    while region.bytes_stored(LEN - CHUNK..LEN).unwrap() > 0 {
        let statistics = region.statistics();
        assert!(statistics.chunks_watched < 10_000, "{statistics:?}");
        for _ in 0..1000 {
            region.as_mut_slice()[hot + 1] ^= 1;
        }
    }
    let statistics = region.statistics();
    assert!(statistics.chunks_watched > 0 && statistics.chunks_touched > 0, "{statistics:?}");
    // Rounds continue, and a chunk in a move counts as neither.
    let mut looks = 0;
    while region.statistics().units_resident != 2 * CHUNK / UNIT {
        looks += 1;
        assert!(looks < 10_000, "{:?}", region.statistics());
        // The move's thread needs a processor, and other tests have them all.
        std::thread::sleep(Duration::from_millis(1));
    }
    check(&region);
}
