//! Spaces: the slots behind regions.

use std::ffi::c_char;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use everbyte_control::{Borrowed, ControlClient};
use everbyte_swap::{FileStore, SwapSpace};

use crate::error::{EverbyteStatus, Failure, check, status, text};

/// Slots behind regions: in a file, or in memory lent by a pool's server.
pub struct EverbyteSpace {
    pub(crate) space: Arc<SwapSpace>,
}

/// Creates a file of `bytes` bytes at `path`, and a space in it. The path must not exist. On tmpfs,
/// DAX or a disk; all of the file is allocated.
///
/// # Safety
/// `path` is null or points to text ending with a 0; `space` is null or points to space for a
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

/// Opens a space in an existing file or device and overwrites its bytes.
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

/// Borrows a space of at least `bytes` bytes of the swap volume `volume` from the server of the
/// pool at `pool`. The loan ends with the space and its regions, or with the process.
///
/// # Safety
/// `pool` and `volume` are null or point to text ending with a 0; `space` is null or points to
/// space for a pointer.
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

/// Closes a space. Its regions keep it until they are unmapped.
///
/// # Safety
/// `space` is null or was made by this library and not closed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn everbyte_space_close(space: *mut EverbyteSpace) -> EverbyteStatus {
    status(check(space, "space").map(|()| {
        // SAFETY: the caller's promise: `give` made it, and it is unused from now on.
        drop(unsafe { Box::from_raw(space) });
    }))
}

/// Borrows runs until there are enough, and maps them.
fn lent(pool: &Path, volume: &str, bytes: u64) -> Result<FileStore, Failure> {
    if bytes == 0 {
        return Err(Failure::new(EverbyteStatus::BadArgument, "a space needs at least one byte"));
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

/// Stores the space of a store from `made`. Checks the output first, because the store could not be
/// closed afterwards.
///
/// # Safety
/// `space` is null or points to room for a pointer.
unsafe fn give(
    made: impl FnOnce() -> Result<FileStore, Failure>,
    space: *mut *mut EverbyteSpace,
) -> EverbyteStatus {
    let given = || {
        check(space, "space")?;
        let made = EverbyteSpace { space: SwapSpace::new(made()?) };
        // SAFETY: the caller's promise, and the check.
        unsafe { space.write(Box::into_raw(Box::new(made))) };
        Ok(())
    };
    status(given())
}
