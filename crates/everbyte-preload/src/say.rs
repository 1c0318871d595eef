//! Messages to whoever started the program, on standard error.

use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Says something.
pub(crate) fn say(what: &str) {
    let line = format!("everbyte run: {what}\n");
    // If nobody hears it, there is nobody to tell.
    let _written = std::io::stderr().write_all(line.as_bytes());
}

/// Says something of which one time is enough.
pub(crate) fn say_once(what: &str, is_said: &AtomicBool) {
    if !is_said.swap(true, Relaxed) {
        say(what);
    }
}
