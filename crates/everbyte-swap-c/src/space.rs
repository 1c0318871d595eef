//! Spaces: the slots that regions page to.

use std::ffi::c_char;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use everbyte_control::{Borrowed, ControlClient};
use everbyte_swap::{FileStore, SlotOrder, SwapSpace};

use crate::error::{EverbyteStatus, Failure, check, status, text};

/// Slots that regions page to: of a file, or of memory that a pool's server has lent.
pub struct EverbyteSpace {
    pub(crate) space: Arc<SwapSpace>,
}

/// Makes a file of `bytes` bytes at `path`, which must not be there yet, and a space of it. On tmpfs,
/// DAX or a disk; all of it is allocated.
///
/// # Safety
/// `path` is null or points to text that ends with a 0; `space` is null or points to room for a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_space_create(
    path: *const c_char,
    bytes: u64,
    space: *mut *mut EverbyteSpace,
) -> EverbyteStatus {
    let made = || {
        // SAFETY: the caller's promise.
        let path = unsafe { text(path, "path") }?;
        FileStore::create(Path::new(path), bytes).map_err(|error| system(&error))
    };
    // SAFETY: the caller's promise.
    unsafe { give(made, space) }
}

/// A space of an existing file or device, whose bytes are overwritten.
///
/// # Safety
/// As `everbyte_space_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_space_open(
    path: *const c_char,
    space: *mut *mut EverbyteSpace,
) -> EverbyteStatus {
    let made = || {
        // SAFETY: the caller's promise.
        let path = unsafe { text(path, "path") }?;
        FileStore::open(Path::new(path)).map_err(|error| system(&error))
    };
    // SAFETY: the caller's promise.
    unsafe { give(made, space) }
}

/// A space of at least `bytes` bytes of the swap volume `volume`, lent by the server of the pool at
/// `pool`. They are lent until the space and its regions are gone, or the process has ended.
///
/// # Safety
/// `pool` and `volume` are null or point to text that ends with a 0; `space` is null or points to room
/// for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_space_borrow(
    pool: *const c_char,
    volume: *const c_char,
    bytes: u64,
    space: *mut *mut EverbyteSpace,
) -> EverbyteStatus {
    let made = || {
        // SAFETY: the caller's promise.
        let pool = unsafe { text(pool, "pool") }?;
        // SAFETY: as above.
        let volume = unsafe { text(volume, "volume") }?;
        lent(Path::new(pool), volume, bytes)
    };
    // SAFETY: the caller's promise.
    unsafe { give(made, space) }
}

/// Gives a space up. Regions that were mapped with it keep it until they are unmapped.
///
/// # Safety
/// `space` is null or was made by this library and not closed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_space_close(space: *mut EverbyteSpace) -> EverbyteStatus {
    status(check(space, "space").map(|()| {
        // SAFETY: the caller's promise: it was made by `give`, and nobody uses it any more.
        drop(unsafe { Box::from_raw(space) });
    }))
}

/// Borrows runs until there are enough, and maps them.
fn lent(pool: &Path, volume: &str, bytes: u64) -> Result<FileStore, Failure> {
    if bytes == 0 {
        return Err(Failure::new(EverbyteStatus::BadArgument, "a space needs at least a byte"));
    }
    let mut client = ControlClient::connect(pool).map_err(|error| system(&error))?;
    let mut borrow = |missing| {
        let small =
            |error: &dyn Display| Failure::new(EverbyteStatus::SpaceTooSmall, error.to_string());
        client.borrow_runs(volume, missing).map_err(|error| small(&error))
    };
    let first = borrow(bytes)?;
    let store = FileStore::of_ranges(&first.file, &first.ranges, bytes);
    let store = store.map_err(|error| system(&error))?;
    let mut missing = bytes.saturating_sub(bytes_of(&first));
    while missing > 0 {
        let more = borrow(missing)?;
        store.append(&more.file, &more.ranges).map_err(|error| system(&error))?;
        missing = missing.saturating_sub(bytes_of(&more));
    }
    Ok(store)
}

fn bytes_of(lease: &Borrowed) -> u64 {
    lease.ranges.iter().map(|range| range.end - range.start).sum()
}

fn system(error: &dyn Display) -> Failure {
    Failure::new(EverbyteStatus::System, error.to_string())
}

/// Stores the space of the store that `made` makes. Asks for the output first: what was made could
/// not be given up again.
///
/// # Safety
/// `space` is null or points to room for a pointer.
unsafe fn give(
    made: impl FnOnce() -> Result<FileStore, Failure>,
    space: *mut *mut EverbyteSpace,
) -> EverbyteStatus {
    let given = || {
        check(space, "space")?;
        let made = EverbyteSpace { space: SwapSpace::new(made()?, SlotOrder::Order64) };
        // SAFETY: the caller's promise, and the check.
        unsafe { space.write(Box::into_raw(Box::new(made))) };
        Ok(())
    };
    status(given())
}
