//! Forks: a child gets the whole heap as ordinary memory without paging.
//!
//! A child could not read its parent's slots; it would read zeroes there. So the library brings the
//! whole heap into DRAM before the fork, beyond the limit, and shares it until a write by parent or
//! child. A fork fails if memory is insufficient. After `exec` a program has a separate heap and
//! limit. `posix_spawn`, `system` and `popen` share the parent's memory and need no preparation.
//! The same holds for `vfork`, described in its own file.
//!
//! A program's allocator may hold its locks across a fork, and while it maps memory. Invariant: a
//! thread with this library's locks for a fork waits for no other lock. So the last handler before
//! a fork takes the locks, and the first one after it releases them: this library registers its
//! handlers with the C library before all others. The heap is brought in earlier and stays in DRAM,
//! including memory taken since.

use std::cell::Cell;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use everbyte_swap::BlockedSignals;
use libc::{c_int, c_void, pid_t};

use crate::heap::Heap;
use crate::stderr::print;
use crate::{any_heap, fork_advice, internal_heap, kernel, outside_heap};

type Fork = unsafe extern "C" fn() -> pid_t;
type ChildFunction = unsafe extern "C" fn(*mut c_void) -> c_int;
type ChildStart = (Work, BlockedSignals);
type Clone = unsafe extern "C" fn(
    Option<ChildFunction>,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut pid_t,
    *mut c_void,
    *mut pid_t,
) -> c_int;
type Handler = Option<unsafe extern "C" fn()>;
type RegisterAtfork = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

/// The C library has this library's handlers.
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Everything is in DRAM for this thread's fork.
    static IS_WHOLE: Cell<bool> = const { Cell::new(false) };
    /// This thread holds the locks, for its fork.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// Has the C library call this before and after every fork, once.
pub(crate) fn register() {
    if IS_REGISTERED.swap(true, Ordering::SeqCst) {
        return;
    }
    // SAFETY: the three functions live as long as the process.
    let failed = unsafe { call_register(Some(before), Some(parent), Some(child), ptr::null_mut()) };
    if failed != 0 {
        print(
            "forked children of this program will lack its memory: cannot register fork handlers",
        );
    }
}

/// Has the C library call these before and after every fork, as `pthread_atfork` asks; this library's own handlers come
/// before all others'.
///
/// # Safety
/// As `pthread_atfork(3)`; `object` is the caller's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    object: *mut c_void,
) -> c_int {
    register();
    // SAFETY: the caller's promise.
    unsafe { call_register(prepare, parent, child, object) }
}

/// # Safety
/// As `__register_atfork`.
unsafe fn call_register(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    object: *mut c_void,
) -> c_int {
    // SAFETY: a name of the C library's.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__register_atfork".as_ptr()) };
    if found.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: `__register_atfork` has this type.
    let register = unsafe { std::mem::transmute::<*mut c_void, RegisterAtfork>(found) };
    // SAFETY: the caller's promise.
    unsafe { register(prepare, parent, child, object) }
}

/// The C library's `fork` or `_Fork`. Without it sets the error of a missing function.
fn next(name: &CStr) -> Option<Fork> {
    // SAFETY: a name of the C library's.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        kernel::set_errno(libc::ENOSYS);
        return None;
    }
    // SAFETY: both functions have this type.
    Some(unsafe { std::mem::transmute::<*mut c_void, Fork>(found) })
}

/// As `fork(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fork() -> pid_t {
    let Some(fork) = next(c"fork") else { return -1 };
    // Signal handlers may map memory, and mapping waits for the holder of the heap.
    let _no_signals = BlockedSignals::new();
    // Constructors may fork before this library's has run.
    outside_heap(register);
    if let Err(reason) = outside_heap(make_whole) {
        outside_heap(|| print(&format!("cannot fork: {reason}")));
        kernel::set_errno(libc::ENOMEM);
        return -1;
    }
    // SAFETY: the caller's promise.
    let pid = unsafe { fork() };
    // A second call if the first had no space for handlers.
    if pid == 0 {
        child()
    } else {
        parent()
    }
    pid
}

/// As `_Fork(3)`. The C library calls no handlers for it.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _Fork() -> pid_t {
    let Some(fork) = next(c"_Fork") else { return -1 };
    let _no_signals = BlockedSignals::new();
    if !outside_heap(prepare) {
        kernel::set_errno(libc::ENOMEM);
        return -1;
    }
    // SAFETY: the caller's promise.
    let pid = unsafe { fork() };
    if pid == 0 {
        child()
    } else {
        parent()
    }
    pid
}

