//! Short names for a toy storage code's operations on a medium.

use everbyte_crash::{Closures, Crash, Medium, PoolOffset, SimMedium};

/// Storage code on a few blocks.
pub(crate) type Toy<R> = Closures<'static, &'static str, R>;

pub(crate) fn put(medium: &SimMedium, at: u64, value: u64) {
    medium.store_word(PoolOffset(at), value);
}

pub(crate) fn get(medium: &SimMedium, at: u64) -> u64 {
    medium.load_word(PoolOffset(at))
}

pub(crate) fn flush(medium: &SimMedium, at: u64) {
    medium.flush(PoolOffset(at), 8);
}

pub(crate) fn fence(medium: &SimMedium) {
    medium.fence().unwrap();
}

/// Makes the word at `at` durable.
pub(crate) fn persist(medium: &SimMedium, at: u64, value: u64) {
    put(medium, at, value);
    flush(medium, at);
    fence(medium);
}

pub(crate) fn happened(crash: &Crash<'_, &'static str>, event: &str) -> bool {
    crash.events.iter().any(|stamped| stamped.event == event)
}
