//! Forks: a child has the whole heap, as ordinary memory that does not page.
//!
//! A child could not read what its parent has in slots; it would find zeroes there. So everything is
//! brought into DRAM before the fork, beyond the limit, and shared until one of the two writes. A fork
//! for which there is not enough memory fails. After `exec` a program has a heap and a limit of its own.
//! `posix_spawn`, `system` and `popen` share the parent's memory and need nothing of this, nor does `vfork`, which has
//! a file of its own.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, pid_t};

use crate::heap::Heap;
use crate::say::say;
use crate::{any_heap, at_work, kernel, own};

/// `fork` of the C library.
static FORK: OnceLock<unsafe extern "C" fn() -> pid_t> = OnceLock::new();
/// The heap is held for a fork.
static IS_HELD: AtomicBool = AtomicBool::new(false);

/// Has the C library call this before and after every fork.
pub(crate) fn register() {
    // SAFETY: a name of the C library's.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"fork".as_ptr()) };
    if !found.is_null() {
        // SAFETY: that is the type of `fork`.
        let fork = unsafe {
            std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> pid_t>(found)
        };
        let _first = FORK.set(fork);
    }
    // SAFETY: three functions that live as long as the process.
    let failed: c_int = unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
    if failed != 0 {
        say("children of this program will lack its memory: no room for fork handlers");
    }
}

fn forking_heap() -> Option<&'static Heap> {
    any_heap().filter(|heap| !heap.is_child())
}

/// As `fork(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fork() -> pid_t {
    if let Some(heap) = forking_heap()
        && let Err(reason) = at_work(|| has_room(heap).and_then(|()| hold(heap)))
    {
        at_work(|| say(&format!("cannot fork: {reason}")));
        kernel::set_errno(libc::ENOMEM);
        return -1;
    }
    let Some(fork) = FORK.get() else {
        kernel::set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: the caller's promise.
    let pid = unsafe { fork() };
    if pid < 0
        && let Some(heap) = forking_heap()
    {
        // Whether or not the handlers ran, nothing is held any more.
        let_go(heap, false);
    }
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

fn hold(heap: &Heap) -> Result<(), String> {
    heap.fork_begins().map_err(|error| error.to_string())?;
    own::hold();
    IS_HELD.store(true, Ordering::SeqCst);
    Ok(())
}

fn let_go(heap: &Heap, in_child: bool) {
    if IS_HELD.swap(false, Ordering::SeqCst) {
        own::release();
        heap.fork_ended(in_child);
    }
}

/// For forks that are not made by `fork` above, such as those of `daemon` and `forkpty`.
extern "C" fn before() {
    let Some(heap) = forking_heap() else { return };
    if IS_HELD.load(Ordering::SeqCst) {
        return;
    }
    at_work(|| {
        if let Err(reason) = has_room(heap).and_then(|()| hold(heap)) {
            say(&format!("cannot fork, so this ends here: {reason}"));
            std::process::abort();
        }
    });
}

extern "C" fn parent() {
    if let Some(heap) = forking_heap() {
        at_work(|| let_go(heap, false));
    }
}

extern "C" fn child() {
    if let Some(heap) = forking_heap() {
        at_work(|| let_go(heap, true));
    }
}
