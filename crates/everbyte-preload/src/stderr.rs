//! Messages to whoever started the program, on standard error.
//!
//! Written without the standard library's lock: a child that was forked while another thread had that would wait for it for
//! ever. The program hears nothing of it, not even by a SIGPIPE.

use std::fs::File;
use std::io::Write;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

fn line(what: &str) -> String {
    format!("everbyte run: {what}\n")
}

/// Says something.
pub(crate) fn print(what: &str) {
    let line = line(what);
    let mut rest = line.as_bytes();
    let is_signalled = has_sigpipe();
    while !rest.is_empty() {
        match rustix::io::write(std::io::stderr(), rest) {
            Err(Errno::INTR) => {}
            Err(Errno::PIPE) if !is_signalled => return take_sigpipe(),
            // If nobody hears it, there is nobody to tell.
            Ok(0) | Err(_) => return,
            Ok(written) => rest = &rest[written..],
        }
    }
}

fn no_signals() -> libc::sigset_t {
    // SAFETY: all-zero bytes are a valid set, of none.
    unsafe { std::mem::zeroed() }
}

/// True if this thread is to get a SIGPIPE once it does not block that any more.
fn has_sigpipe() -> bool {
    let mut pending = no_signals();
    // SAFETY: `pending` may be written.
    unsafe { libc::sigpending(&raw mut pending) };
    // SAFETY: `pending` is a set.
    unsafe { libc::sigismember(&raw const pending, libc::SIGPIPE) == 1 }
}

/// Takes the SIGPIPE away that this thread, which blocks it, has got for a message that nobody reads. It would end the
/// program.
fn take_sigpipe() {
    let (mut set, now) = (no_signals(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: `set` is a set and may be written.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGPIPE) };
    // SAFETY: a set and a time; nothing is to be written.
    unsafe { libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const now) };
}

/// Says something in a thread that has none of the program's descriptors.
pub(crate) fn print_detached(what: &str) {
    if let Some(mut output) = programs_stderr() {
        let _written = output.write_all(line(what).as_bytes());
    }
}

/// Standard error of the program's first thread. A thread that kept a descriptor of it would keep pipes open that the
/// program has closed.
fn programs_stderr() -> Option<File> {
    let program = pidfd_open(getpid(), PidfdFlags::empty());
    let copied = program.and_then(|program| pidfd_getfd(program, 2, PidfdGetfdFlags::empty()));
    match copied {
        Ok(copied) => Some(File::from(copied)),
        // Kernels before Linux 5.6, and filters of system calls.
        Err(_) => File::options().append(true).open("/proc/self/fd/2").ok(),
    }
}

/// Says something of which one time is enough.
pub(crate) fn print_once(what: &str, is_said: &AtomicBool) {
    if !is_said.swap(true, Relaxed) {
        print(what);
    }
}
