//! A counter of two words, with one that selects the valid word. It omits a fence. The explorer
//! finds the crash that loses the count, and passes the counter with the fence. `cargo run -p
//! everbyte-crash --example torn_counter`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use everbyte_crash::{Closures, Explorer, Medium, PoolOffset, SimMedium};

const WHICH: PoolOffset = PoolOffset(0);
const COUNTS: [PoolOffset; 2] = [PoolOffset(64), PoolOffset(128)];

/// The word that counts.
fn current(medium: &SimMedium) -> PoolOffset {
    COUNTS[usize::from(medium.load_word(WHICH) == 1)]
}

/// Fills the invalid word, then makes it the valid one.
fn set(medium: &SimMedium, value: u64, fenced: bool) {
    let other = 1 - medium.load_word(WHICH);
    let spare = COUNTS[usize::from(other == 1)];
    medium.store_word(spare, value);
    medium.flush(spare, 8);
    if fenced {
        medium.fence().expect("a medium that has not failed"); // Before it counts, it is there.
    }
    medium.store_word(WHICH, other);
    medium.flush(WHICH, 8);
    medium.fence().expect("a medium that has not failed");
}

/// Counts to three. After a crash it is at the last value noted, or at the one being set.
pub(crate) fn counter(fenced: bool) -> Closures<'static, u64, u64> {
    Closures::new(
        move |medium, log| {
            for value in 1..=3 {
                set(medium, value, fenced);
                log.note(value);
            }
        },
        |medium| Ok(medium.load_word(current(medium))),
        |found, crash| {
            let noted = crash.events.last().map_or(0, |last| last.event);
            let right = found == noted || found == noted + 1;
            right.then_some(()).ok_or(format!("counted to {noted}, then found {found}"))
        },
    )
    .label(0..8, "which")
    .label(64..72, "count 0")
    .label(128..136, "count 1")
}

#[allow(dead_code, reason = "a test runs the counter without it")]
fn main() {
    for fenced in [false, true] {
        println!("with the fence: {fenced}");
        match Explorer::default().explore(&counter(fenced)) {
            Ok(summary) => println!("{summary}"),
            Err(failure) => println!("{failure}"),
        }
    }
}
