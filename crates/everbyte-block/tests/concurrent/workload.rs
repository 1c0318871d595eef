//! Workloads of several threads, run on the real engine as scenarios for the explorer.
//!
//! Invariants: a workload's pool is made once, since making it draws random numbers; a request
//! writes bytes that no other request writes; only watched blocks are written or read.

use std::sync::{Arc, OnceLock};

use everbyte_block::{BlockOptions, BlockVolume, Checksum, Delta, MapKind, kinds};
use everbyte_crash::schedule::{self, Schedule, Task};
use everbyte_crash::{Crash, Labels, Log, Scenario, SimMedium};
use everbyte_device::{BlockDevice, Fua};
use everbyte_pool::plant::{Bug, plant};
use everbyte_pool::sync::{Observer, observe};
use everbyte_pool::{OpenOptions, Pool};

use crate::labels;
use crate::oracle::{self, Event};

pub(crate) const BLOCK: u64 = 4096;
/// First of the blocks that hold data when the threads begin.
pub(crate) const MAPPED: u64 = 4;
const MAPPED_BLOCKS: u64 = 4;

/// What one thread does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Write {
        at: u64,
        len: usize,
    },
    /// A write that is durable when it is answered.
    Durable {
        at: u64,
        len: usize,
    },
    /// The same bytes as a `Write` of twice the length, in two writes of a group.
    Group {
        at: u64,
        len: usize,
    },
    Discard {
        at: u64,
        len: u64,
    },
    Flush,
    Read {
        at: u64,
        len: usize,
    },
}

/// The address of block `block`.
pub(crate) const fn b(block: u64) -> u64 {
    block * BLOCK
}

pub(crate) fn write(at: u64, len: usize) -> Step {
    Step::Write { at, len }
}

pub(crate) fn durable(at: u64, len: usize) -> Step {
    Step::Durable { at, len }
}

pub(crate) fn read(at: u64, len: usize) -> Step {
    Step::Read { at, len }
}

/// Bytes that tell by whom and where they were written.
pub(crate) fn pattern(seed: u64, at: u64, len: usize) -> Vec<u8> {
    let byte = |i: u64| {
        let mixed =
            (i / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xd6e8_feb8);
        mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes()[usize::try_from(i % 8).unwrap()]
    };
    (at..at + len as u64).map(byte).collect()
}

/// The seed of what a step writes.
pub(crate) fn seed_of(task: usize, step: usize) -> u64 {
    (task * 100 + step + 1) as u64
}

/// A pool and what several threads do with a volume of it.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) tasks: Vec<Vec<Step>>,
    /// Blocks that are compared, ascending.
    pub(crate) watched: Vec<u64>,
    pub(crate) lanes: u32,
    pub(crate) pool_blocks: u64,
    /// See `BlockOptions`.
    pub(crate) threshold_percent: u32,
    pub(crate) checksum: Checksum,
    /// Orders with so many delays, 1 or 2, are gone through.
    pub(crate) delays: u32,
    /// Places of the first delay that are tried at most, evenly spread.
    pub(crate) delayed_max: u64,
    image: OnceLock<Vec<u8>>,
}

impl Workload {
    pub(crate) fn new(name: &'static str, tasks: Vec<Vec<Step>>) -> Self {
        let mut watched: Vec<u64> = (MAPPED..MAPPED + MAPPED_BLOCKS).collect();
        for step in tasks.iter().flatten() {
            match *step {
                Step::Write { at, len } | Step::Durable { at, len } | Step::Read { at, len } => {
                    watched.extend(at / BLOCK..(at + len as u64).div_ceil(BLOCK));
                }
                Step::Group { at, len } => {
                    watched.extend(at / BLOCK..(at + 2 * len as u64).div_ceil(BLOCK));
                }
                Step::Discard { .. } | Step::Flush => {}
            }
        }
        watched.sort_unstable();
        watched.dedup();
        let image = OnceLock::new();
        let (lanes, pool_blocks, threshold_percent) = (2, 128, 50);
        let (delays, delayed_max) = (1, 400);
        Self {
            name,
            tasks,
            watched,
            lanes,
            pool_blocks,
            threshold_percent,
            checksum: Checksum::None,
            delays,
            delayed_max,
            image,
        }
    }

    pub(crate) fn lanes(self, lanes: u32) -> Self {
        Self { lanes, ..self }
    }

    pub(crate) fn pool_blocks(self, pool_blocks: u64) -> Self {
        Self { pool_blocks, ..self }
    }

