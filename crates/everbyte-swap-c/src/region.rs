//! Regions.

use std::ffi::c_void;
use std::ops::Range;

use everbyte_swap::{DirectMode, FaultMode, Region, RegionOptions, UNIT};

use crate::error::{EverbyteStatus, Failure, borrow, check, status};
use crate::space::EverbyteSpace;

/// Advice: the range is needed soon.
pub const EVERBYTE_WILL_NEED: u32 = 0;
/// Advice: the range's contents are not needed, and the range is set to zero.
pub const EVERBYTE_DONT_NEED: u32 = 1;

/// Direct mode with exchanges: hot chunks in the store and cold ones in DRAM change places. A
/// thread of the region periodically makes a few chunks inaccessible, for at most 10 ms, and
/// measures the time to their first access.
pub const EVERBYTE_DIRECT_EXCHANGING: u32 = 1;
/// Direct mode with chunks fixed at the place of their first access, except by
/// `everbyte_region_prefetch`. System calls accept bytes accessed once.
pub const EVERBYTE_DIRECT_STILL: u32 = 2;

/// Memory that pages to the slots of a space. Its DRAM use stays within a limit.
///
/// Thread-safe. A forked child does not have it: an access there is a SIGSEGV. The program must not
/// use madvise, mremap, munmap or mprotect on it.
pub struct EverbyteRegion {
    region: Region,
}

/// Options of a region. All zeroes are the defaults.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EverbyteRegionOptions {
    /// Number of threads resolving faults, so system calls accept any byte of the region; needs a
    /// privilege. 0: the faulting thread resolves its fault in a handler of SIGBUS. Then a system
    /// call on bytes outside DRAM fails with EFAULT unless they are pinned.
    pub handlers: u32,
    /// Units of 4096 bytes filled together for a stream of faults, 1 to 16. 0: 16.
    pub read_ahead: u32,
    /// Not 0: pages are never write-protected, and always copied out. For stores nearly as fast as DRAM.
    pub always_copies_out: u32,
    /// `EVERBYTE_DIRECT_EXCHANGING` or `EVERBYTE_DIRECT_STILL`: chunks of 2 MiB outside DRAM are
    /// the store's own memory. Loads and stores access them without a fault after the first access.
    /// The store must be a file on tmpfs or DAX, or lent by a pool's server. Faults arrive as
    /// SIGSEGV; any DRAM limit is valid, including 0, in steps of 2 MiB; a pin keeps whole chunks
    /// in place, in DRAM or not; `handlers` must be 0. 0: the region pages.
    pub direct: u32,
}

/// Counters since the mapping of a region, and its present contents.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EverbyteStatistics {
    /// Maximum number of units of 4096 bytes in DRAM.
    pub units_limit: u64,
    /// Units in DRAM.
    pub units_resident: u64,
    /// Units filled above the limit because no unit could be evicted.
    pub units_over_limit: u64,
    /// Units brought in from slots.
    pub units_in: u64,
    /// Units copied to slots.
    pub units_out: u64,
    /// Units of a region in direct mode in the store's own memory.
    pub units_direct: u64,
    /// Free slots of the space.
    pub slots_free: u64,
}

/// Maps `bytes` bytes, a positive multiple of 4096, with at most `dram_limit` bytes in DRAM.
/// Outside direct mode the limit is at least 256 KiB. Reserves slots in `space` for the rest and a
/// small margin. `options` may be null.
///
/// # Safety
/// `space` is null or an open space; `options` is null or points to options; `region` is null or
/// points to space for a pointer.
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

/// Unmaps a region: its bytes are lost, and its slots are free.
///
/// # Safety
/// `region` is null or a mapped region, and its bytes are unused from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_region_unmap(region: *mut EverbyteRegion) -> EverbyteStatus {
    status(check(region, "region").map(|()| {
        // SAFETY: the caller's promise: `everbyte_region_map` made it, and it is unused.
        drop(unsafe { Box::from_raw(region) });
    }))
}

/// The first byte of a region, aligned to 64 KiB, in direct mode to 2 MiB; null if `region` is null or misaligned.
///
/// # Safety
/// `region` is null or a mapped region.
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

/// Brings whole units from `at` on into DRAM, as far as the DRAM limit allows. Stores the number of
/// the range's bytes in DRAM at `bytes_in`, unless it is null.
///
/// # Safety
/// `region` is null or a mapped region; `bytes_in` is null or points to space for a number.
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

/// Brings whole units into DRAM, writable, and keeps them there until they are unpinned as often:
/// for buffers of system calls and devices. In direct mode they stay in place, in DRAM or not.
///
/// # Safety
/// `region` is null or a mapped region.
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
/// `region` is null or a mapped region.
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

/// Announces the use of whole units: `EVERBYTE_WILL_NEED` or `EVERBYTE_DONT_NEED`.
///
/// # Safety
/// `region` is null or a mapped region; no code relies on the contents of a range not needed.
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
                let words = format!("{other} is not an advice");
                Err(Failure::new(EverbyteStatus::BadArgument, words))
            }
        }
    };
    status(advised())
}

/// Stores a region's counters at `statistics`.
///
/// # Safety
/// `region` is null or a mapped region; `statistics` is null or points to space for them.
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

/// Checks that a region can page. If not, the status names the failure.
///
/// # Safety
/// `region` is null or a mapped region.
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
        other => Err(bad(format!("{other} is not a direct mode"))),
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
