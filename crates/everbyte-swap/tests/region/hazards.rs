//! Failures around a region and the promised outcomes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::iter;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use everbyte_media::MediaError;
use everbyte_swap::{
    FaultMode, FileStore, Region, RegionError, RegionOptions, SlotNo, SlotStore, SwapSpace,
};
use everbyte_testkit::is_root;

use crate::{MIB, UNIT, of_both_modes, space, transparent};

const LEN: u64 = 2 * MIB;
const LIMIT: u64 = MIB / 4;
const UNIT_LEN: usize = everbyte_swap::UNIT;

fn region(options: &RegionOptions) -> Region {
    Region::map(LEN, LIMIT, &space(LEN), options).unwrap()
}

fn unit(number: u64) -> usize {
    usize::try_from(number * UNIT).unwrap()
}

/// Stores to every unit, so the first ones are evicted.
fn fill(region: &mut Region) {
    for number in 0..region.len() / UNIT {
        region.as_mut_slice()[unit(number)] = u8::try_from(number % 251).unwrap() + 1;
    }
}

fn byte(region: &Region, number: u64) -> u8 {
    // SAFETY: in the region; that the load is made is what is tested.
    unsafe { region.as_mut_ptr().wrapping_add(unit(number)).read_volatile() }
}

/// A file of sevens.
fn sevens(bytes: usize) -> File {
    let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.write_all(&vec![7; bytes]).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file
}

/// Runs an ignored test of this file in a separate process.
fn run_child(name: &str) -> ExitStatus {
    run_ignored(&format!("hazards::{name}"))
}

/// Runs an ignored test of this binary in a separate process. Checks that the test exists, because
/// a run of no test succeeds.
pub(crate) fn run_ignored(path: &str) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", path, "--ignored", "--test-threads=1"]);
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("running 1 test\n"), "{path}: {said}");
    output.status
}

/// Runs `child` in a forked process, with its result as the exit status.
pub(crate) fn fork(child: impl FnOnce() -> i32) -> ExitStatus {
    // SAFETY: the child makes system calls and touches memory that is there, until it ends.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: ends the process.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: `status` may be written.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            ExitStatus::from_raw(status)
        }
    }
}

#[test]
fn forked_child_never_reads_zeroes() {
    let mut region = region(&RegionOptions::new());
    fill(&mut region);
    for number in [0, LEN / UNIT - 1] {
        let status = fork(|| {
            // SAFETY: restores the default action.
            unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
            i32::from(byte(&region, number))
        });
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "unit {number}: {status:?}");
    }
    assert_eq!(byte(&region, 0), 1);
}

/// A child does not have the region's unit; its own mapping there is ordinary memory.
#[test]
fn fault_in_forked_child_is_its_own() {
    let mut region = region(&RegionOptions::new());
    fill(&mut region);
    let (empty, at) = (sevens(0), region.as_mut_ptr().cast());
    let stored = region.bytes_stored(0..LEN).unwrap();
    let status = fork(|| {
        // SAFETY: ends the process if it has not ended by then.
        unsafe { libc::alarm(20) };
        let (access, flags) = (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: there is nothing in the child.
        let found = unsafe { libc::mmap(at, unit(1), access, flags, empty.as_raw_fd(), 0) };
        assert_eq!(found, at);
        i32::from(byte(&region, 0))
    });
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status:?}");
    // The parent may still evict.
    assert!(region.bytes_stored(0..LEN).unwrap() >= stored, "the child changed its parent's pages");
    assert!((0..LEN / UNIT).all(|number| u64::from(byte(&region, number)) == number % 251 + 1));
}

/// A child has its parent's descriptor, and the parent's state of pages at the fork.
#[test]
fn calls_in_forked_child_move_no_page() {
    for options in of_both_modes() {
        let mut region = region(&options);
        fill(&mut region);
        let status = fork(|| {
            let is_refused =
                |done: Result<(), RegionError>| matches!(done, Err(RegionError::ForkedChild));
            let all = [
                is_refused(region.prefetch(0..LEN).map(|_| ())),
                is_refused(region.pin(0..UNIT)),
                is_refused(region.unpin(0..UNIT)),
                is_refused(region.discard(0..LEN)),
                is_refused(region.set_dram_limit(2 * LIMIT)),
                is_refused(region.fork_begins(0..LEN)),
                is_refused(region.fork_ended()),
            ];
            i32::from(all.contains(&false))
        });
        assert_eq!(status.code(), Some(0), "{status:?}");
        region.discard(0..LEN).unwrap();
        assert!((0..LEN / UNIT).all(|number| byte(&region, number) == 0));
    }
}

/// Loads the first byte of a region, and ends with it.
extern "C" fn load_first(at: *mut libc::c_void) -> libc::c_int {
    // SAFETY: in the region; that the load is made is what is tested.
    unsafe { at.cast::<u8>().read_volatile() }.into()
}

/// Loads the first byte of a region in a child with this process's memory. The child ends
/// afterwards.
pub(crate) fn load_in_vforked(region: &Region) -> ExitStatus {
    let mut stack = vec![0u128; 1 << 14];
    let (top, at) = (stack.as_mut_ptr_range().end.cast(), region.as_mut_ptr().cast());
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child has a stack of its own, and ends before this thread goes on.
    let pid = unsafe { libc::clone(load_first, top, flags, at) };
    let mut status = 0;
    // SAFETY: `status` may be written.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    ExitStatus::from_raw(status)
}

