//! Address space: a reserved range with a mapped file or anonymous memory at its front.
//!
//! Invariants: the base address never changes and is aligned to 1 GiB, for every page size. `0 .. len` is
//! mapped readable, and the rest of the reservation is inaccessible. `len` only grows. The mapping owns its
//! whole range and no other mapping is ever put over foreign memory.

use std::fs::File;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::c_void;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::own_memory;

/// The largest page a device may insist on.
pub(crate) const ALIGN: usize = 1 << 30;
/// Reserved when the caller names no size: room to grow at no cost but page tables.
const RESERVE_DEFAULT: u64 = 1 << 40;
const RESERVE_FACTOR: u64 = 16;

/// The source of mapped bytes.
pub(crate) enum Source {
    /// A file or device, mapped with these flags.
    File { file: File, flags: MapFlags },
    /// Ranges of files, one behind the other.
    Ranges,
    /// Memory of this process.
    Anonymous,
}

/// A reservation and the mapping at its front.
pub(crate) struct Mapping {
    raw: *mut c_void,
    raw_len: usize,
    base: *mut u8,
    reserved: usize,
    len: AtomicU64,
    source: Source,
    protection: ProtFlags,
    /// The range past `len` may have become someone else's: it must not be unmapped.
    tail_lost: AtomicBool,
}

