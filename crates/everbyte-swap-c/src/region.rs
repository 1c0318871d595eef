//! Regions.

use std::ffi::c_void;
use std::ops::Range;

use everbyte_swap::{DirectMode, FaultMode, Region, RegionOptions, UNIT};

use crate::error::{EverbyteStatus, Failure, borrow, check, status};
use crate::space::EverbyteSpace;

/// Advice: the range is needed soon.
pub const EVERBYTE_WILL_NEED: u32 = 0;
/// Advice: what the range holds is not needed any more, and it is to hold zeroes.
pub const EVERBYTE_DONT_NEED: u32 = 1;

/// Direct mode whose hot chunks and cold ones change places between the store and DRAM: a thread of the region's makes
/// a few of them inaccessible now and then, for at most 10 ms, to see how soon they are touched.
pub const EVERBYTE_DIRECT_EXCHANGING: u32 = 1;
/// Direct mode whose chunks stay where they were first touched, but for `everbyte_region_prefetch`. System calls may be
/// given what was touched once.
pub const EVERBYTE_DIRECT_STILL: u32 = 2;

/// Memory that pages to the slots of a space: at most its DRAM limit is in DRAM at a time.
///
/// Threads may use it at once. A child of a fork does not have it: touching it there is a SIGSEGV. The
/// program must not use madvise, mremap, munmap or mprotect on it.
pub struct EverbyteRegion {
    region: Region,
}

/// Options of a region. All zeroes are the defaults.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EverbyteRegionOptions {
    /// Threads that resolve faults, so that system calls may be given any byte of the region; takes a
    /// privilege. 0: the thread that faults does, in a handler of SIGBUS; a system call on bytes that are
    /// not in DRAM fails with EFAULT unless they are pinned.
    pub handlers: u32,
    /// Units of 4096 bytes that are filled at once where faults come in a stream, 1 to 16. 0: 16.
    pub read_ahead: u32,
    /// Not 0: pages are never write-protected, and always copied out. For stores nearly as fast as DRAM.
    pub always_copies_out: u32,
    /// `EVERBYTE_DIRECT_EXCHANGING` or `EVERBYTE_DIRECT_STILL`: what is not in DRAM is the store's own memory, in chunks of 2
    /// MiB, where loads and stores go without a fault once a chunk was touched. For stores that are files on tmpfs or
    /// DAX, or lent by a pool's server. Faults come as SIGSEGV; any DRAM limit will do, 0 too, and counts in
    /// 2 MiB; pins keep whole chunks where they are, in DRAM or not; `handlers` must be 0. 0: the region pages.
    pub direct: u32,
}

/// Counters since a region was mapped, and what it holds now.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EverbyteStatistics {
    /// Units of 4096 bytes that may be in DRAM.
    pub units_limit: u64,
    /// Units that are in DRAM.
    pub units_resident: u64,
    /// Units that went in above the limit, because nothing could be evicted.
    pub units_over_limit: u64,
    /// Units brought in from slots.
    pub units_in: u64,
    /// Units copied to slots.
    pub units_out: u64,
    /// Units of a region in direct mode that are the store's own memory.
    pub units_direct: u64,
    /// Slots of the space that are free.
    pub slots_free: u64,
}

/// Maps `bytes` bytes, a positive multiple of 4096, of which at most `dram_limit` are in DRAM, at least 256 KiB
/// unless the region is in direct mode. The rest, and a little more, is reserved in `space`. `options` may be null.
///
/// # Safety
/// `space` is null or a space that is not closed; `options` is null or points to options; `region` is
/// null or points to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_region_map(
    bytes: u64,
    dram_limit: u64,
    space: *const EverbyteSpace,
    options: *const EverbyteRegionOptions,
    region: *mut *mut EverbyteRegion,
) -> EverbyteStatus {
    let mapped = || {
        // SAFETY: the caller's promise.
        let space = unsafe { borrow(space, "space") }?;
        check(region, "region")?;
        let options = match options.is_null() {
            true => RegionOptions::new(),
            // SAFETY: the caller's promise.
            false => options_of(unsafe { borrow(options, "options") }?)?,
        };
        let mapped = Region::map(bytes, dram_limit, &space.space, &options)?;
        let mapped = Box::new(EverbyteRegion { region: mapped });
        // SAFETY: the caller's promise, and the check.
        unsafe { region.write(Box::into_raw(mapped)) };
        Ok(())
    };
    status(mapped())
}