#[test]
fn vforked_child_shares_region() {
    for options in of_both_modes() {
        let mut region = region(&options);
        fill(&mut region);
        assert!(region.bytes_stored(0..UNIT).unwrap() > 0);
        assert_eq!(load_in_vforked(&region).code(), Some(1));
    }
}

#[test]
fn read_only_pages_page() {
    for options in of_both_modes() {
        let mut region = region(&options);
        fill(&mut region);
        for number in (5..LEN / UNIT).step_by(29) {
            let page = region.as_mut_ptr().wrapping_add(unit(number)).cast();
            // SAFETY: whole pages of the region, to which nothing is stored below.
            assert_eq!(unsafe { libc::mprotect(page, UNIT_LEN, libc::PROT_READ) }, 0);
        }
        for _ in 0..3 {
            for number in 0..LEN / UNIT {
                assert_eq!(u64::from(byte(&region, number)), number % 251 + 1, "unit {number}");
                if number % 29 != 5 {
                    region.as_mut_slice()[unit(number) + 1] += 1;
                }
            }
        }
        region.check().unwrap();
        assert!(region.statistics().units_resident <= LIMIT / UNIT);
    }
}

#[test]
fn drop_in_forked_child_is_harmless() {
    let mut region = region(&RegionOptions::new());
    fill(&mut region);
    let mut lent = Some(region);
    let status = fork(|| {
        drop(lent.take());
        0
    });
    assert_eq!(status.code(), Some(0), "{status:?}");
    let region = lent.unwrap();
    assert!((0..LEN / UNIT).all(|number| u64::from(byte(&region, number)) == number % 251 + 1));
}

#[test]
fn announced_fork_copies_whole_region() {
    for options in of_both_modes() {
        let mut region = region(&options);
        fill(&mut region);
        assert!(region.bytes_stored(0..LEN).unwrap() > 0);
        region.fork_begins(0..LEN).unwrap();
        assert_eq!(region.bytes_stored(0..LEN).unwrap(), 0);
        let status = fork(|| {
            let is_whole =
                (0..LEN / UNIT).all(|number| u64::from(byte(&region, number)) == number % 251 + 1);
            // SAFETY: the child's own memory, which nobody else uses there.
            unsafe { region.as_mut_ptr().write(99) };
            i32::from(!is_whole || byte(&region, 0) != 99)
        });
        region.fork_ended().unwrap();
        assert_eq!(status.code(), Some(0), "{status:?}");
        region.as_mut_slice()[unit(7)] = 77;
        for number in 0..LEN / UNIT {
            let expected = if number == 7 { 77 } else { number % 251 + 1 };
            assert_eq!(u64::from(byte(&region, number)), expected, "unit {number}");
        }
        let later = fork(|| {
            // SAFETY: restores the default action.
            unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
            i32::from(byte(&region, 0))
        });
        assert_eq!(later.signal(), Some(libc::SIGSEGV), "{later:?}");
    }
}

/// Without its last, unused page, the region cannot be shared as a whole.
#[test]
#[ignore = "takes a page of a region away; run by partly_shared_region_is_not_shared"]
fn child_shares_part_of_region() {
    let mut region = region(&RegionOptions::new().read_ahead(1));
    let last = LEN / UNIT - 1;
    let fill = |region: &mut Region| {
        (0..last).for_each(|number| region.as_mut_slice()[unit(number)] = 1);
    };
    fill(&mut region);
    let page = region.as_mut_ptr().wrapping_add(unit(last)).cast();
    // SAFETY: nobody touches this page, nor maps anything in its place.
    assert_eq!(unsafe { libc::munmap(page, UNIT_LEN) }, 0);
    let refused = region.fork_begins(0..LEN).unwrap_err();
    assert!(matches!(refused, RegionError::Io { .. }), "{refused}");
    fill(&mut region);
    let status = fork(|| {
        // SAFETY: restores the default action.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        i32::from(byte(&region, 0))
    });
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status:?}");
}

#[test]
fn partly_shared_region_is_not_shared() {
    let status = run_child("child_shares_part_of_region");
    assert!(status.success(), "{status:?}");
}

#[test]
fn overlapping_forks_copy_whole_region() {
    for options in of_both_modes() {
        let mut region = region(&options);
        fill(&mut region);
        region.fork_begins(0..LEN).unwrap();
        region.fork_begins(0..LEN).unwrap();
        region.fork_ended().unwrap();
        let is_whole =
            || (0..LEN / UNIT).all(|number| u64::from(byte(&region, number)) == number % 251 + 1);
        assert_eq!(fork(|| i32::from(!is_whole())).code(), Some(0), "another has not forked yet");
        region.fork_ended().unwrap();
        let later = fork(|| {
            // SAFETY: restores the default action.
            unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
            i32::from(byte(&region, 0))
        });
        assert_eq!(later.signal(), Some(libc::SIGSEGV), "{later:?}");
    }
}

