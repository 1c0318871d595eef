//! The cost of a slot, by how full the swap space is.
//!
//! Invariants: at every fill the same random slots are taken, for every way; each measured step frees
//! random slots and then takes as many, and only the taking is timed, in batches.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::Settings;
use super::allocators::{Allocator, Way};
use crate::rows::{Row, metric};
use crate::stats::{as_f64, summarise};

/// Slots in use, in thousandths.
pub(super) const FILLS: [u64; 8] = [0, 250, 500, 750, 900, 950, 990, 999];
/// Slots that are freed, and then taken, at a time.
const BATCH: usize = 64;
const THREADS: [usize; 2] = [1, 2];

pub(super) fn title(permille: u64, threads: usize) -> String {
    format!("{}.{}% full, random frees, t{threads}", permille / 10, permille % 10)
}

/// Figures of one round.
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

/// Measures one way at one fill.
fn sample(way: Way, settings: &Settings<'_>, permille: u64, threads: usize) -> Result<Sample> {
    let slots = way.make(settings.slots);
    let slots = &*slots;
    // All are taken, and random ones freed again: as after a long time.
    let mut all: Vec<u64> = std::iter::from_fn(|| slots.alloc()).collect();
    all.shuffle(&mut SmallRng::seed_from_u64(permille));
    let least = BATCH * threads;
    let kept = usize::try_from(settings.slots * permille / 1000)?.clamp(least, all.len() - least);
    all.drain(kept..).for_each(|slot| slots.free(slot));
    slots.visits();
    let share = all.len() / threads;
    let mut shares: Vec<Vec<u64>> = all.chunks(share).take(threads).map(<[u64]>::to_vec).collect();
    let begin = Barrier::new(threads);
    let pairs = settings.pairs / threads as u64;
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
    let taken = as_f64(pairs.max(1) * threads as u64);
    let visits = slots.visits().map(|visits| as_f64(visits) / taken);
    check(shares.iter().flatten())?;
    let ns = total.as_secs_f64() * 1e9 / taken;
    Ok(Sample { ns, visits, memory_bytes: slots.memory_bytes() })
}

/// Checks that no slot was handed out twice.
fn check<'a>(mut taken: impl Iterator<Item = &'a u64>) -> Result<()> {
    let mut seen = HashSet::new();
    if let Some(twice) = taken.find(|slot| !seen.insert(**slot)) {
        bail!("slot {twice} was handed out twice");
    }
    Ok(())
}

/// Measures every way at every fill.
///
/// # Errors
/// A way is wrong, or it is to stop.
pub(super) fn run(settings: &Settings<'_>) -> Result<Vec<Row>> {
    let cases: Vec<(u64, usize)> =
        FILLS.iter().flat_map(|&fill| THREADS.map(|threads| (fill, threads))).collect();
    let cases: Vec<(u64, usize)> = cases
        .into_iter()
        .filter(|(fill, threads)| settings.wants(&title(*fill, *threads)))
        .collect();
    settings.progress.set_length((cases.len() * Way::ALL.len() * settings.rounds) as u64);
    let mut rows = Vec::new();
    let mut memory: Vec<(Way, u64)> = Vec::new();
    for (permille, threads) in cases {
        let workload = title(permille, threads);
        for way in ways(settings.slots) {
            let mut samples = Vec::new();
            for _ in 0..settings.rounds {
                if settings.stop.load(Ordering::Relaxed) {
                    bail!("stopped");
                }
                settings.progress.set_message(format!("{}, {workload}", way.name()));
                samples.push(sample(way, settings, permille, threads)?);
                settings.progress.inc(1);
            }
            rows.extend(rows_of(way, &workload, &samples));
            let largest = samples.iter().map(|sample| sample.memory_bytes).max().unwrap_or(0);
            match memory.iter_mut().find(|(of, _)| *of == way) {
                Some((_, most)) => *most = largest.max(*most),
                None => memory.push((way, largest)),
            }
        }
    }
    for (way, bytes) in memory {
        rows.push(row(way, "memory", "memory", as_f64(bytes), "B"));
    }
    Ok(rows)
}

/// The ways that can have so many slots.
fn ways(slots: u64) -> impl Iterator<Item = Way> {
    Way::ALL.into_iter().filter(move |way| slots <= way.most())
}

fn rows_of(way: Way, workload: &str, samples: &[Sample]) -> Vec<Row> {
    let times: Vec<f64> = samples.iter().map(|sample| sample.ns).collect();
    let mut rows = Vec::new();
    if let Some((median, spread)) = summarise(&times) {
        let spread = Some(spread);
        rows.push(Row { spread, ..row(way, workload, metric::TIME, median, "ns") });
    }
    let visits: Option<Vec<f64>> = samples.iter().map(|sample| sample.visits).collect();
    if let Some((median, _)) = visits.and_then(|visits| summarise(&visits)) {
        rows.push(row(way, workload, "visits", median, ""));
    }
    rows
}

fn row(way: Way, workload: &str, metric: &'static str, value: f64, unit: &'static str) -> Row {
    Row {
        subject: way.name().to_owned(),
        workload: workload.to_owned(),
        metric,
        value: Some(value),
        unit,
        spread: None,
        note: None,
    }
}
