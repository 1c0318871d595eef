//! The cost of a slot by the fill of the swap space.
//!
//! Invariants: a round fills an allocator once and then frees random slots from fill to fill, in the same order for every
//! allocator. A measured step frees random slots and takes as many. Only the allocation is timed, in batches. Allocators
//! take turns.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::Settings;
use super::allocators::{Allocator, Way};
use crate::rows::{Row, exact, metric, timed};
use crate::stats::as_f64;

/// Slots in use, in thousandths.
pub(super) const FILLS: [u64; 8] = [0, 250, 500, 750, 900, 950, 990, 999];
/// Slots that are freed, and then taken, at a time.
const BATCH: usize = 64;
const THREADS: [usize; 2] = [1, 2];
/// Seed of the order in which slots are freed.
const SEED: u64 = 0x5107;

pub(super) fn title(permille: u64, threads: usize) -> String {
    format!("{}.{}% full, random frees, t{threads}", permille / 10, permille % 10)
}

/// Figures of one round at one fill.
#[derive(Clone, Copy)]
struct Sample {
    ns: f64,
    visits: Option<f64>,
    memory_bytes: u64,
}

/// Frees and takes slots of `own`, all of which are taken, and returns the time of taking.
fn churn(slots: &dyn Allocator, own: &mut Vec<u64>, pairs: u64, seed: u64) -> Result<Duration> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut time = Duration::ZERO;
    let mut done = 0;
    while done < pairs {
        let batch = BATCH.min(own.len());
        for _ in 0..batch {
            slots.free(own.swap_remove(rng.random_range(0..own.len())));
        }
        let start = Instant::now();
        for _ in 0..batch {
            let Some(slot) = slots.alloc() else { bail!("a free slot was not found") };
            own.push(slot);
        }
        time += start.elapsed();
        done += batch as u64;
    }
    Ok(time)
}

/// Measures one way at each of `cases`: a fill, ascending, and a number of threads.
fn round(way: Way, settings: &Settings<'_>, cases: &[(u64, usize)]) -> Result<Vec<Sample>> {
    let slots = way.make(settings.slots);
    let slots = &*slots;
    // All are taken, and random ones freed again, more and more: as after a long time.
    let mut taken: Vec<u64> = std::iter::from_fn(|| slots.alloc()).collect();
    taken.shuffle(&mut SmallRng::seed_from_u64(SEED));
    let all = taken.len();
    let mut samples = Vec::new();
    for &(permille, threads) in cases.iter().rev() {
        let (wanted, least) = (settings.slots * permille / 1000, BATCH * threads);
        let kept = usize::try_from(wanted)?.clamp(least, all - least).min(taken.len());
        taken.drain(kept..).for_each(|slot| slots.free(slot));
        samples.push(sample(slots, &mut taken, threads, settings.pairs)?);
        check(&taken, settings.slots)?;
    }
    samples.reverse();
    Ok(samples)
}

/// Measures one way as full as it is, when `taken` are the slots in use.
fn sample(
    slots: &dyn Allocator,
    taken: &mut Vec<u64>,
    threads: usize,
    pairs: u64,
) -> Result<Sample> {
    slots.visits();
    let mut shares: Vec<Vec<u64>> =
        taken.chunks(taken.len().div_ceil(threads)).map(<[u64]>::to_vec).collect();
    let begin = Barrier::new(threads);
    let pairs = pairs / threads as u64;
    let times = std::thread::scope(|scope| {
        let begin = &begin;
        let running = shares.iter_mut().zip(0u64..).map(|(own, seed)| {
            scope.spawn(move || {
                begin.wait();
                churn(slots, own, pairs, seed)
            })
        });
        let running: Vec<_> = running.collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("no thread panics"))
            .collect::<Vec<_>>()
    });
    let mut total = Duration::ZERO;
    for time in times {
        total += time?;
    }
    *taken = shares.concat();
    let pairs = as_f64(pairs.max(1) * threads as u64);
    let visits = slots.visits().map(|visits| as_f64(visits) / pairs);
    let ns = total.as_secs_f64() * 1e9 / pairs;
    Ok(Sample { ns, visits, memory_bytes: slots.memory_bytes() })
}

/// Checks that no slot was handed out twice, and none that there is not.
fn check(taken: &[u64], slots: u64) -> Result<()> {
    let mut is_taken = vec![false; usize::try_from(slots)?];
    for &slot in taken {
        match usize::try_from(slot).ok().and_then(|slot| is_taken.get_mut(slot)) {
            Some(is_taken) if !*is_taken => *is_taken = true,
            Some(_) => bail!("slot {slot} was handed out twice"),
            None => bail!("slot {slot} of {slots} was handed out"),
        }
    }
    Ok(())
}

/// Measures every way at every fill.
///
/// # Errors
/// A way is wrong, or it is to stop.
pub(super) fn run(settings: &Settings<'_>) -> Result<Vec<Row>> {
    let cases = FILLS.iter().flat_map(|&fill| THREADS.map(|threads| (fill, threads)));
    let cases: Vec<(u64, usize)> =
        cases.filter(|&(fill, threads)| settings.wants(&title(fill, threads))).collect();
    if cases.is_empty() {
        return Ok(Vec::new());
    }
    let ways: Vec<Way> = ways(settings.slots).collect();
    settings.progress.set_length((cases.len() * ways.len() * settings.rounds) as u64);
    let mut rounds = vec![Vec::new(); ways.len()];
    for _ in 0..settings.rounds {
        for (way, rounds) in ways.iter().zip(&mut rounds) {
            settings.check_stop()?;
            settings.progress.set_message(format!("{}, free slots", way.name()));
            rounds.push(round(*way, settings, &cases)?);
            settings.progress.inc(cases.len() as u64);
        }
    }
    let mut rows = Vec::new();
    for (nth, &(permille, threads)) in cases.iter().enumerate() {
        let workload = title(permille, threads);
        for (way, rounds) in ways.iter().zip(&rounds) {
            let samples: Vec<Sample> = rounds.iter().map(|samples| samples[nth]).collect();
            rows.extend(rows_of(*way, &workload, &samples));
        }
    }
    for (way, rounds) in ways.iter().zip(&rounds) {
        let most = rounds.iter().flatten().map(|sample| sample.memory_bytes).max();
        rows.extend(most.map(|bytes| exact(way.name(), "memory", "memory", "B", as_f64(bytes))));
    }
    Ok(rows)
}

/// The ways that can have so many slots.
fn ways(slots: u64) -> impl Iterator<Item = Way> {
    Way::ALL.into_iter().filter(move |way| slots <= way.most())
}

fn rows_of(way: Way, workload: &str, samples: &[Sample]) -> Vec<Row> {
    let times: Vec<f64> = samples.iter().map(|sample| sample.ns).collect();
    let visits: Option<Vec<f64>> = samples.iter().map(|sample| sample.visits).collect();
    let times = timed(way.name(), workload, metric::TIME, "ns", &times);
    let visits = visits.and_then(|visits| timed(way.name(), workload, "visits", "", &visits));
    times.into_iter().chain(visits).collect()
}