#[test]
fn refused_fork_keeps_earlier_fork() {
    let region = with_an_unreadable_unit(&RegionOptions::new());
    let is_lost = |number: &u64| region.prefetch(number * UNIT..(number + 1) * UNIT).is_err();
    let lost = (0..LEN / UNIT).find(is_lost).unwrap();
    region.fork_begins(0..lost * UNIT).unwrap();
    region.fork_begins(0..LEN).unwrap_err();
    assert!((lost + 1..LEN / UNIT).all(|number| byte(&region, number) != 0));
    assert_eq!(region.bytes_stored(0..lost * UNIT).unwrap(), 0, "of {lost} units");
    region.fork_ended().unwrap();
}

#[test]
fn slots_can_be_reserved_on_use() {
    let store = FileStore::anonymous(1 << 20).unwrap();
    let space = SwapSpace::new(store);
    let options = RegionOptions::new().reserves(false);
    let region = Region::map(1 << 30, 1 << 20, &space, &options).unwrap();
    assert_eq!(space.slots_unreserved(), 256);
    region.reserve(1 << 20).unwrap();
    let reserved = 256 - space.slots_unreserved();
    region.reserve(1 << 20).unwrap();
    assert_eq!(256 - space.slots_unreserved(), reserved, "it is enough already");
    let refused = region.reserve(1 << 30).unwrap_err();
    assert!(matches!(refused, RegionError::SpaceTooSmall { .. }), "{refused}");
    drop(region);
    assert_eq!(space.slots_unreserved(), 256);
}

