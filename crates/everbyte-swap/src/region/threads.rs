//! Threads with private descriptor tables, and waits of one thread for another.
//!
//! Each thread of a region has a private descriptor table with only the descriptors it uses. If the
//! program closes the region's userfaultfd, the kernel still has it open: accesses to missing pages
//! fault instead of reading zeroes. Threads resolving faults by messages continue; a thread
//! resolving its own fault cannot, and its access fails with SIGBUS.

#![allow(unsafe_code, reason = "a thread's own table of descriptors")]

use std::os::fd::{BorrowedFd, RawFd};
use std::thread::JoinHandle;

use everbyte_media::BlockedSignals;
use rustix::event::Timespec;

use crate::error::RegionError;

const CLOSE_RANGE_UNSHARE: libc::c_uint = 2;
/// Sleep of a thread between two checks for another one.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

/// Starts a thread of a region and waits until it has a private descriptor table. `run` gets the
/// descriptors `kept` of this table, or none on a kernel without such tables, because the numbers
/// then belong to the program.
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
            // SAFETY: they were open when the table was copied, and this thread, the table's only
            // user, leaves them open.
            true => kept.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect(),
            false => Vec::new(),
        };
        // The starting thread waits for this message.
        let _sent = ready.send(());
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

/// Gives this thread a private table of only these descriptors, if the kernel can (Linux 5.9).
/// False if the thread has no private table afterwards.
fn keep_only(kept: &[RawFd]) -> bool {
    let mut kept: Vec<_> = kept.iter().filter_map(|fd| libc::c_uint::try_from(*fd).ok()).collect();
    kept.sort_unstable();
    // From above: the first call copies the table without most descriptors.
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
    // SAFETY: the call takes numbers; the thread uses none of the closed descriptors, and from its
    // first call on it has a private table.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
}
