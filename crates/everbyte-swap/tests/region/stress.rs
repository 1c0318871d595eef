//! Random loads and stores of many threads over several times the limit, with verified contents.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use everbyte_swap::{Region, RegionOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::{MIB, UNIT, space, transparent};

/// How long each stress runs.
fn duration() -> Duration {
    let seconds = std::env::var("EVERBYTE_SWAP_SECONDS").ok();
    let seconds = seconds.map_or(1.0, |seconds| seconds.parse().expect("a number of seconds"));
    Duration::from_secs_f64(seconds)
}

/// A word of a region, used by one thread.
fn word(region: &Region, at: u64) -> &AtomicU64 {
    let place = region.as_mut_ptr().wrapping_add(usize::try_from(at * 8).unwrap());
    // SAFETY: an aligned word of the region, which outlives the reference, used as an atomic only.
    unsafe { AtomicU64::from_ptr(place.cast()) }
}

/// Each thread has every `threads`th word of every unit: threads share units and never words. It
/// remembers its stores.
fn run_thread(region: &Region, thread: u64, threads: u64, end: Instant) -> u64 {
    let words = region.len() / 8;
    let mut random = SmallRng::seed_from_u64(thread);
    let mut stored = vec![0u64; usize::try_from(words / threads).unwrap()];
    let mut done = 0;
    let mut at = 0;
    while done % 1024 != 0 || Instant::now() < end {
        at = match random.random_range(0..8) {
            0..6 => random.random_range(0..words / threads),
            _ => (at + 7) % (words / threads),
        };
        let index = usize::try_from(at).unwrap();
        let word = word(region, at * threads + thread);
        assert_eq!(word.load(Ordering::Relaxed), stored[index], "word {at} of thread {thread}");
        match random.random_range(0..4) {
            0 => {
                stored[index] = random.random();
                word.store(stored[index], Ordering::Relaxed);
            }
            1 => {
                word.fetch_add(1, Ordering::Relaxed);
                stored[index] = stored[index].wrapping_add(1);
            }
            _ => {}
        }
        done += 1;
    }
    for (at, stored) in stored.iter().enumerate() {
        let word = word(region, at as u64 * threads + thread);
        assert_eq!(word.load(Ordering::Relaxed), *stored, "word {at} of thread {thread}");
    }
    done
}

fn stress(threads: u64, options: &RegionOptions) {
    stress_in(16 * MIB, threads, options);
}

/// The same in a space of `bytes` bytes.
fn stress_in(bytes: u64, threads: u64, options: &RegionOptions) {
    let space = space(bytes);
    let region = Region::map(16 * MIB, 4 * MIB, &space, options).unwrap();
    let end = Instant::now() + duration();
    let done: u64 = std::thread::scope(|scope| {
        let region = &region;
        let all: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || run_thread(region, thread, threads, end)))
            .collect();
        all.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let statistics = region.statistics();
    region.check().unwrap();
    assert!(done > 0);
    assert!(statistics.units_out > 0 && statistics.units_in > 0, "{statistics:?}");
    assert!(statistics.units_resident <= statistics.units_limit, "{statistics:?}");
    assert_eq!(statistics.units_over_limit, 0, "{statistics:?}");
    drop(region);
    assert_eq!(space.slots_free(), bytes / UNIT, "slots are missing");
    assert_eq!(space.slots_unreserved(), space.slots());
}

#[test]
fn contents_hold_under_one_thread() {
    stress(1, &RegionOptions::new());
    stress(1, &RegionOptions::new().tracks_stores(false));
}

#[test]
fn contents_hold_under_two_threads() {
    stress(2, &RegionOptions::new());
}

#[test]
fn contents_hold_under_eight_threads() {
    stress(8, &RegionOptions::new());
    stress(8, &RegionOptions::new().tracks_stores(false).read_ahead(1));
}

/// The space has only the reserved slots.
#[test]
fn reserved_slots_suffice() {
    let options = RegionOptions::new();
    let more = space(16 * MIB);
    let region = Region::map(16 * MIB, 4 * MIB, &more, &options).unwrap();
    let reserved = (more.slots() - more.slots_unreserved()) * UNIT;
    drop(region);
    assert!(reserved < 16 * MIB);
    for threads in [1, 4] {
        stress_in(reserved, threads, &options);
    }
}

#[test]
fn contents_hold_in_transparent_region() {
    let Some(options) = transparent(2) else { return };
    stress(3, &options);
}
