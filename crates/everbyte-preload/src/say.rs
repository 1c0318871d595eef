//! Messages to whoever started the program, on standard error.
//!
//! Written without the standard library's lock: a child that was forked while another thread had that would wait for it for
//! ever.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

fn line(what: &str) -> String {
    format!("everbyte run: {what}\n")
}

/// Says something.
pub(crate) fn say(what: &str) {
    let line = line(what);
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        match rustix::io::write(std::io::stderr(), rest) {
            Err(Errno::INTR) => {}
            // If nobody hears it, there is nobody to tell.
            Ok(0) | Err(_) => return,
            Ok(written) => rest = &rest[written..],
        }
    }
}

/// Says something in a thread that has none of the program's descriptors.
pub(crate) fn say_apart(what: &str) {
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
pub(crate) fn say_once(what: &str, is_said: &AtomicBool) {
    if !is_said.swap(true, Relaxed) {
        say(what);
    }
}