/// Unmaps a region: its bytes are gone, and its slots free.
///
/// # Safety
/// `region` is null or a region that is not unmapped yet, and nobody touches its bytes any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_region_unmap(region: *mut EverbyteRegion) -> EverbyteStatus {
    status(check(region, "region").map(|()| {
        // SAFETY: the caller's promise: it was made by `everbyte_region_map`, and nobody uses it.
        drop(unsafe { Box::from_raw(region) });
    }))
}

/// The first byte of a region, aligned to 64 KiB, in direct mode to 2 MiB; null if `region` is null or misaligned.
///
/// # Safety
/// `region` is null or a region that is not unmapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_region_address(region: *const EverbyteRegion) -> *mut c_void {
    // SAFETY: the caller's promise.
    match unsafe { borrow(region, "region") } {
        Ok(region) => region.region.as_mut_ptr().cast(),
        Err(failure) => {
            let _null_says_so = status(Err(failure));
            std::ptr::null_mut()
        }
    }
}

/// Brings in whole units from `at` on, as far as the DRAM limit has room. Stores at `bytes_in`, unless it is
/// null, how many bytes of the range are in.
///
/// # Safety
/// `region` is null or a region that is not unmapped; `bytes_in` is null or points to room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_region_prefetch(
    region: *const EverbyteRegion,
    at: *const c_void,
    bytes: u64,
    bytes_in: *mut u64,
) -> EverbyteStatus {
    let prefetched = || {
        if !bytes_in.is_null() {
            check(bytes_in, "bytes_in")?;
        }
        // SAFETY: the caller's promise.
        let region = unsafe { borrow(region, "region") }?;
        let found = region.region.prefetch(range_of(region, at, bytes)?)?;
        if !bytes_in.is_null() {
            // SAFETY: the caller's promise, and the check.
            unsafe { bytes_in.write(found) };
        }
        Ok(())
    };
    status(prefetched())
}

/// Brings whole units in and keeps them in DRAM, writable, until they are unpinned as often: for buffers
/// of system calls and devices. In direct mode they stay where they are, in DRAM or not.
///
/// # Safety
/// `region` is null or a region that is not unmapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_region_pin(
    region: *const EverbyteRegion,
    at: *const c_void,
    bytes: u64,
) -> EverbyteStatus {
    let pinned = || {
        // SAFETY: the caller's promise.
        let region = unsafe { borrow(region, "region") }?;
        Ok(region.region.pin(range_of(region, at, bytes)?)?)
    };
    status(pinned())
}

/// Takes back one pin of the same range.
///
/// # Safety
/// `region` is null or a region that is not unmapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_region_unpin(
    region: *const EverbyteRegion,
    at: *const c_void,
    bytes: u64,
) -> EverbyteStatus {
    let unpinned = || {
        // SAFETY: the caller's promise.
        let region = unsafe { borrow(region, "region") }?;
        Ok(region.region.unpin(range_of(region, at, bytes)?)?)
    };
    status(unpinned())
}

/// Tells what is to become of whole units: `EVERBYTE_WILL_NEED` or `EVERBYTE_DONT_NEED`.
///
/// # Safety
/// `region` is null or a region that is not unmapped; nobody relies on what a range holds that is not
/// needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_region_advise(
    region: *const EverbyteRegion,
    at: *const c_void,
    bytes: u64,
    advice: u32,
) -> EverbyteStatus {
    let advised = || {
        // SAFETY: the caller's promise.
        let region = unsafe { borrow(region, "region") }?;
        let range = range_of(region, at, bytes)?;
        match advice {
            EVERBYTE_WILL_NEED => Ok(region.region.prefetch(range).map(|_| ())?),
            // SAFETY: the caller's promise.
            EVERBYTE_DONT_NEED => Ok(unsafe { region.region.discard_shared(range) }?),
            other => {
                let words = format!("there is no advice {other}");
                Err(Failure::new(EverbyteStatus::BadArgument, words))
            }
        }
    };
    status(advised())
}

