//! Threads with descriptors of their own, and how a thread waits for another.
//!
//! Each thread of a region has a table of descriptors of its own with nothing in it but what it uses. If somebody closes
//! the region's userfaultfd, the kernel still knows of it: accesses to missing pages fault, where
//! they would otherwise read zeroes. Threads that resolve faults by messages go on with that; a
//! thread that would resolve its own cannot, and fails loudly.

#![allow(unsafe_code, reason = "a thread's own table of descriptors")]

use std::os::fd::{BorrowedFd, RawFd};
use std::thread::JoinHandle;

use everbyte_media::BlockedSignals;
use rustix::event::Timespec;

use crate::error::RegionError;

const CLOSE_RANGE_UNSHARE: libc::c_uint = 2;
/// Time that a thread sleeps where it waits for another.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

/// Starts a thread of a region's, and waits until it has descriptors of its own: `kept`, which `run` is given; none where
/// the kernel has no such tables, since their numbers are then the program's.
pub(crate) fn spawn(
    name: &str,
    kept: &[RawFd],
    thread_start: fn(),
    run: impl FnOnce(&[BorrowedFd<'_>]) + Send + 'static,
) -> Result<JoinHandle<()>, RegionError> {
    let kept = kept.to_vec();
    let named = std::thread::Builder::new().name(format!("everbyte {name}"));
    let (ready, is_ready) = std::sync::mpsc::channel();
    let handle = named.spawn(move || {
        thread_start();
        // The program's allocator may be waiting for a fault by the time of the first one.
        everbyte_media::prepare_thread();
        // The program's signals are for the program's threads.
        std::mem::forget(BlockedSignals::new());
        let own: Vec<BorrowedFd<'_>> = match keep_only(&kept) {
            // SAFETY: they were open when the table was copied, and this thread, which has it alone, leaves them open.
            true => kept.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect(),
            false => Vec::new(),
        };
        // Whoever started this thread waits for that.
        let _told = ready.send(());
        run(&own);
    });
    let handle = handle.map_err(RegionError::io("start a thread"))?;
    let _kept = is_ready.recv();
    Ok(handle)
}

/// Waits a little for another thread, for the `tries`th time.
pub(crate) fn pause(tries: u32) {
    match tries {
        0..8 => (0..32).for_each(|_| std::hint::spin_loop()),
        8..64 => std::thread::yield_now(),
        // By the system call, since the C library's function is a cancellation point.
        _ => drop(rustix::thread::nanosleep(&REST)),
    }
}

/// Gives this thread a table of descriptors with these alone, where the kernel can (Linux 5.9). False if it has none of its
/// own afterwards.
fn keep_only(kept: &[RawFd]) -> bool {
    let mut kept: Vec<_> = kept.iter().filter_map(|fd| libc::c_uint::try_from(*fd).ok()).collect();
    kept.sort_unstable();
    // From above, so that the first call, which copies the table, leaves most of it out.
    let mut above = kept.last().map_or(0, |fd| fd + 1);
    if !close_range(above, libc::c_uint::MAX, CLOSE_RANGE_UNSHARE) {
        return false;
    }
    for fd in kept.into_iter().rev() {
        if fd + 1 < above {
            close_range(fd + 1, above - 1, 0);
        }
        above = fd;
    }
    if above > 0 {
        close_range(0, above - 1, 0);
    }
    true
}

/// Closes descriptors; false if the kernel cannot.
fn close_range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> bool {
    // SAFETY: the call takes numbers; the thread uses none of what it closes, and by its first call
    // it has a table of its own.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
}