#[test]
fn system_call_needs_pinned_bytes() {
    let mut region = region(&RegionOptions::new());
    let mut file = sevens(2 * UNIT_LEN);
    let error = file.read(&mut region.as_mut_slice()[..2 * UNIT_LEN]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    region.as_mut_slice()[0] = 1;
    let got = file.read(&mut region.as_mut_slice()[..2 * UNIT_LEN]).unwrap();
    assert_eq!(got, UNIT_LEN, "only the first unit is there");

    file.seek(SeekFrom::Start(0)).unwrap();
    region.pin(0..2 * UNIT).unwrap();
    file.read_exact(&mut region.as_mut_slice()[..2 * UNIT_LEN]).unwrap();
    region.unpin(0..2 * UNIT).unwrap();
    assert!(region.as_slice()[..2 * UNIT_LEN].iter().all(|byte| *byte == 7));
}

#[test]
fn system_call_writing_clean_unit_fails() {
    let mut region = region(&RegionOptions::new());
    fill(&mut region);
    assert_eq!(byte(&region, 0), 1, "it comes in for a load, write-protected");
    let error = sevens(UNIT_LEN).read(&mut region.as_mut_slice()[..UNIT_LEN]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    assert_eq!(byte(&region, 0), 1);
}

#[test]
fn system_call_on_transparent_region_succeeds() {
    let Some(options) = transparent(1) else { return };
    let mut region = region(&options);
    fill(&mut region);
    let mut file = sevens(unit(LEN / UNIT));
    file.read_exact(region.as_mut_slice()).unwrap();
    assert!(region.as_slice().iter().all(|byte| *byte == 7));
    let mut copy = tempfile::tempfile_in("/dev/shm").unwrap();
    copy.write_all(region.as_slice()).unwrap();
    assert!(region.statistics().units_out > 0);
}

#[test]
fn pinned_units_stay_in_place() {
    let mut region = region(&RegionOptions::new());
    region.pin(0..8 * UNIT).unwrap();
    for _ in 0..3 {
        fill(&mut region);
    }
    let got = sevens(8 * UNIT_LEN).read(&mut region.as_mut_slice()[..8 * UNIT_LEN]).unwrap();
    assert_eq!(got, 8 * UNIT_LEN, "all of it is there, and writable");
    region.unpin(0..8 * UNIT).unwrap();
    fill(&mut region);
    assert!(region.as_slice()[1..UNIT_LEN].iter().all(|byte| *byte == 7), "what was read is kept");
}

/// A program may lock a page (`mlock`) although regions do not need it.
#[test]
fn mlocked_page_loses_no_bytes() {
    const LONG: u64 = 8 * MIB;
    for options in of_both_modes() {
        let mut region = Region::map(LONG, MIB, &space(LONG), &options).unwrap();
        let middle = LONG / UNIT / 2 + 5;
        for number in 0..LONG / UNIT {
            let at = unit(number);
            region.as_mut_slice()[at] = u8::try_from(number % 251).unwrap() + 1;
            // Among other pages used as recently, to be evicted with them.
            let page = region.as_mut_ptr().wrapping_add(at).cast();
            // SAFETY: a page of the region. It may be evicted again meanwhile.
            while number == middle && unsafe { libc::mlock(page, UNIT_LEN) } != 0 {
                region.as_mut_slice()[at] = u8::try_from(number % 251).unwrap() + 1;
            }
        }
        for round in 0..2 {
            for number in 0..LONG / UNIT {
                let expected = number % 251 + 1;
                assert_eq!(u64::from(byte(&region, number)), expected, "unit {number}, {round}");
            }
        }
        // Linux before 5.18 cannot remove such a page, and the region reports it.
        let checked = region.check();
        assert!(matches!(checked, Ok(()) | Err(RegionError::Locked)), "{checked:?}");
    }
}

#[test]
fn store_after_load_makes_unit_dirty() {
    let mut region = region(&RegionOptions::new());
    fill(&mut region);
    for round in 0..3u8 {
        for number in 0..LEN / UNIT {
            let loaded = byte(&region, number);
            region.as_mut_slice()[unit(number)] = loaded.wrapping_add(1);
        }
        let wanted = |number| u8::try_from(number % 251).unwrap().wrapping_add(round + 2);
        assert!((0..LEN / UNIT).all(|number| byte(&region, number) == wanted(number)));
    }
    assert!(region.statistics().faults_protected > 0);
}

#[test]
fn mixed_stream_faults_once_per_read_ahead() {
    let mut region = region(&RegionOptions::new());
    fill(&mut region);
    let before = region.statistics();
    for number in 0..LEN / UNIT {
        let loaded = byte(&region, number);
        region.as_mut_slice()[unit(number)] = loaded.wrapping_add(1);
    }
    let after = region.statistics();
    let loads = after.faults_load - before.faults_load;
    let stores = after.faults_protected - before.faults_protected;
    assert!(loads < LEN / UNIT / 2 && stores < LEN / UNIT / 2, "{before:?}, {after:?}");
    assert!(after.units_read_ahead > 0 && after.units_unprotected_ahead > 0, "{after:?}");
    let wanted = |number| u8::try_from(number % 251).unwrap() + 2;
    assert!((0..LEN / UNIT).all(|number| byte(&region, number) == wanted(number)));
}

#[test]
fn zero_units_take_no_slot() {
    let space = space(LEN);
    let mut region = Region::map(LEN, LIMIT, &space, &RegionOptions::new()).unwrap();
    region.as_mut_slice().fill(0);
    let statistics = region.statistics();
    assert_eq!((statistics.units_out, space.slots_free()), (0, space.slots()));
    assert!(statistics.units_evicted_zero > 0);
    assert!(region.as_slice().iter().all(|byte| *byte == 0));
}

#[test]
fn counted_slot_writes_rotate_over_space() {
    let space = space(4 * LEN);
    assert_eq!(space.wear(), None);
    space.count_writes();
    let mut region = Region::map(LEN, LIMIT, &space, &RegionOptions::new()).unwrap();
    for _ in 0..8 {
        fill(&mut region);
    }
    let (wear, out) = (space.wear().unwrap(), region.statistics().units_out);
    assert!(out > 4 * LEN / UNIT && wear.writes >= out, "{wear:?}, {out} out");
    assert_eq!(wear.slots, 4 * LEN / UNIT);
    assert!(wear.slots_written > 3 * LEN / UNIT, "more than the region has units: {wear:?}");
    assert!(wear.writes_most < 8, "no slot is written each time: {wear:?}");
}

#[test]
fn regions_never_overcommit_shared_space() {
    let space = space(LEN);
    let map = |bytes, limit| Region::map(bytes, limit, &space, &RegionOptions::new());
    assert!(matches!(map(2 * LEN, LIMIT), Err(RegionError::SpaceTooSmall { .. })));
    let mut first = map(LEN, LIMIT).unwrap();
    assert!(matches!(map(LEN, LIMIT), Err(RegionError::SpaceTooSmall { .. })));
    let mut second = map(LIMIT, LIMIT).unwrap();
    fill(&mut first);
    fill(&mut second);
    assert!((0..LEN / UNIT).all(|number| u64::from(byte(&first, number)) == number % 251 + 1));
    drop(first);
    assert_eq!(byte(&second, 1), 2);
    map(LEN, LIMIT).unwrap();
}

#[test]
fn invalid_requests_are_refused() {
    let space = space(LEN);
    let map = |bytes, limit| Region::map(bytes, limit, &space, &RegionOptions::new());
    for bytes in [0, 1, UNIT + 1, u64::MAX] {
        assert!(matches!(map(bytes, LIMIT), Err(RegionError::BadLength { .. })), "{bytes}");
    }
    assert!(matches!(map(LEN, LIMIT - 1), Err(RegionError::LimitTooLow { least: LIMIT, .. })));
    let mut region = map(LEN, LIMIT).unwrap();
    assert!(matches!(region.pin(0..LEN + 1), Err(RegionError::OutOfRange { .. })));
    assert!(matches!(region.discard(1..UNIT), Err(RegionError::Misaligned { .. })));
    assert!(matches!(region.unpin(0..1), Err(RegionError::BadPin { offset: 0 })));
    assert!(matches!(region.pin(0..LIMIT), Err(RegionError::TooMuchPinned { .. })));
    region.pin(UNIT..2 * UNIT).unwrap();
    assert!(matches!(region.discard(0..LEN), Err(RegionError::Pinned { offset: UNIT })));
    region.pin(0..LIMIT / 2).unwrap();
    let low = region.set_dram_limit(0).unwrap_err();
    assert!(matches!(low, RegionError::LimitTooLow { limit: 0, .. }), "{low}");
}

#[test]
#[ignore = "limits its memory; run by region_without_memory_for_words_is_refused"]
fn child_has_no_memory_for_unit_words() {
    // Its units' words exceed an arena of the allocator, which already has its addresses.
    const LONG: u64 = 64 << 30;
    let space = space(LEN);
    let usage = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = usage.split(' ').next().unwrap().parse().unwrap();
    // Enough for the region's addresses, and for half of the words of its units.
    let most = pages * UNIT + LONG + LONG / UNIT * 4;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: `limit` is valid.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    let options = RegionOptions::new().reserves(false);
    let refused = Region::map(LONG, LONG, &space, &options).unwrap_err();
    assert!(matches!(refused, RegionError::Io { .. }), "{refused}");
    assert!(refused.to_string().contains("state of the region's units"), "{refused}");
}

#[test]
fn region_without_memory_for_words_is_refused() {
    let status = run_child("child_has_no_memory_for_unit_words");
    assert!(status.success(), "{status:?}");
}

/// A store with failures on request.
struct FailingStore {
    inner: FileStore,
    fails: Arc<AtomicBool>,
    /// An unreadable slot plus 1, or 0; set by the first written slot.
    unreadable: Arc<AtomicU64>,
}

// SAFETY: as the store within; what this one adds is atomics.
unsafe impl SlotStore for FailingStore {
    fn slots(&self) -> u64 {
        self.inner.slots()
    }

    fn address(&self, slot: SlotNo) -> *const u8 {
        self.inner.address(slot)
    }

    unsafe fn write(&self, slot: SlotNo, page: *const u8) {
        // SAFETY: as the caller says.
        unsafe { self.inner.write(slot, page) }
    }

    fn check(&self) -> Result<(), MediaError> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(MediaError::StoreLost { at: everbyte_media::PoolOffset(0) });
        }
        self.inner.check()
    }

    fn is_readable(&self, slot: SlotNo, slots: u64) -> bool {
        let bad = self.unreadable.load(Ordering::SeqCst);
        !(slot.0 + 1..slot.0 + 1 + slots).contains(&bad) && self.inner.is_readable(slot, slots)
    }
}

