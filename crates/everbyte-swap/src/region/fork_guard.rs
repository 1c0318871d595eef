//! Distinguishes the memory of a process from the memory of a forked child by a page that the
//! kernel zeroes at a fork.
//!
//! A child of `vfork` or `posix_spawn` shares its parent's memory and counts as the same process.

#![allow(unsafe_code, reason = "mapping a page zeroed at a fork")]

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::store::UNIT;

/// A mark in the memory of the process that mapped a region.
pub(crate) struct ForkGuard {
    mark: NonNull<AtomicU8>,
}

// SAFETY: an atomic in a mapping without thread affinity.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// The memory of this process.
    pub(crate) fn here() -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses a free place.
        let page = unsafe { mmap_anonymous(ptr::null_mut(), UNIT, access, flags) }?;
        let mark = NonNull::new(page.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let origin = Self { mark };
        // SAFETY: our own page, and the advice changes nothing in this process.
        unsafe { madvise(page, UNIT, Advice::LinuxWipeOnFork) }?;
        origin.mark().store(1, Relaxed);
        Ok(origin)
    }

    fn mark(&self) -> &AtomicU8 {
        // SAFETY: mapped until this is dropped, and used as an atomic alone.
        unsafe { self.mark.as_ref() }
    }

    /// False in a forked child. May be called in a signal handler.
    pub(crate) fn is_here(&self) -> bool {
        self.mark().load(Relaxed) == 1
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: our own page, unused from now on; a failure has no remedy.
        let _cannot_fail = unsafe { munmap(self.mark.as_ptr().cast(), UNIT) };
    }
}
