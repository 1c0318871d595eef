//! Hits alone: parallel threads request cached pages, compared with a block volume of equal size.
//!
//! Invariants: no request reaches the backing device. In a round every number of threads has a slice on each target, in
//! direct succession. Ratios are of the same round.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use everbyte_block::{BlockOptions, BlockVolume, kinds};
use everbyte_cache::Mode;
use everbyte_device::{BlockDevice, Fua};
use everbyte_media::{Mapped, MediaOptions, Technology};
use everbyte_policy::sim::{Kind, Spec};
use everbyte_pool::{OpenOptions, Pool};

use super::backing::Backing;
use super::options::CacheArgs;
use super::subject::{Front, Subject};
use super::{Settings, Speed};
use crate::driver::Rounds;
use crate::rows::{Row, metric, timed};
use crate::stats::as_f64;

const PAGE: u64 = 4096;
/// Pages asked for: more than the processor's caches hold, and few of a smoke test.
const PAGES: u32 = 15_000;
const PAGES_QUICK: u32 = 500;
/// Threads of the slices of a round.
const THREADS: [u64; 3] = [1, 2, 8];
/// Requests between two looks at the clock.
const BURST: u64 = 32;
/// The subject without a cache.
const VOLUME: &str = "block-volume";

/// The requests of a slice, at random pages.
#[derive(Clone, Copy)]
enum Load {
    /// Whole pages are read.
    Read,
    /// An eighth of a page is written.
    Write,
    /// One in four writes a quarter of a page, the others read whole ones.
    Mixed,
}

impl Load {
    const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Mixed];

    fn name(self) -> &'static str {
        match self {
            Self::Read => "hits, read 4K",
            Self::Write => "hits, write 512 B",
            Self::Mixed => "hits, read 4K and write 1K",
        }
    }

    fn ask(
        self,
        device: &dyn BlockDevice,
        random: u64,
        page: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        let written = match self {
            Self::Read => None,
            Self::Write => Some(512),
            Self::Mixed => random.is_multiple_of(4).then_some(1024),
        };
        match written {
            Some(len) => device.write(page * PAGE, &buffer[..len], Fua::No)?,
            None => device.read(page * PAGE, buffer)?,
        }
        Ok(())
    }
}

/// Something that has all pages.
struct Target {
    name: String,
    device: Arc<dyn BlockDevice>,
}

/// Measures hits, if `settings` want any.
///
/// # Errors
/// A subject's, or it is to stop.
pub(super) fn run(settings: &Settings) -> Result<Vec<Row>> {
    let pages = if settings.own.requests.is_some() { PAGES_QUICK } else { PAGES };
    let fronts = [Kind::Everbyte, Kind::Hybrid].map(|kind| Front::Cache(kind, Mode::WriteBack));
    let is_wanted = |name: &str| Load::ALL.iter().any(|load| settings.wants(name, load.name()));
    let mut targets = Vec::new();
    for front in fronts {
        if is_wanted(&front.name()) {
            targets.push(Target { name: front.name(), device: cache(front, pages, settings)? });
        }
    }
    if is_wanted(VOLUME) {
        targets.push(Target { name: VOLUME.into(), device: volume(pages)? });
    }
    let rows = Load::ALL.into_iter().map(|load| measure(&targets, load, pages, settings));
    Ok(rows.collect::<Result<Vec<_>>>()?.concat())
}

/// Makes a cache that has `pages` pages and all of them.
fn cache(front: Front, pages: u32, settings: &Settings) -> Result<Arc<dyn BlockDevice>> {
    let path = settings.folder().join(format!("hits-{}", front.name()));
    let backing = Backing::new(&path, u64::from(pages) * PAGE, Speed::Hdd.costs())?;
    // Beside a block volume on the same memory: what is compared is the way to it.
    let own = CacheArgs { scm: Technology::Dram, ..settings.own.clone() };
    let subject = Subject::new(front, backing, &Spec::new(pages + pages / 8)?, &own)?;
    let device = subject.cache().context("only caches have hits")?;
    fill(&*device, pages, |at, bytes| Ok(device.read(at, bytes)?))?;
    let before = subject.counted().context("a cache counts")?;
    fill(&*device, pages, |at, bytes| Ok(device.read(at, bytes)?))?;
    let after = subject.counted().context("a cache counts")?;
    ensure!(after.hits - before.hits == u64::from(pages), "the cache has not all pages");
    Ok(device)
}

/// Makes a block volume that has `pages` blocks.
fn volume(pages: u32) -> Result<Arc<dyn BlockDevice>> {
    let size_bytes = u64::from(pages) * PAGE;
    let options = MediaOptions::new().emulate(Some(Technology::Dram));
    let medium = Mapped::anonymous(2 * size_bytes + (64 << 20), &options)?;
    Pool::format(&medium, 4, [1; 16])?;
    let pool = Arc::new(Pool::open(Arc::new(medium), kinds(), &OpenOptions::default())?);
    let volume = BlockVolume::create(&pool, "hits", size_bytes, &BlockOptions::default())?;
    fill(&volume, pages, |at, bytes| Ok(volume.write(at, bytes, Fua::No)?))?;
    Ok(Arc::new(volume))
}

