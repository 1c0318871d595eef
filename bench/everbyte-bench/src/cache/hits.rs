//! Hits alone: parallel threads request cached pages, compared with a block volume of equal size.
//!
//! Invariants: no request reaches the backing device. In a round each number of threads has a slice on each subject, one
//! subject after the other. Ratios are of one round.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use everbyte_block::{BlockOptions, BlockVolume, kinds};
use everbyte_cache::Mode;
use everbyte_device::{BlockDevice, DiskCosts, Fua};
use everbyte_media::{Mapped, MediaOptions, Technology};
use everbyte_policy::sim::{Kind, Spec};
use everbyte_pool::{OpenOptions, Pool};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::Settings;
use super::backing::Backing;
use super::subject::{Front, new_cache};
use crate::driver::{Grid, Rounds, on_threads};
use crate::rows::{Row, metric};
use crate::stats::as_f64;
use crate::subject::fill;

const PAGE: usize = 4096;
/// Requested pages: more than the processor's caches hold, and few in a smoke test.
const PAGES: u32 = 15_000;
const PAGES_QUICK: u32 = 500;
/// Numbers of threads.
const THREADS: [usize; 3] = [1, 2, 8];
/// Requests between two looks at the clock.
const BURST: u64 = 32;
/// The subject without a cache.
const VOLUME: &str = "block-volume";

/// The requests of a slice, at random pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Reads of whole pages.
    Read,
    /// Writes of an eighth of a page.
    Write,
    /// One write of a quarter of a page for three reads of whole pages.
    Mixed,
}

impl Load {
    const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Mixed];

    fn title(self, threads: usize) -> String {
        let name = match self {
            Self::Read => "read 4K",
            Self::Write => "write 512 B",
            Self::Mixed => "read 4K and write 1K",
        };
        format!("hits, {name}, {threads} thread{}", if threads == 1 { "" } else { "s" })
    }

    /// Bytes of the next request if it is a write.
    fn written(self, rng: &mut SmallRng) -> Option<usize> {
        match self {
            Self::Read => None,
            Self::Write => Some(512),
            Self::Mixed => rng.random_ratio(1, 4).then_some(1024),
        }
    }
}

/// Measures hits, if the filter selects a measurement.
///
/// # Errors
/// A subject's; the user interrupted the run.
pub(super) fn run(settings: &Settings) -> Result<Vec<Row>> {
    let pages = if settings.own.requests.is_some() { PAGES_QUICK } else { PAGES };
    let cases: Vec<(Load, usize)> =
        Load::ALL.into_iter().flat_map(|load| THREADS.map(|threads| (load, threads))).collect();
    let titles: Vec<String> = cases.iter().map(|(load, threads)| load.title(*threads)).collect();
    let is_wanted = |name: &str| titles.iter().any(|title| settings.wants(name, title));
    let (mut names, mut devices) = (Vec::new(), Vec::new());
    for kind in [Kind::Everbyte, Kind::Hybrid] {
        let name = Front::Cache(kind, Mode::WriteBack).name();
        if is_wanted(&name) {
            devices.push(cache(kind, pages, settings)?);
            names.push(name);
        }
    }
    if is_wanted(VOLUME) {
        devices.push(volume(pages)?);
        names.push(VOLUME.to_owned());
    }
    let mut grid = Grid::new(names, titles).select(settings, |_| false, |_, _| true);
    grid.measure(settings, |subject, case, _| {
        slice(&*devices[subject], cases[case], pages, settings)
    })?;
    grid.check()?;
    Ok(grid.rows(|cell, rows| {
        let one = (cases[cell.workload].0, 1);
        let one = cases.iter().position(|case| *case == one);
        let one = one.and_then(|at| grid.samples(rows.subject, at));
        rows.timed(metric::RATE, "1/s", cell.samples.iter().copied());
        rows.ratio(metric::SCALING, &cell.samples, one, |rate| *rate);
    }))
}

/// Makes a cache with `pages` pages in it.
fn cache(kind: Kind, pages: u32, settings: &Rounds) -> Result<Arc<dyn BlockDevice>> {
    let size_bytes = u64::from(pages) * PAGE as u64;
    let backing = Backing::new(&settings.folder().join(kind.name()), size_bytes, DiskCosts::HDD)?;
    // The block volume has the same memory, so the comparison is of the ways to it.
    let cache = new_cache(backing, kind, Mode::WriteBack, &Spec::new(pages + pages / 8)?, dram)?;
    let mut bytes = vec![0; PAGE];
    let mut read_all = || -> Result<u64> {
        let before = cache.stats().hits();
        (0..pages).try_for_each(|page| cache.read(u64::from(page) * PAGE as u64, &mut bytes))?;
        Ok(cache.stats().hits() - before)
    };
    read_all()?;
    ensure!(read_all()? == u64::from(pages), "the cache has not all pages");
    Ok(cache)
}

/// Makes a block volume with `pages` blocks in it.
fn volume(pages: u32) -> Result<Arc<dyn BlockDevice>> {
    let size_bytes = u64::from(pages) * PAGE as u64;
    let medium = dram(2 * size_bytes + (64 << 20))?;
    Pool::format(&medium, 4, [1; 16])?;
    let pool = Arc::new(Pool::open(Arc::new(medium), kinds(), &OpenOptions::default())?);
    let volume = BlockVolume::create(&pool, "hits", size_bytes, &BlockOptions::default())?;
    fill(&mut &volume, size_bytes, PAGE)?;
    volume.flush()?;
    Ok(Arc::new(volume))
}

fn dram(bytes: u64) -> Result<Mapped> {
    let options = MediaOptions::new().emulate(Some(Technology::Dram));
    Mapped::anonymous(bytes, &options).with_context(|| format!("no memory for {bytes} bytes"))
}

/// Sends requests for a slice of time. Returns requests a second.
fn slice(
    device: &dyn BlockDevice,
    (load, threads): (Load, usize),
    pages: u32,
    settings: &Rounds,
) -> Result<f64> {
    let start = Instant::now();
    let requests = on_threads(threads, |number| {
        let mut rng = SmallRng::seed_from_u64(number as u64);
        let mut buffer = vec![1; PAGE];
        let mut requests = 0;
        // A thread with a late start sends one burst at least.
        while requests == 0 || start.elapsed() < settings.slice {
            settings.check_stop()?;
            for _ in 0..BURST {
                let at = u64::from(rng.random_range(0..pages)) * PAGE as u64;
                match load.written(&mut rng) {
                    Some(len) => device.write(at, &buffer[..len], Fua::No)?,
                    None => device.read(at, &mut buffer)?,
                }
            }
            requests += BURST;
        }
        Ok(requests)
    })?;
    Ok(as_f64(requests.iter().sum()) / start.elapsed().as_secs_f64())
}