fn failing(options: &RegionOptions) -> (Region, Arc<AtomicBool>, Arc<AtomicU64>) {
    let (fails, unreadable) = (Arc::default(), Arc::default());
    let inner = FileStore::anonymous(LEN).unwrap();
    let store =
        FailingStore { inner, fails: Arc::clone(&fails), unreadable: Arc::clone(&unreadable) };
    let space = SwapSpace::new(store);
    (Region::map(LEN, LIMIT, &space, options).unwrap(), fails, unreadable)
}

#[test]
fn lossy_store_costs_dram_but_no_page() {
    let (mut region, fails, _) = failing(&RegionOptions::new());
    fill(&mut region);
    region.check().unwrap();
    fails.store(true, Ordering::SeqCst);
    for number in 0..LEN / UNIT {
        region.as_mut_slice()[unit(number) + 1] = 9;
    }
    assert!(matches!(region.check(), Err(RegionError::StoreFailed)));
    assert!(region.statistics().units_over_limit > 0);
    for number in 0..LEN / UNIT {
        let bytes = &region.as_slice()[unit(number)..][..2];
        assert_eq!(bytes, [u8::try_from(number % 251).unwrap() + 1, 9]);
    }
}

/// Reported failures: failing stores, unreadable bytes, others.
static REPORTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

fn count_report(failure: &RegionError) {
    let kind = match failure {
        RegionError::StoreFailed => 0,
        RegionError::Unreadable { .. } => 1,
        _ => 2,
    };
    REPORTS[kind].fetch_add(1, Ordering::SeqCst);
}

fn is_reported(kind: usize, times: u64) -> bool {
    (0..10_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        REPORTS[kind].load(Ordering::SeqCst) == times
    })
}

#[test]
fn failure_kind_is_reported_once() {
    for (nth, options) in (1..).zip(of_both_modes()) {
        let (mut region, fails, _) = failing(&options.on_failure(count_report));
        fill(&mut region);
        fails.store(true, Ordering::SeqCst);
        fill(&mut region);
        assert!(is_reported(0, nth), "a store that fails: {REPORTS:?}");
        fill(&mut region);
    }
    if let Some(options) = transparent(1) {
        let region = with_an_unreadable_unit(&options.on_failure(count_report));
        let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
        let mut fails =
            |number: &u64| file.write(&region.as_slice()[unit(*number)..][..8]).is_err();
        assert_eq!((0..LEN / UNIT).filter(|number| fails(number)).count(), 1);
        assert!(is_reported(1, 1), "a slot that cannot be read: {REPORTS:?}");
    }
    assert_eq!(REPORTS[0].load(Ordering::SeqCst), of_both_modes().count() as u64);
    assert_eq!(REPORTS[2].load(Ordering::SeqCst), 0, "{REPORTS:?}");
}

/// Makes the slot of a unit unreadable. Read-ahead reaches it together with the units before it.
fn with_an_unreadable_unit(options: &RegionOptions) -> Region {
    let (mut region, _, unreadable) = failing(options);
    fill(&mut region);
    // Slots are given out in order, and the hand comes to the units in order.
    unreadable.store(1 + 40, Ordering::SeqCst);
    region
}