fn fill(
    device: &dyn BlockDevice,
    pages: u32,
    ask: impl Fn(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut bytes = vec![1; usize::try_from(PAGE)?];
    (0..u64::from(pages)).try_for_each(|page| ask(page * PAGE, &mut bytes))?;
    Ok(device.flush()?)
}

/// Rates of all rounds, by the number of threads.
type Rates = [Vec<f64>; THREADS.len()];

/// Measures one load on those of `targets` that are wanted.
fn measure(targets: &[Target], load: Load, pages: u32, settings: &Rounds) -> Result<Vec<Row>> {
    let wanted = targets.iter().filter(|target| settings.wants(&target.name, load.name()));
    let mut all: Vec<(&Target, Rates)> = wanted.map(|it| (it, Rates::default())).collect();
    settings.progress.inc_length((settings.rounds * all.len()) as u64);
    for _ in 0..settings.rounds {
        for (at, threads) in THREADS.into_iter().enumerate() {
            for (target, rates) in &mut all {
                settings.progress.set_message(format!("{}: {}", target.name, load.name()));
                let rate = slice(&*target.device, load, u64::from(pages), threads, settings)?;
                rates[at].push(rate);
            }
        }
        settings.progress.inc(all.len() as u64);
    }
    Ok(all.iter().flat_map(|(target, rates)| rows_of(&target.name, load, rates)).collect())
}

fn rows_of(name: &str, load: Load, rates: &Rates) -> Vec<Row> {
    let mut rows = Vec::new();
    for (figures, threads) in rates.iter().zip(THREADS) {
        let workload = workload(load, threads);
        let ratios: Vec<f64> =
            figures.iter().zip(&rates[0]).map(|(many, one)| many / one).collect();
        rows.extend(timed(name, &workload, metric::RATE, "1/s", figures));
        rows.extend(timed(name, &workload, metric::SCALING, "ratio", &ratios));
    }
    rows
}

fn workload(load: Load, threads: u64) -> String {
    let threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    format!("{}, {threads}", load.name())
}

/// Asks for a slice of time. Returns requests a second.
fn slice(
    device: &dyn BlockDevice,
    load: Load,
    pages: u64,
    threads: u64,
    settings: &Rounds,
) -> Result<f64> {
    let (is_over, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let client = |number: u64| -> Result<()> {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number + 1) | 1;
        let mut buffer = vec![1; usize::try_from(PAGE)?];
        let mut own = 0;
        // Whoever comes late asks as well.
        while own == 0 || !is_over.load(Ordering::Relaxed) {
            for _ in 0..BURST {
                // Marsaglia's xorshift.
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                load.ask(device, random, (random >> 20) % pages, &mut buffer)?;
            }
            own += BURST;
        }
        asked.fetch_add(own, Ordering::Relaxed);
        Ok(())
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        let client = &client;
        let clients: Vec<_> =
            (0..threads).map(|number| scope.spawn(move || client(number))).collect();
        while start.elapsed() < settings.slice && !settings.stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        is_over.store(true, Ordering::Relaxed);
        let done = clients
            .into_iter()
            .map(|client| client.join().map_err(|_| anyhow!("a client panicked")).flatten());
        done.collect::<Result<Vec<()>>>()
    })?;
    if settings.stop.load(Ordering::Relaxed) {
        bail!("stopped");
    }
    Ok(as_f64(asked.load(Ordering::Relaxed)) / start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use everbyte_device::{DeviceError, MemoryDevice, Passthrough};

    use super::*;

    /// Notes its name when another one was asked before it.
    struct Noting {
        name: &'static str,
        memory: MemoryDevice,
        turns: Arc<Mutex<Vec<&'static str>>>,
    }

    impl everbyte_device::Decorator for Noting {
        type Inner = MemoryDevice;
        const PASSTHROUGH: Passthrough = Passthrough::Split;

        fn inner(&self) -> &MemoryDevice {
            &self.memory
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
            let mut turns = self.turns.lock().unwrap();
            if turns.last() != Some(&self.name) {
                turns.push(self.name);
            }
            self.memory.read(offset, out)
        }
    }

    #[test]
    fn targets_take_turns_within_a_round() {
        const PAGES_HERE: u32 = 8;
        let turns = Arc::new(Mutex::new(Vec::new()));
        let target = |name: &'static str| {
            let memory = MemoryDevice::new(u64::from(PAGES_HERE) * PAGE);
            let device = Arc::new(Noting { name, memory, turns: Arc::clone(&turns) });
            Target { name: name.to_owned(), device }
        };
        let settings = Rounds::of_test(2, Duration::from_millis(1));
        let targets = [target("one"), target("other")];
        let rows = measure(&targets, Load::Read, PAGES_HERE, &settings).unwrap();
        assert_eq!(*turns.lock().unwrap(), ["one", "other"].repeat(2 * THREADS.len()));
        assert_eq!(rows.len(), 2 * 2 * THREADS.len());
        assert!(rows.iter().all(|row| row.spread.is_some_and(|spread| spread.rounds == 2)));
    }
}
