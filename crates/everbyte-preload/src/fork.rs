//! Forks: a child has the whole heap, as ordinary memory that does not page.
//!
//! A child could not read what its parent has in slots; it would find zeroes there. So everything is
//! brought into DRAM before the fork, beyond the limit, and shared until one of the two writes. A fork
//! for which there is not enough memory fails. After `exec` a program has a heap and a limit of its own.
//! `posix_spawn`, `system` and `popen` share the parent's memory and need nothing of this, nor does `vfork`, which has
//! a file of its own.

use std::cell::Cell;
use std::sync::OnceLock;

use everbyte_media::BlockedSignals;
use libc::{c_int, pid_t};

use crate::heap::Heap;
use crate::say::say;
use crate::{any_heap, at_work, kernel, own};

type Fork = unsafe extern "C" fn() -> pid_t;

/// `fork` of the C library, once it was looked up.
static FORK: OnceLock<Fork> = OnceLock::new();

thread_local! {
    /// This thread holds everything, for its fork.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// Has the C library call this before and after every fork.
pub(crate) fn register() {
    // SAFETY: three functions that live as long as the process.
    let failed: c_int = unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
    if failed != 0 {
        say("children of this program will lack its memory: no room for fork handlers");
    }
}

/// `fork` of the C library, which constructors may call before this library's has run.
fn real_fork() -> Option<Fork> {
    if let Some(&fork) = FORK.get() {
        return Some(fork);
    }
    // SAFETY: a name of the C library's.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"fork".as_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: that is the type of `fork`.
    let fork = unsafe { std::mem::transmute::<*mut libc::c_void, Fork>(found) };
    Some(*FORK.get_or_init(|| fork))
}

/// As `fork(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fork() -> pid_t {
    let Some(fork) = real_fork() else {
        kernel::set_errno(libc::ENOSYS);
        return -1;
    };
    // Their handlers may map memory, which waits for who holds the heap.
    let _no_signals = BlockedSignals::new();
    if let Err(reason) = at_work(hold) {
        at_work(|| say(&format!("cannot fork: {reason}")));
        kernel::set_errno(libc::ENOMEM);
        return -1;
    }
    // SAFETY: the caller's promise.
    let pid = unsafe { fork() };
    // Whether or not there were handlers, nothing is held any more.
    at_work(|| let_go(pid == 0));
    pid
}

/// # Errors
/// A fork would take more memory than there is.
fn has_room(heap: &Heap) -> Result<(), String> {
    let wanted = heap.bytes_stored();
    let Some(available) = available_bytes() else { return Ok(()) };
    if wanted <= available / 10 * 9 {
        return Ok(());
    }
    let (wanted, available) = (wanted >> 20, available >> 20);
    Err(format!(
        "a child has to have the whole heap in DRAM, {wanted} MiB more of it, and the system has \
         {available} MiB"
    ))
}

/// Bytes of DRAM that the system could give.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Keeps other threads from the heap, and from `own`, so that a child finds neither half changed. A child of a child
/// finds ordinary memory as it is; for others, everything is brought in.
///
/// # Errors
/// The heap's, or there is too little memory. Nothing has changed then.
fn hold() -> Result<(), String> {
    match any_heap() {
        Some(heap) if !heap.is_child() => {
            has_room(heap)?;
            heap.fork_begins().map_err(|error| error.to_string())?;
        }
        Some(heap) => heap.hold(),
        None => {}
    }
    own::hold();
    HOLDS.set(true);
    Ok(())
}

fn let_go(in_child: bool) {
    if !HOLDS.replace(false) {
        return;
    }
    own::release();
    match any_heap() {
        Some(heap) if !heap.is_child() => heap.fork_ended(in_child),
        Some(heap) => heap.release(),
        None => {}
    }
}

/// For forks that are not made by `fork` above, such as those of `daemon` and `forkpty`.
extern "C" fn before() {
    if HOLDS.get() {
        return;
    }
    at_work(|| {
        if let Err(reason) = hold() {
            say(&format!("cannot fork, so this ends here: {reason}"));
            std::process::abort();
        }
    });
}

extern "C" fn parent() {
    at_work(|| let_go(false));
}

extern "C" fn child() {
    at_work(|| let_go(true));
}