/// The work of a child by `clone`.
struct Work {
    run: ChildFunction,
    argument: *mut c_void,
}

/// As `clone(2)`. A child with separate memory is prepared as a forked one. Other children share
/// the heap and its threads.
///
/// # Safety
/// As there. The last three arguments are missing in calls without their flags; they are passed on
/// unused then.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn clone(
    run: Option<ChildFunction>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_number: *mut pid_t,
    storage: *mut c_void,
    child_number: *mut pid_t,
) -> c_int {
    // SAFETY: a name of the C library's.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"clone".as_ptr()) };
    if found.is_null() {
        kernel::set_errno(libc::ENOSYS);
        return -1;
    }
    // SAFETY: `clone` has this type; its further arguments are passed as those of this function.
    let clone = unsafe { std::mem::transmute::<*mut c_void, Clone>(found) };
    let Some(run) = run.filter(|_| flags & libc::CLONE_VM == 0 && any_heap().is_some()) else {
        // SAFETY: the caller's promise.
        return unsafe { clone(run, stack, flags, argument, parent_number, storage, child_number) };
    };
    let no_signals = BlockedSignals::new();
    if !outside_heap(prepare) {
        kernel::set_errno(libc::ENOMEM);
        return -1;
    }
    // The child has a copy of it, and of the signals' mask.
    let work = (Work { run, argument }, no_signals);
    let at = (&raw const work).cast_mut().cast();
    let first = Some(run_child as ChildFunction);
    // SAFETY: the caller's promise.
    let pid = unsafe { clone(first, stack, flags, at, parent_number, storage, child_number) };
    parent();
    pid
}

/// The first function of a child by `clone`.
unsafe extern "C" fn run_child(work: *mut c_void) -> c_int {
    child();
    // SAFETY: `clone` passed a pointer to these, valid in the child's copy of the memory. The
    // parent's copy is dropped in the parent.
    let (Work { run, argument }, no_signals) = unsafe { work.cast::<ChildStart>().read() };
    drop(no_signals);
    // SAFETY: the caller's promise.
    unsafe { run(argument) }
}

/// Prepares a fork without the C library's handlers. False, with a message, if it cannot.
fn prepare() -> bool {
    match make_whole() {
        Ok(()) => {
            hold();
            true
        }
        Err(reason) => {
            print(&format!("cannot fork: {reason}"));
            false
        }
    }
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

/// Bytes of DRAM available from the system.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Brings everything in for a child, unless this is one: there it is ordinary memory.
///
/// # Errors
/// An error of the heap, or too little memory. Nothing is changed then.
fn make_whole() -> Result<(), String> {
    let Some(heap) = any_heap().filter(|heap| !heap.is_child() && !IS_WHOLE.get()) else {
        return Ok(());
    };
    has_room(heap)?;
    heap.fork_begins().map_err(|error| error.to_string())?;
    IS_WHOLE.set(true);
    Ok(())
}

/// Blocks changes to the heap and the internal heap by other threads, so a child finds both
/// consistent.
fn hold() {
    if let Some(heap) = any_heap() {
        heap.hold();
    }
    fork_advice::hold();
    internal_heap::hold();
    HOLDS.set(true);
}

/// False if this thread held none.
fn release_locks() -> bool {
    let held = HOLDS.replace(false);
    if held {
        internal_heap::release();
        fork_advice::release();
        if let Some(heap) = any_heap() {
            heap.release();
        }
    }
    held
}

extern "C" fn before() {
    outside_heap(|| {
        // Not every fork is made by `fork` above: `daemon` and `forkpty` call the C library's.
        if let Err(reason) = make_whole() {
            print(&format!("the program ends because it cannot fork: {reason}"));
            std::process::abort();
        }
        hold();
    });
}

extern "C" fn parent() {
    outside_heap(|| {
        release_locks();
        if IS_WHOLE.replace(false)
            && let Some(heap) = any_heap()
        {
            heap.fork_ended();
        }
    });
}

extern "C" fn child() {
    outside_heap(|| {
        if let Some(heap) = any_heap() {
            heap.become_child();
        }
        IS_WHOLE.set(false);
        // Only the first call of two for a fork: handlers of the program run between them.
        if release_locks()
            && let Some(heap) = any_heap()
        {
            fork_advice::follow(heap);
        }
    });
}