    pub(crate) fn never_replacing(self) -> Self {
        Self { threshold_percent: 101, ..self }
    }

    pub(crate) fn checksummed(self) -> Self {
        Self { checksum: Checksum::Crc32c, ..self }
    }

    pub(crate) fn two_delays(self) -> Self {
        Self { delays: 2, ..self }
    }

    pub(crate) fn delayed_max(self, delayed_max: u64) -> Self {
        Self { delayed_max, ..self }
    }

    /// What the watched blocks hold when the threads begin.
    pub(crate) fn initial(&self) -> Vec<u8> {
        let block = |&block: &u64| {
            let mapped = (MAPPED..MAPPED + MAPPED_BLOCKS).contains(&block);
            if mapped { pattern(0, b(block), 4096) } else { vec![0; 4096] }
        };
        self.watched.iter().flat_map(block).collect()
    }

    /// The places in the watched blocks of the bytes `at .. at + len`, with the bytes' addresses.
    pub(crate) fn places(&self, at: u64, len: u64) -> Vec<(usize, u64, usize)> {
        let end = at + len;
        let place = |(index, &block): (usize, &u64)| {
            let (from, to) = (at.max(b(block)), end.min(b(block + 1)));
            let start = index * 4096 + usize::try_from(from.saturating_sub(b(block))).unwrap();
            (from < to).then(|| (start, from, usize::try_from(to - from).unwrap()))
        };
        self.watched.iter().enumerate().filter_map(place).collect()
    }

    fn make_image(&self) -> Vec<u8> {
        let medium = Arc::new(SimMedium::new(self.medium_len()));
        Pool::format(&*medium, 4, [7; 16]).unwrap();
        let pool = open_pool(&medium).unwrap();
        let options = BlockOptions {
            map: MapKind::Radix,
            delta: Delta::On,
            checksum: self.checksum,
            threshold_percent: self.threshold_percent,
            log_bytes: Some(u64::from(self.lanes) * 2 * 16384),
            lanes: self.lanes,
        };
        let volume = BlockVolume::create(&pool, "a", b(1536), &options).unwrap();
        for block in MAPPED..MAPPED + MAPPED_BLOCKS {
            volume.write(b(block), &pattern(0, b(block), 4096), Fua::No).unwrap();
        }
        volume.flush().unwrap();
        medium.image()
    }

    fn open(medium: &Arc<SimMedium>) -> Result<BlockVolume<SimMedium>, String> {
        let pool = open_pool(medium)?;
        if let Some(reason) = pool.read_only_reason() {
            return Err(format!("the pool is read-only: {reason}"));
        }
        let volume = BlockVolume::open(&pool, "a").map_err(|error| error.to_string())?;
        match volume.volume().read_only_reason() {
            Some(reason) => Err(format!("the volume is read-only: {reason}")),
            None => Ok(volume),
        }
    }

    fn contents(&self, volume: &BlockVolume<SimMedium>) -> Result<Vec<u8>, String> {
        let mut contents = vec![0; self.watched.len() * 4096];
        for (bytes, &block) in contents.chunks_exact_mut(4096).zip(&self.watched) {
            volume.read(b(block), bytes).map_err(|error| error.to_string())?;
        }
        Ok(contents)
    }
}

fn open_pool(medium: &Arc<SimMedium>) -> Result<Arc<Pool<SimMedium>>, String> {
    let options = OpenOptions { capacity_blocks: medium.len_blocks() };
    Pool::open(Arc::clone(medium), kinds(), &options).map(Arc::new).map_err(|e| e.to_string())
}

/// Checks that every block is free or owned once.
fn check_ownership(volume: &BlockVolume<SimMedium>) -> Result<(), String> {
    let report = volume.pool().check().map_err(|error| error.to_string())?;
    match report.problems.first() {
        Some(problem) => Err(format!("check: {problem}")),
        None => Ok(()),
    }
}

trait LenBlocks {
    fn len_blocks(&self) -> u64;
}

impl LenBlocks for SimMedium {
    fn len_blocks(&self) -> u64 {
        everbyte_media::Medium::len(self) / BLOCK
    }
}

/// Brings the engine's locks to the scheduler.
struct Locks;

impl Observer for Locks {
    fn before_lock(&self) {
        schedule::point();
    }
    fn wait(&self, lock: usize) -> bool {
        schedule::wait(lock)
    }
    fn released(&self, lock: usize) {
        schedule::released(lock);
        schedule::point();
    }
    fn thread_index(&self) -> usize {
        schedule::thread_index().unwrap_or(0)
    }
}

