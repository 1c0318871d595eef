//! Parts of tests that several crates share. Only tests and the fuzzer depend on this crate.
//!
//! Always present: the requirements of a test on its machine, and numbers from the environment. A test that needs
//! root, a loop device or a program reports that it was not run and ends. In CI, which has all requirements, it
//! fails. Features add modules: `files`, `golden`, `medium` and `schedule`.

#![forbid(unsafe_code)]

#[cfg(feature = "files")]
pub mod files;
#[cfg(feature = "golden")]
pub mod golden;
#[cfg(feature = "medium")]
pub mod medium;
#[cfg(feature = "schedule")]
pub mod schedule;

/// The number in the variable `name`, or `otherwise`.
///
/// # Panics
/// If the value is not a number.
#[must_use]
pub fn number(name: &str, otherwise: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.map_or(otherwise, |text| {
        // A misspelt seed must not silently become the default.
        text.parse().unwrap_or_else(|_| panic!("{name}={text}: no number"))
    })
}

/// The seed of explorations of systematic workloads: `EVERBYTE_CRASH_SEED`, set by the nightly script
/// to a new value, or 0. Tests of planted bugs use a fixed seed, so they find their bugs every night.
///
/// # Panics
/// As [`number`].
#[must_use]
pub fn crash_seed() -> u64 {
    number("EVERBYTE_CRASH_SEED", 0)
}

/// Prints the reason why a test is not run.
///
/// # Panics
/// In CI, which sets the variable `CI`.
#[expect(clippy::print_stderr, reason = "a test that is not run says so")]
pub fn not_run(why: &str) {
    // CI has all requirements, so a skipped test there is a lost test.
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