/// Stores a region's counters at `statistics`.
///
/// # Safety
/// `region` is null or a region that is not unmapped; `statistics` is null or points to room for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_region_statistics(
    region: *const EverbyteRegion,
    statistics: *mut EverbyteStatistics,
) -> EverbyteStatus {
    let told = || {
        // SAFETY: the caller's promise.
        let region = unsafe { borrow(region, "region") }?;
        check(statistics, "statistics")?;
        let found = region.region.statistics();
        let found = EverbyteStatistics {
            units_limit: found.units_limit,
            units_resident: found.units_resident,
            units_over_limit: found.units_over_limit,
            units_in: found.units_in,
            units_out: found.units_out,
            units_direct: found.units_direct,
            slots_free: found.slots_free,
        };
        // SAFETY: the caller's promise, and the check.
        unsafe { statistics.write(found) };
        Ok(())
    };
    status(told())
}

/// Checks that a region pages as it should; if not, the status says what is wrong.
///
/// # Safety
/// `region` is null or a region that is not unmapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_region_check(region: *const EverbyteRegion) -> EverbyteStatus {
    // SAFETY: the caller's promise.
    let region = unsafe { borrow(region, "region") };
    status(region.and_then(|region| Ok(region.region.check()?)))
}

fn options_of(options: &EverbyteRegionOptions) -> Result<RegionOptions, Failure> {
    const MOST: u32 = 16;
    let bad = |words: String| Failure::new(EverbyteStatus::BadArgument, words);
    let mut made = RegionOptions::new().tracks_stores(options.always_copies_out == 0);
    match options.handlers {
        0 => {}
        1..=64 => {
            let handlers = usize::try_from(options.handlers).unwrap_or(1);
            made = made.fault_mode(FaultMode::Transparent { handlers });
        }
        other => return Err(bad(format!("handlers is {other}: at most 64 threads"))),
    }
    match options.read_ahead {
        0 => {}
        units @ 1..=MOST => made = made.read_ahead(u64::from(units)),
        other => return Err(bad(format!("read_ahead is {other}, not 0 to {MOST}"))),
    }
    match options.direct {
        0 => Ok(made),
        EVERBYTE_DIRECT_EXCHANGING => Ok(made.direct(DirectMode::Exchanging)),
        EVERBYTE_DIRECT_STILL => Ok(made.direct(DirectMode::Still)),
        other => Err(bad(format!("there is no direct mode {other}"))),
    }
}

/// The offsets of whole units at an address.
fn range_of(region: &EverbyteRegion, at: *const c_void, bytes: u64) -> Result<Range<u64>, Failure> {
    check(at.cast::<u8>(), "the address")?;
    let base = region.region.as_mut_ptr().addr() as u64;
    let address = at.addr() as u64;
    let outside = || {
        let words =
            format!("{bytes} bytes at {at:p} leave the region of {} bytes", region.region.len());
        Failure::new(EverbyteStatus::OutOfRange, words)
    };
    let start = address.checked_sub(base).ok_or_else(outside)?;
    let end = start.checked_add(bytes).filter(|end| *end <= region.region.len());
    let end = end.ok_or_else(outside)?;
    let unit = UNIT as u64;
    if !start.is_multiple_of(unit) || !end.is_multiple_of(unit) {
        let words = format!("{bytes} bytes at {at:p} are not whole units of {unit} bytes");
        return Err(Failure::new(EverbyteStatus::Misaligned, words));
    }
    Ok(start..end)
}
