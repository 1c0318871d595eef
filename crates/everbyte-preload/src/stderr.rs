//! Messages on standard error, to the user of the program.
//!
//! Written without the standard library's lock: a child forked while another thread held it would
//! wait for it forever. The program notices nothing, not even a SIGPIPE.

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
            // A closed standard error has no reader for the error.
            Ok(0) | Err(_) => return,
            Ok(written) => rest = &rest[written..],
        }
    }
}

fn no_signals() -> libc::sigset_t {
    // SAFETY: all-zero bytes are a valid set, of none.
    unsafe { std::mem::zeroed() }
}

/// True if this thread gets a SIGPIPE after it unblocks the signal.
fn has_sigpipe() -> bool {
    let mut pending = no_signals();
    // SAFETY: `pending` may be written.
    unsafe { libc::sigpending(&raw mut pending) };
    // SAFETY: `pending` is a set.
    unsafe { libc::sigismember(&raw const pending, libc::SIGPIPE) == 1 }
}

/// Removes a pending SIGPIPE of this thread for an unread message. The thread blocks the signal. It
/// would end the program.
fn take_sigpipe() {
    let (mut set, now) = (no_signals(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: `set` is a set and may be written.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGPIPE) };
    // SAFETY: a set and a time; the call writes no output here.
    unsafe { libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const now) };
}

/// Prints a message in a thread without the program's descriptors.
pub(crate) fn print_detached(what: &str) {
    if let Some(mut output) = programs_stderr() {
        let _written = output.write_all(line(what).as_bytes());
    }
}

/// Standard error of the program's first thread. A thread with its own descriptor of it would keep
/// pipes open after the program has closed them.
fn programs_stderr() -> Option<File> {
    let program = pidfd_open(getpid(), PidfdFlags::empty());
    let copied = program.and_then(|program| pidfd_getfd(program, 2, PidfdGetfdFlags::empty()));
    match copied {
        Ok(copied) => Some(File::from(copied)),
        // Kernels before Linux 5.6, and filters of system calls.
        Err(_) => File::options().append(true).open("/proc/self/fd/2").ok(),
    }
}

/// Prints a message the first time only.
pub(crate) fn print_once(what: &str, is_said: &AtomicBool) {
    if !is_said.swap(true, Relaxed) {
        print(what);
    }
}
