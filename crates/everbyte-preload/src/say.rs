//! Messages to whoever started the program, on standard error.

use std::io::Write;

/// Says something.
pub(crate) fn say(what: &str) {
    let line = format!("everbyte run: {what}\n");
    // If nobody hears it, there is nobody to tell.
    let _written = std::io::stderr().write_all(line.as_bytes());
}
