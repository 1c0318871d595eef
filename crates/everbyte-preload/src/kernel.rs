//! System calls about mappings, as the C library would make them.
//!
//! Direct, because the C library's functions are replaced by this library's. They set `errno`.

use std::ptr;

use libc::{c_int, c_long, c_void};

/// Bytes of a page, and of a unit.
pub(crate) const PAGE: usize = 4096;
pub(crate) const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
pub(crate) const FAILED: *mut c_void = libc::MAP_FAILED;

/// Sets the C library's error number.
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: there is always one.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is this thread's own.
    unsafe { place.write(error) };
}

/// The C library's error number.
pub(crate) fn errno() -> c_int {
    // SAFETY: there is always one.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is this thread's own.
    unsafe { place.read() }
}

fn pointer(result: c_long) -> *mut c_void {
    match usize::try_from(result) {
        Ok(address) => ptr::with_exposed_provenance_mut(address),
        Err(_) => FAILED,
    }
}

/// # Safety
/// As `mmap(2)`.
pub(crate) unsafe fn mmap(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    pointer(unsafe { libc::syscall(libc::SYS_mmap, at, len, prot, flags, fd, offset) })
}

/// Zeroed pages of this process's own; null if there are none.
pub(crate) fn map_private(len: usize) -> *mut u8 {
    let (prot, flags) = (READ_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the kernel chooses a free place.
    let at = unsafe { mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
    if at == FAILED { ptr::null_mut() } else { at.cast() }
}

/// Converts the result of a system call to the result of a C function.
pub(crate) fn status(result: c_long) -> c_int {
    if result == 0 { 0 } else { -1 }
}

/// # Safety
/// As `munmap(2)`.
pub(crate) unsafe fn munmap(at: *mut c_void, len: usize) -> c_int {
    // SAFETY: the caller's promise.
    status(unsafe { libc::syscall(libc::SYS_munmap, at, len) })
}

/// # Safety
/// As `mremap(2)`.
pub(crate) unsafe fn mremap(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new_at: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    pointer(unsafe { libc::syscall(libc::SYS_mremap, at, old_len, new_len, flags, new_at) })
}

/// # Safety
/// As `madvise(2)`.
pub(crate) unsafe fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's promise.
    status(unsafe { libc::syscall(libc::SYS_madvise, at, len, advice) })
}

/// # Safety
/// As `mprotect(2)`.
pub(crate) unsafe fn mprotect(at: *mut c_void, len: usize, prot: c_int) -> c_int {
    // SAFETY: the caller's promise.
    status(unsafe { libc::syscall(libc::SYS_mprotect, at, len, prot) })
}
