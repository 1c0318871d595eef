//! The cost of a slot by the fill of the swap space.
//!
//! A round fills an allocator once and then frees random slots from fill to fill, in the same order for every
//! allocator. A measured step frees random slots and takes as many. Only the allocation is timed, in batches.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::allocators::{Allocator, Way};
use crate::driver::{Grid, Rounds};
use crate::rows::{Row, exact, metric};
use crate::stats::as_f64;

/// Slots in use, in thousandths.
const FILLS: [u64; 8] = [0, 250, 500, 750, 900, 950, 990, 999];
/// Slots of a batch. A batch is freed and then taken.
const BATCH: usize = 64;
const THREADS: [usize; 2] = [1, 2];
/// Seed of the order of frees.
const SEED: u64 = 0x5107;

/// Figures of one round at one fill.
#[derive(Clone, Copy)]
struct Sample {
    ns: f64,
    visits: f64,
    memory_bytes: u64,
}

/// Frees and takes slots of `own`, and returns the time and the visits of taking.
fn churn(slots: &Allocator, own: &mut Vec<u64>, pairs: u64, seed: u64) -> Result<(Duration, u64)> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut time, mut visits, mut done, mut hint) = (Duration::ZERO, 0, 0, 0);
    while done < pairs {
        let batch = BATCH.min(own.len());
        // Not timed: the random order of frees costs cache misses of its own.
        for _ in 0..batch {
            slots.free(own.swap_remove(rng.random_range(0..own.len())));
        }
        let start = Instant::now();
        for _ in 0..batch {
            let slot = slots.alloc(hint, &mut visits).context("a free slot was not found")?;
            // Each thread searches from its last slot on.
            hint = slot + 1;
            own.push(slot);
        }
        time += start.elapsed();
        done += batch as u64;
    }
    Ok((time, visits))
}

/// Measures an allocator at each of `cases`: a fill, ascending, and a number of threads.
fn round(way: Way, capacity: u64, pairs: u64, cases: &[(u64, usize)]) -> Result<Vec<Sample>> {
    let slots = way.make(capacity);
    // All slots are taken and then freed at random, as after a long time.
    let mut taken: Vec<u64> = (0..capacity).map_while(|hint| slots.alloc(hint, &mut 0)).collect();
    taken.shuffle(&mut SmallRng::seed_from_u64(SEED));
    let all = taken.len();
    let mut samples = Vec::new();
    // From full to empty: frees keep the free slots scattered, and one fill serves all cases.
    for &(permille, threads) in cases.iter().rev() {
        // Each thread needs a batch to free, and the allocator a batch of free slots.
        let (wanted, least) = (capacity * permille / 1000, BATCH * threads);
        let kept = usize::try_from(wanted)?.clamp(least, all - least).min(taken.len());
        taken.drain(kept..).for_each(|slot| slots.free(slot));
        samples.push(sample(&slots, &mut taken, threads, pairs)?);
        check(&taken, capacity)?;
    }
    samples.reverse();
    Ok(samples)
}

/// Measures an allocator at its present fill. `taken` are the slots in use.
fn sample(slots: &Allocator, taken: &mut Vec<u64>, threads: usize, pairs: u64) -> Result<Sample> {
    let mut shares: Vec<Vec<u64>> =
        taken.chunks(taken.len().div_ceil(threads)).map(<[u64]>::to_vec).collect();
    let begin = Barrier::new(threads);
    let pairs = pairs / threads as u64;
    let (time, visits) = std::thread::scope(|scope| {
        let begin = &begin;
        let running = shares.iter_mut().zip(0..).map(|(own, seed)| {
            scope.spawn(move || {
                // Threads that begin apart would not compete.
                begin.wait();
                churn(slots, own, pairs, seed)
            })
        });
        let running: Vec<_> = running.collect();
        running.into_iter().try_fold((Duration::ZERO, 0), |(time, visits), thread| {
            let (own_time, own_visits) = thread.join().expect("no thread panics")?;
            anyhow::Ok((time + own_time, visits + own_visits))
        })
    })?;
    *taken = shares.concat();
    let pairs = as_f64(pairs.max(1) * threads as u64);
    let (ns, visits) = (time.as_secs_f64() * 1e9 / pairs, as_f64(visits) / pairs);
    Ok(Sample { ns, visits, memory_bytes: slots.memory_bytes() })
}

/// Checks for slots outside of the capacity and slots with two owners.
fn check(taken: &[u64], capacity: u64) -> Result<()> {
    let mut is_taken = vec![false; usize::try_from(capacity)?];
    for &slot in taken {
        let is_taken = usize::try_from(slot).ok().and_then(|slot| is_taken.get_mut(slot));
        let is_taken = is_taken.with_context(|| format!("slot {slot} of {capacity}"))?;
        ensure!(!std::mem::replace(is_taken, true), "slot {slot} was handed out twice");
    }
    Ok(())
}

/// Measures every allocator at every fill.
///
/// # Errors
/// An allocator is wrong, or the user interrupted the run.
pub(super) fn run(run: &Rounds, capacity: u64, pairs: u64) -> Result<Vec<Row>> {
    let cases = FILLS.iter().flat_map(|&fill| THREADS.map(|threads| (fill, threads)));
    let cases: Vec<(u64, usize)> = cases.collect();
    let title = |&(permille, threads): &(u64, usize)| {
        format!("{}.{}% full, random frees, t{threads}", permille / 10, permille % 10)
    };
    let mut grid = Grid::new(Way::ALL.map(Way::name), cases.iter().map(title)).select(
        run,
        |_| false,
        |_, _| true,
    );
    // A round of an allocator covers all fills, so the first cell measures for all of them.
    let mut rounds: HashMap<(usize, usize), Vec<Sample>> = HashMap::new();
    grid.measure(run, |way, case, nth| {
        let samples = match rounds.entry((way, nth)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(round(Way::ALL[way], capacity, pairs, &cases)?),
        };
        Ok(samples[case])
    })?;
    grid.check()?;
    let mut rows = grid.rows(|cell, rows| {
        rows.timed(metric::TIME, "ns", cell.samples.iter().map(|sample| sample.ns));
        // A stack inspects nothing.
        if cell.samples.iter().any(|sample| sample.visits > 0.0) {
            rows.timed("visits", "", cell.samples.iter().map(|sample| sample.visits));
        }
    });
    for (nth, way) in Way::ALL.into_iter().enumerate() {
        let own = grid.cells.iter().filter(|cell| cell.subject == nth);
        let most = own.flat_map(|cell| &cell.samples).map(|sample| sample.memory_bytes).max();
        rows.extend(most.map(|bytes| exact(way.name(), "memory", "memory", "B", as_f64(bytes))));
    }
    Ok(rows)
}
