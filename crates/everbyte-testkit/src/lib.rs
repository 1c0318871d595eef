//! Tests that cannot run on every machine.
//!
//! Some need root, a loop device, userfaultfd, or a program that not everybody has. Where it is
//! missing such a test says so and ends. In CI, where everything is there that tests need, it fails.

#![forbid(unsafe_code)]

/// Says why a test is not run here.
///
/// # Panics
/// In CI, which sets the variable `CI`.
#[expect(clippy::print_stderr, reason = "a test that is not run says so")]
pub fn not_run(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "not run in CI: {why}");
    eprintln!("not run: {why}");
}

/// Returns true if this process is root's. Says that a test is not run if it is not, because only root can do
/// `what`.
///
/// # Panics
/// As [`not_run`].
#[must_use]
pub fn is_root(what: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        not_run(&format!("only root can {what}"));
    }
    is_root
}