// SAFETY: the mapping is shared memory without thread affinity. All access goes through raw
// pointers under the contract of `Medium`; the other fields are atomics or never change.
unsafe impl Send for Mapping {}
// SAFETY: as above; `extend` is serialised by its caller, and only `len` and `tail_lost` change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `reserve` bytes (or, without, as much as is sensible) and maps nothing yet.
    ///
    /// # Errors
    /// The address space is not to be had.
    pub(crate) fn reserve(
        source: Source,
        writable: bool,
        len: u64,
        reserve: Option<u64>,
    ) -> io::Result<Self> {
        let least = len.next_multiple_of(ALIGN as u64);
        let mut wanted = match reserve {
            Some(bytes) => bytes.max(len),
            None => RESERVE_DEFAULT.max(len.saturating_mul(RESERVE_FACTOR)),
        };
        loop {
            match reserve_range(wanted) {
                // A limit on address space is no reason to fail, only to grow less.
                Err(_) if reserve.is_none() && wanted > least => wanted = (wanted / 2).max(least),
                Err(error) => return Err(error),
                Ok((raw, raw_len)) => {
                    let skip = raw.addr().next_multiple_of(ALIGN) - raw.addr();
                    let protection =
                        if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
                    return Ok(Self {
                        raw,
                        raw_len,
                        base: raw.cast::<u8>().wrapping_add(skip),
                        reserved: raw_len - ALIGN,
                        len: AtomicU64::new(0),
                        source,
                        protection,
                        tail_lost: AtomicBool::new(false),
                    });
                }
            }
        }
    }

    /// The first mapped byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes in the reach of `extend`.
    pub(crate) fn reserved(&self) -> usize {
        self.reserved
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Returns the source of the mapped bytes.
    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// The file and the flags to map it with, unless it is memory of this process.
    pub(crate) fn file(&self) -> Option<(&File, MapFlags)> {
        match &self.source {
            Source::File { file, flags } => Some((file, *flags)),
            Source::Ranges | Source::Anonymous => None,
        }
    }

    /// Maps up to `new_len`, a length in the reservation. Only one thread may call it at a time; readers and
    /// writers of mapped memory are not disturbed.
    ///
    /// # Errors
    /// The system's, with the mapping as it was.
    pub(crate) fn extend(&self, new_len: u64) -> io::Result<()> {
        let old_len = to_usize(self.len());
        let new = to_usize(new_len);
        assert!(old_len <= new && new <= self.reserved, "{new_len} leaves the reservation");
        if old_len == new {
            return Ok(());
        }
        if self.tail_lost.load(Ordering::Acquire) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        match &self.source {
            Source::File { file, flags } => {
                self.append(Some((file, old_len as u64)), *flags, new - old_len)
            }
            Source::Anonymous => {
                self.append(None, MapFlags::PRIVATE | MapFlags::NORESERVE, new - old_len)
            }
            Source::Ranges => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Maps `len` bytes behind the present mapping: of a file from an offset on, or of memory of this
    /// process. As `extend` otherwise.
    ///
    /// # Errors
    /// The system's, with the mapping as it was.
    pub(crate) fn append(
        &self,
        from: Option<(&File, u64)>,
        flags: MapFlags,
        len: usize,
    ) -> io::Result<()> {
        let old_len = to_usize(self.len());
        assert!(len <= self.reserved - old_len, "{len} bytes leave the reservation");
        if self.tail_lost.load(Ordering::Acquire) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let place = self.base.wrapping_add(old_len).cast();
        // Mapped elsewhere and unmapped again first, so that errors show before a part of the reservation is
        // released.
        // SAFETY: the kernel chooses a free place.
        let elsewhere = unsafe { self.map(ptr::null_mut(), from, flags, len) }?;
        // SAFETY: mapped above, and known to nobody else.
        unsafe { munmap(elsewhere, len) }?;
        // SAFETY: replaces inaccessible memory of our own reservation.
        if let Err(error) = unsafe { self.map(place, from, flags | MapFlags::FIXED, len) } {
            // The kernel may have unmapped the range before it failed.
            self.tail_lost.store(true, Ordering::Release);
            return Err(error);
        }
        // Before anything is stored there. A page that is locked all the same costs memory only.
        let _best_effort = own_memory::exempt(place.cast(), len);
        // Large pages only save time, and not every kind of memory has them.
        // SAFETY: advice does not change what the memory holds, and the range is mapped.
        let _best_effort = unsafe { madvise(place, len, Advice::LinuxHugepage) };
        self.len.store((old_len + len) as u64, Ordering::Release);
        Ok(())
    }

    /// Enters every mapped page from `from` on into the page table, if the kernel knows how.
    ///
    /// # Errors
    /// Memory for a page is missing, or the page is poisoned.
    pub(crate) fn populate(&self, from: u64) -> io::Result<()> {
        let writable = self.protection.contains(ProtFlags::WRITE);
        let advice = if writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        let (from, len) = (to_usize(from), to_usize(self.len()));
        let place = self.base.wrapping_add(from).cast();
        // SAFETY: advice does not change what the memory holds, and the range is mapped.
        match unsafe { madvise(place, len - from, advice) } {
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// # Safety
    /// As for mmap: with `FIXED` among the flags, the range at `place` must be free to be replaced.
    unsafe fn map(
        &self,
        place: *mut c_void,
        from: Option<(&File, u64)>,
        flags: MapFlags,
        len: usize,
    ) -> io::Result<*mut c_void> {
        let mapped = match from {
            // SAFETY: the caller's.
            Some((file, offset)) => unsafe {
                mmap(place, len, self.protection, flags, file, offset)
            },
            // SAFETY: the caller's.
            None => unsafe { mmap_anonymous(place, len, self.protection, flags) },
        };
        Ok(mapped?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (start, len) = if *self.tail_lost.get_mut() {
            (self.base.cast(), to_usize(*self.len.get_mut()))
        } else {
            (self.raw, self.raw_len)
        };
        if len > 0 {
            // SAFETY: our own range, to which nobody holds a pointer any more. It cannot fail for
            // such a range, and there would be nothing to do about it.
            let _cannot_fail = unsafe { munmap(start, len) };
        }
    }
}

/// Returns true if the kernel promises that stores through a shared mapping of `file` need no `msync`.
///
/// # Errors
/// The file cannot be mapped at all.
pub(crate) fn is_synchronous(file: &File, len: u64, writable: bool) -> io::Result<bool> {
    let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    // SAFETY: the kernel chooses a free place.
    match unsafe { mmap(ptr::null_mut(), to_usize(len), protection, flags, file, 0) } {
        Ok(place) => {
            // SAFETY: mapped above, and known to nobody else.
            unsafe { munmap(place, to_usize(len)) }?;
            Ok(true)
        }
        // Kernels older than the flag, file systems without it, files that are not on DAX.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Addresses and lengths are 64 bits wide on the only architecture this crate builds for.
#[expect(clippy::cast_possible_truncation, reason = "usize is u64 on x86-64")]
pub(crate) const fn to_usize(value: u64) -> usize {
    value as usize
}

/// Reserves `len` usable bytes and the bytes for their alignment.
pub(crate) fn reserve_range(len: u64) -> io::Result<(*mut c_void, usize)> {
    let raw_len = len
        .checked_next_multiple_of(ALIGN as u64)
        .and_then(|len| len.checked_add(ALIGN as u64))
        .ok_or(io::ErrorKind::OutOfMemory)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: the kernel chooses a free place.
    let raw =
        unsafe { mmap_anonymous(ptr::null_mut(), to_usize(raw_len), ProtFlags::empty(), flags) }?;
    Ok((raw, to_usize(raw_len)))
}
