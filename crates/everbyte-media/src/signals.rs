//! Signals blocked temporarily by a thread, and cancellation.
//!
//! A handler that runs while its own thread moves a page or a part, and touches that one, would wait for
//! itself. A thread cancelled during the move (`pthread_cancel`) would leave the moved part, and locks,
//! forever.
//!
//! Invariant: the signals of faults are never blocked here, since the kernel kills a thread that blocks them
//! and faults; nor is the signal of `abort`.

use std::marker::PhantomData;
use std::{mem, ptr};

use libc::{c_int, sigset_t};

const FAULTS: [c_int; 6] =
    [libc::SIGBUS, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];

/// Every signal except those of faults.
pub(crate) fn all_but_faults() -> sigset_t {
    // SAFETY: all-zero bytes are a valid set, which `sigfillset` then fills in.
    let mut set: sigset_t = unsafe { mem::zeroed() };
    // SAFETY: `set` may be written.
    unsafe { libc::sigfillset(&raw mut set) };
    for fault in FAULTS {
        // SAFETY: as above; the number is a signal's.
        unsafe { libc::sigdelset(&raw mut set, fault) };
    }
    set
}

// It ends a thread that was to be cancelled at any moment, by unwinding.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

const CANCEL_DISABLE: c_int = 1;

/// The C library's signal for asynchronous cancellation of a thread: it ignores a state set after it was
/// sent.
const SIGCANCEL: c_int = if cfg!(target_env = "musl") { 33 } else { 32 };

/// Adds the signal of thread cancellation to those deferred by a handler. The C library's functions on sets
/// leave it out.
pub(crate) fn add_cancellation(set: &mut sigset_t) {
    let word = ptr::from_mut(set).cast::<u64>();
    // SAFETY: a set is a word for the kernel, with a bit for each signal from 1 on, and more for the C library.
    let before = unsafe { word.read() };
    // SAFETY: as above.
    unsafe { word.write(before | 1 << (SIGCANCEL - 1)) };
}

/// Keeps this thread from being cancelled until it is dropped.
///
/// May be used in a signal handler: POSIX.1-2024 lists the function, and in glibc and in musl it only changes a word of
/// the thread's own.
struct NoCancellation {
    before: c_int,
    /// The state is this thread's.
    thread: PhantomData<*const ()>,
}

impl NoCancellation {
    fn new() -> Self {
        let mut before = CANCEL_DISABLE;
        // SAFETY: a state that there is, and `before` may be written.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        Self { before, thread: PhantomData }
    }
}

impl Drop for NoCancellation {
    fn drop(&mut self) {
        let mut disabled = CANCEL_DISABLE;
        // SAFETY: as above. Who may be cancelled at any moment can end here.
        unsafe { pthread_setcancelstate(self.before, &raw mut disabled) };
    }
}

/// Keeps this thread from taking signals other than faults, and from being cancelled, until it is dropped;
/// signals sent until then arrive afterwards. Nested values must be dropped in the reverse order.
#[must_use]
pub struct BlockedSignals {
    before: sigset_t,
    /// Dropped last, when signals may arrive again.
    _no_cancellation: NoCancellation,
    /// The mask is this thread's.
    thread: PhantomData<*const ()>,
}

impl BlockedSignals {
    /// Blocks them, by a system call. May be called in a signal handler.
    pub fn new() -> Self {
        let no_cancellation = NoCancellation::new();
        let all = all_but_faults();
        // SAFETY: all-zero bytes are a valid set.
        let mut before: sigset_t = unsafe { mem::zeroed() };
        // SAFETY: both sets are valid, and `before` may be written.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before) };
        Self { before, _no_cancellation: no_cancellation, thread: PhantomData }
    }
}

impl Default for BlockedSignals {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is what the mask was; the present one is not wanted.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}