#[test]
fn unreadable_slot_is_reported_others_continue() {
    let region = with_an_unreadable_unit(&RegionOptions::new());
    let lost: Vec<u64> = (0..LEN / UNIT)
        .filter_map(|number| match region.prefetch(number * UNIT..(number + 1) * UNIT) {
            Ok(_) => None,
            Err(RegionError::Unreadable { offset }) => Some(offset / UNIT),
            Err(error) => panic!("{error}"),
        })
        .collect();
    assert_eq!(lost.len(), 1, "{lost:?}");
    let others = (0..LEN / UNIT).filter(|number| *number != lost[0]);
    assert!(others.into_iter().all(|number| u64::from(byte(&region, number)) == number % 251 + 1));
    let (forked, at) = (region.fork_begins(0..LEN), lost[0] * UNIT);
    let is_named = matches!(forked, Err(RegionError::Unreadable { offset }) if offset == at);
    assert!(is_named, "{forked:?}, and offset {at} is lost");
}

#[test]
#[ignore = "ends the process; run by access_to_unreadable_unit_is_sigbus"]
fn child_touches_unreadable_unit() {
    let region = with_an_unreadable_unit(&RegionOptions::new());
    assert!((0..LEN / UNIT).all(|number| byte(&region, number) != 0));
}

#[test]
#[ignore = "ends the process; run by access_to_unreadable_unit_is_sigbus"]
fn child_touches_unreadable_transparent_unit() {
    let region = with_an_unreadable_unit(&transparent(1).unwrap());
    assert!((0..LEN / UNIT).all(|number| byte(&region, number) != 0));
}

#[test]
fn access_to_unreadable_unit_is_sigbus() {
    let plain = "child_touches_unreadable_unit";
    let other = transparent(1).map(|_| "child_touches_unreadable_transparent_unit");
    for child in iter::once(plain).chain(other) {
        let status = run_child(child);
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{child}: {status:?}");
    }
}

#[test]
fn system_call_on_unreadable_unit_fails() {
    let Some(options) = transparent(1) else { return };
    let mut region = with_an_unreadable_unit(&options);
    let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
    let results: Vec<_> = (0..LEN / UNIT)
        .filter_map(|number| file.write(&region.as_slice()[unit(number)..][..8]).err())
        .map(|error| error.raw_os_error())
        .collect();
    assert_eq!(results, [Some(libc::EFAULT)]);
    assert!(matches!(region.check(), Err(RegionError::Unreadable { .. })));
    // Discarded bytes are new memory afterwards, in the unreadable unit too.
    region.discard(0..LEN).unwrap();
    for number in 0..LEN / UNIT {
        file.write_all(&region.as_slice()[unit(number)..][..8]).unwrap();
        assert_eq!(byte(&region, number), 0);
        region.as_mut_slice()[unit(number)] = 1;
    }
}

#[test]
#[ignore = "ends the process; run by thread_blocking_sigbus_is_killed"]
fn child_blocks_sigbus() {
    let region = region(&RegionOptions::new());
    // SAFETY: all-zero bytes are a valid set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` may be written.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGBUS) };
    // SAFETY: `set` is valid.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    byte(&region, 0);
}

#[test]
fn thread_blocking_sigbus_is_killed() {
    let status = run_child("child_blocks_sigbus");
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status:?}");
}

/// Closes every descriptor but the standard ones.
fn close_all() {
    // SAFETY: takes numbers. That others miss their descriptors is what is tested.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
}

#[test]
#[ignore = "ends the process; run by closed_descriptor_never_reads_zeroes"]
fn child_closes_descriptor_and_loads() {
    let mut region = region(&RegionOptions::new());
    fill(&mut region);
    close_all();
    // SAFETY: ends the process: 0 if a page became zeroes.
    unsafe { libc::_exit(i32::from(byte(&region, 0))) }
}

#[test]
#[ignore = "closes descriptors; run by transparent_region_pages_after_close"]
fn child_closes_transparent_descriptor() {
    let mut region = region(&transparent(1).unwrap());
    fill(&mut region);
    close_all();
    for _ in 0..3 {
        assert!((0..LEN / UNIT).all(|number| u64::from(byte(&region, number)) == number % 251 + 1));
        fill(&mut region);
    }
    // Its descriptors would be closed twice otherwise.
    std::mem::forget(region);
}

#[test]
fn transparent_region_pages_after_close() {
    if transparent(1).is_none() {
        return;
    }
    let status = run_child("child_closes_transparent_descriptor");
    assert!(status.success(), "{status:?}");
}

#[test]
#[ignore = "closes descriptors; run by closed_descriptor_is_reported"]
fn child_closes_descriptor_and_checks() {
    let mut region = region(&RegionOptions::new());
    fill(&mut region);
    close_all();
    let error = region.prefetch(0..UNIT).unwrap_err();
    assert!(matches!(error, RegionError::DescriptorLost), "{error}");
    assert!(matches!(region.check(), Err(RegionError::DescriptorLost)));
    // Descriptors of the region's are closed twice by its drop otherwise.
    std::mem::forget(region);
}