/// A workload in one order of its threads' steps, with or without a mistake in the engine.
pub(crate) struct Ordered<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) schedule: Schedule,
    pub(crate) bug: Option<Bug>,
    /// What the scheduler said of the last run.
    pub(crate) ran: OnceLock<schedule::Run>,
}

/// The volume after a crash.
pub(crate) struct Recovered {
    pub(crate) volume: BlockVolume<SimMedium>,
    pub(crate) contents: Vec<u8>,
}

impl Ordered<'_> {
    fn task(&self, task: usize, volume: &BlockVolume<SimMedium>, log: &Log<Event>) {
        plant(self.bug);
        observe(Some(&Locks));
        for (step, what) in self.workload.tasks[task].iter().enumerate() {
            let epoch = volume.volume().current_epoch();
            log.note(Event::Begun { task, step, epoch });
            let mut bytes = Vec::new();
            let done = match *what {
                Step::Write { at, len } => {
                    volume.write(at, &pattern(seed_of(task, step), at, len), Fua::No)
                }
                Step::Durable { at, len } => {
                    volume.write(at, &pattern(seed_of(task, step), at, len), Fua::Yes)
                }
                Step::Group { at, len } => {
                    write_group(volume, at, &pattern(seed_of(task, step), at, 2 * len));
                    Ok(())
                }
                Step::Discard { at, len } => volume.discard(at, len, Fua::No),
                Step::Flush => volume.flush(),
                Step::Read { at, len } => {
                    bytes.resize(len, 0);
                    volume.read(at, &mut bytes)
                }
            };
            if let Err(error) = done {
                log.note(Event::Trouble(format!("{what:?} of thread {task}: {error}")));
            }
            let epoch = volume.volume().current_epoch();
            log.note(Event::Ended { task, step, epoch, bytes });
        }
        observe(None);
    }
}

/// Writes both halves of `bytes` in a group.
fn write_group(volume: &BlockVolume<SimMedium>, at: u64, bytes: &[u8]) {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let group = volume.begin_group().unwrap();
    group.write(at, first).unwrap();
    group.write(at + first.len() as u64, second).unwrap();
    group.commit().unwrap();
}

impl Scenario for Ordered<'_> {
    type Event = Event;
    type Recovered = Recovered;

    fn medium_len(&self) -> u64 {
        self.workload.medium_len()
    }

    fn prepare(&self, _: &Arc<SimMedium>) {}

    fn image(&self) -> Vec<u8> {
        self.workload.image.get_or_init(|| self.workload.make_image()).clone()
    }

    fn labels(&self) -> Labels {
        labels::of(&self.image())
    }

    fn run(&self, medium: &Arc<SimMedium>, log: &Log<Event>) {
        let volume = Workload::open(medium).unwrap();
        log.note(Event::Opened);
        let tasks = (0..self.workload.tasks.len()).map(|task| -> Task<'_> {
            let volume = &volume;
            Box::new(move || self.task(task, volume, log))
        });
        let ran = schedule::run(&self.schedule, tasks.collect());
        if let Some(trouble) = &ran.trouble {
            log.note(Event::Trouble(trouble.clone()));
        } else {
            match self.workload.contents(&volume) {
                Ok(contents) => log.note(Event::Joined { contents }),
                Err(error) => log.note(Event::Trouble(error)),
            }
            if matches!(self.schedule, Schedule::Seeded(_))
                && let Err(error) = check_ownership(&volume)
            {
                log.note(Event::Trouble(format!("before the crash: {error}")));
            }
        }
        self.ran.get_or_init(|| ran);
    }

    fn recover(&self, medium: Arc<SimMedium>) -> Result<Recovered, String> {
        plant(self.bug);
        let opened = Workload::open(&medium);
        plant(None);
        let volume = opened?;
        let contents = self.workload.contents(&volume)?;
        Ok(Recovered { volume, contents })
    }

    fn check(&self, recovered: Recovered, crash: &Crash<'_, Event>) -> Result<(), String> {
        // Every opening here is a recovery, which counts the two open epochs as completed.
        let completed = recovered.volume.volume().completed_epoch() - 2;
        let events: Vec<&Event> = crash.events.iter().map(|stamped| &stamped.event).collect();
        oracle::check(self.workload, &events, completed, &recovered.contents)?;
        // Opening has walked the maps, too; that the check agrees need not be seen every time.
        if crash.point == crash.points { check_ownership(&recovered.volume) } else { Ok(()) }
    }
}

impl Workload {
    fn medium_len(&self) -> u64 {
        b(self.pool_blocks)
    }
}
