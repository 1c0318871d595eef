//! The time to hand a line of memory from one processor to another.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::stats::as_f64;
use crate::suite::Settings;

/// Times that a line is handed over in a round.
const HANDS: u64 = 200_000;

/// A line of its own.
#[repr(align(128))]
struct Line(AtomicU64);

/// Nanoseconds by round; none on a machine with one processor.
///
/// # Errors
/// It is to stop.
pub(super) fn times(settings: &Settings<'_>) -> Result<Vec<f64>> {
    if thread::available_parallelism().is_ok_and(|processors| processors.get() < 2) {
        return Ok(Vec::new());
    }
    let hands = if settings.quick { HANDS / 100 } else { HANDS };
    let mut found = Vec::new();
    for _ in 0..settings.rounds {
        match hand_over(hands, settings.stop) {
            Some(ns) => found.push(ns),
            None => bail!("stopped"),
        }
    }
    Ok(found)
}

/// Nanoseconds of one of `hands` times that two threads store to a line in turn, each after it saw the other's
/// store. `None` if they are to stop.
fn hand_over(hands: u64, stop: &AtomicBool) -> Option<f64> {
    let line = Line(AtomicU64::new(0));
    // Stores each number of its parity once the one before is there.
    let play = |parity: u64| {
        let mut next = parity;
        while next < hands {
            if line.0.load(Ordering::Acquire) == next {
                line.0.store(next + 1, Ordering::Release);
                next += 2;
            } else if stop.load(Ordering::Relaxed) {
                return false;
            } else {
                std::hint::spin_loop();
            }
        }
        true
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| play(1));
        let start = Instant::now();
        let done = play(0);
        let done = other.join().unwrap_or(false) && done;
        done.then(|| start.elapsed().as_secs_f64() * 1e9 / as_f64(hands))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_handed_over_until_it_is_to_stop() {
        let stop = AtomicBool::new(false);
        assert!(hand_over(1000, &stop).unwrap() > 0.0);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(hand_over(1 << 40, &stop), None);
    }
}