#[test]
#[ignore = "closes descriptors; run by drop_leaves_reused_descriptors_open"]
fn child_drops_region_with_reused_descriptors() {
    for options in of_both_modes() {
        let store = FileStore::anonymous(LEN).unwrap();
        let space = SwapSpace::new(store);
        let mut region = Region::map(LEN, LIMIT, &space, &options).unwrap();
        fill(&mut region);
        close_all();
        // They get the lowest numbers, including the region's.
        let files: Vec<File> = (0..32).map(|_| sevens(64)).collect();
        drop(region);
        for mut file in files {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, [7; 64]);
        }
    }
}

#[test]
fn drop_leaves_reused_descriptors_open() {
    let status = run_child("child_drops_region_with_reused_descriptors");
    assert!(status.success(), "{status:?}");
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
#[ignore = "counts descriptors; run by dropped_regions_leave_no_descriptor"]
fn child_counts_descriptors() {
    for options in of_both_modes() {
        let before = open_descriptors();
        for _ in 0..10 {
            fill(&mut region(&options));
        }
        assert_eq!(open_descriptors(), before);
    }
}

#[test]
fn dropped_regions_leave_no_descriptor() {
    let status = run_child("child_counts_descriptors");
    assert!(status.success(), "{status:?}");
}

#[test]
fn closed_descriptor_never_reads_zeroes() {
    let status = run_child("child_closes_descriptor_and_loads");
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status:?}");
}

#[test]
fn closed_descriptor_is_reported() {
    let status = run_child("child_closes_descriptor_and_checks");
    assert!(status.success(), "{status:?}");
}

#[test]
#[ignore = "gives its rights up; run by transparent_faults_need_rights"]
fn child_has_no_rights() {
    let space = space(LEN);
    // SAFETY: gives up rights.
    let dropped = unsafe { libc::setuid(65_534) };
    assert_eq!(dropped, 0);
    let mut region = Region::map(LEN, LIMIT, &space, &RegionOptions::new()).unwrap();
    fill(&mut region);
    assert_eq!(byte(&region, 0), 1);
    let transparent = RegionOptions::new().fault_mode(FaultMode::Transparent { handlers: 1 });
    let error = Region::map(LIMIT, LIMIT, &space, &transparent).unwrap_err();
    let is_named = error.to_string().contains("vm.unprivileged_userfaultfd");
    assert!(matches!(error, RegionError::Forbidden { .. }) && is_named, "{error}");
}

#[test]
fn transparent_faults_need_rights() {
    if !is_root("give rights up") {
        return;
    }
    let setting = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap();
    assert_eq!(setting.trim(), "0", "this test needs vm.unprivileged_userfaultfd=0");
    let status = run_child("child_has_no_rights");
    assert!(status.success(), "{status:?}");
}

#[test]
#[ignore = "may end the process; run by truncated_store_keeps_resident_bytes"]
fn child_truncates_the_store() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("store");
    let store = FileStore::create(&path, LEN).unwrap();
    let space = SwapSpace::new(store);
    let mut region = Region::map(LEN, LIMIT, &space, &RegionOptions::new()).unwrap();
    region.as_mut_slice()[..unit(8)].fill(1);
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    // Any evicting thread, including this one in its fault, stores to missing memory.
    for round in 2..4 {
        for number in 8..LEN / UNIT {
            region.as_mut_slice()[unit(number)] = round;
        }
        assert!((8..LEN / UNIT).all(|number| byte(&region, number) == round));
    }
    assert!(matches!(region.check(), Err(RegionError::StoreFailed)));
}

#[test]
fn truncated_store_keeps_resident_bytes() {
    for _ in 0..10 {
        let status = run_child("child_truncates_the_store");
        assert!(status.success(), "{status:?}");
    }
}

/// The region of the signal handler: its address, and the next unit.
static LOOKED_AT: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicU64 = AtomicU64::new(0);

extern "C" fn look(_: libc::c_int) {
    let number = NEXT.fetch_add(7, Ordering::SeqCst) % (LEN / UNIT);
    let at = std::ptr::with_exposed_provenance::<u8>(LOOKED_AT.load(Ordering::SeqCst));
    // SAFETY: in the region, which outlives the signals; that the load is made is what is tested.
    unsafe { at.wrapping_add(unit(number)).read_volatile() };
}

/// Moves units in and out while the handler of a frequent signal accesses other units.
fn ask_under_signals(region: &mut Region) {
    LOOKED_AT.store(region.as_mut_ptr().expose_provenance(), Ordering::SeqCst);
    let handler: extern "C" fn(libc::c_int) = look;
    // SAFETY: a handler that touches the region, and atomics.
    assert_ne!(unsafe { libc::signal(libc::SIGUSR1, handler as usize) }, libc::SIG_ERR);
    // SAFETY: this thread's number.
    let (this, is_over) = (unsafe { libc::pthread_self() }, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
        });
        for round in 0..1000 {
            // SAFETY: ends the process if this round has not ended by then, however busy the machine.
            unsafe { libc::alarm(60) };
            let first = round * 5 % (LEN / UNIT - 32) * UNIT;
            let range = first..first + 32 * UNIT;
            region.discard(range.clone()).unwrap();
            region.prefetch(range.clone()).unwrap();
            region.pin(range.clone()).unwrap();
            region.unpin(range).unwrap();
            region.as_mut_slice()[unit(first / UNIT)..]
                .iter_mut()
                .step_by(UNIT_LEN)
                .for_each(|byte| *byte = 1);
        }
        is_over.store(true, Ordering::SeqCst);
    });
}

