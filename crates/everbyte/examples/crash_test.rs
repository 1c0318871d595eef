//! Crash-testing storage code: a value counts once a flag is set, and a fence is missing.
//! `cargo run -p everbyte --example crash_test`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use everbyte::crash::{Closures, Explorer, Medium, PoolOffset, SimMedium};

fn main() {
    let (value, flag) = (PoolOffset(0), PoolOffset(64));
    let save = |medium: &SimMedium| {
        medium.store_word(value, 42);
        medium.store_word(flag, 1); // a bug: the value is to be flushed and fenced first
    };
    let recover = |m: &SimMedium| (m.load_word(flag) == 1).then(|| m.load_word(value));
    let check = |found| if found == Some(0) { Err("lost".to_owned()) } else { Ok(()) };
    let case = Closures::<(), _>::new(|m, _| save(m), |m| Ok(recover(m)), |found, _| check(found));
    let failure = Explorer::default().explore(&case).expect_err("the bug is found");
    println!("{failure}");
}