#[test]
#[ignore = "may hang; run by signal_handler_may_touch_moving_region"]
fn child_takes_signals() {
    for options in of_both_modes() {
        ask_under_signals(&mut region(&options));
    }
}

#[test]
fn signal_handler_may_touch_moving_region() {
    let status = run_child("child_takes_signals");
    assert!(status.success(), "{status:?}");
}

/// Memory as a program's variables are: there before the region, some of it used.
#[test]
fn existing_memory_joins_region_with_bytes() {
    for options in of_both_modes() {
        let len = usize::try_from(4 * LEN).unwrap();
        // SAFETY: the kernel chooses a free place.
        let room = unsafe {
            libc::mmap(std::ptr::null_mut(), len, 3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(room, libc::MAP_FAILED);
        let start = room.expose_provenance().next_multiple_of(16 * UNIT_LEN);
        let existing = start..start + len / 4;
        let end = room.addr() + len;
        // SAFETY: the rest of what was just mapped.
        assert_eq!(unsafe { libc::munmap(room.with_addr(existing.end), end - existing.end) }, 0);
        let place = |number: u64| room.with_addr(start + unit(number)).cast::<u8>();
        for number in (0..LEN / UNIT).step_by(3) {
            // SAFETY: mapped above.
            unsafe { place(number).write(u8::try_from(number % 251).unwrap() + 1) };
        }
        let space = space(2 * LEN);
        let wrong = existing.start + UNIT_LEN..existing.end;
        // SAFETY: refused before anything is done.
        let refused = unsafe { Region::map_over(wrong, 2 * LEN, LIMIT, &space, &options) };
        assert!(matches!(refused, Err(RegionError::Misaligned { .. })), "{refused:?}");
        let small = crate::space(LEN);
        // SAFETY: as below, but that this is refused.
        let refused =
            unsafe { Region::map_over(existing.clone(), 2 * LEN, LIMIT, &small, &options) };
        assert!(matches!(refused, Err(RegionError::SpaceTooSmall { .. })), "{refused:?}");
        // Unchanged: the same contents, writable, no mapping behind it, and present in children.
        let is_as_before = || {
            (0..LEN / UNIT).all(|number| {
                let expected = if number % 3 == 0 { number % 251 + 1 } else { 0 };
                // SAFETY: mapped above.
                u64::from(unsafe { place(number).read_volatile() }) == expected
            })
        };
        // SAFETY: mapped above.
        unsafe { place(0).write_volatile(1) };
        assert!(is_as_before());
        assert_eq!(fork(|| i32::from(!is_as_before())).code(), Some(0));
        // SAFETY: private anonymous memory that is used through the region from now on.
        let region = unsafe { Region::map_over(existing, 2 * LEN, LIMIT, &space, &options) };
        let region = region.unwrap();
        assert_eq!(region.as_mut_ptr().addr(), start);
        let units = LEN / UNIT;
        for _ in 0..2 {
            for number in 0..2 * units {
                let held = number < units && number % 3 == 0;
                let expected = if held { number % 251 + 1 } else { 0 };
                assert_eq!(u64::from(byte(&region, number)), expected, "unit {number}");
            }
        }
        let statistics = region.statistics();
        assert!(statistics.units_out > units / 4, "{statistics:?}");
        assert!(statistics.units_resident <= statistics.units_limit, "{statistics:?}");
        region.check().unwrap();
    }
}

/// On a machine with swap, the system has swapped the pages out when the region is made.
#[test]
fn swapped_out_memory_joins_region() {
    for options in of_both_modes() {
        let len = usize::try_from(LEN).unwrap();
        let (room_len, flags) = (len + 16 * UNIT_LEN, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses a free place.
        let room = unsafe { libc::mmap(std::ptr::null_mut(), room_len, 3, flags, -1, 0) };
        assert_ne!(room, libc::MAP_FAILED);
        let start = room.expose_provenance().next_multiple_of(16 * UNIT_LEN);
        let place = room.with_addr(start);
        // SAFETY: mapped above.
        unsafe { place.cast::<u8>().write_bytes(7, len) };
        // Where nothing swaps, nothing happens.
        // SAFETY: as above; the advice changes no byte.
        unsafe { libc::madvise(place, len, libc::MADV_PAGEOUT) };
        let space = space(LEN);
        let existing = start..start + len;
        // SAFETY: private anonymous memory that is used through the region from now on.
        let region = unsafe { Region::map_over(existing, LEN, LIMIT, &space, &options) };
        let mut region = region.unwrap();
        region.pin(0..LIMIT / 2).unwrap();
        region.unpin(0..LIMIT / 2).unwrap();
        assert!((0..LEN / UNIT).all(|number| byte(&region, number) == 7));
        region.discard(0..LEN).unwrap();
        assert!((0..LEN / UNIT).all(|number| byte(&region, number) == 0));
    }
}
