//! Workloads of several threads, run on the real engine as scenarios for the explorer.
//!
//! Invariants: a workload's pool is made once, since its creation draws random numbers. A request writes
//! bytes unlike those of all other requests. Only watched blocks are written or read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use everbyte_block::{BlockOptions, BlockVolume, Checksum, Delta, kinds};
use everbyte_crash::schedule::{self, Schedule, Task};
use everbyte_crash::{Crash, Labels, Log, Omission, Scenario, SimMedium};
use everbyte_device::{AtomicWrites, BlockDevice, Fua, Hole, WriteRequest};
use everbyte_pool::sync::{Observer, observe};
use everbyte_pool::{Corrupt, OpenOptions, Pool, PoolError};

use crate::labels;
use crate::mistake::Mistake;
use crate::oracle::{self, Event};

pub(crate) const BLOCK: u64 = 4096;
/// Names of possible volumes.
const VOLUMES: [&str; 2] = ["a", "b"];
/// First of the initial data blocks.
pub(crate) const MAPPED: u64 = 4;
const MAPPED_BLOCKS: u64 = 4;
/// The damage reported by `Step::Damage`.
const TOLD: &str = "a test says so";

/// One step of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Write {
        at: u64,
        len: usize,
    },
    /// A write with a durable answer.
    Durable {
        at: u64,
        len: usize,
    },
    /// The same bytes as a `Write` of twice the length, in two writes of a group.
    Group {
        at: u64,
        len: usize,
    },
    /// The same bytes, in a rolled back group.
    RolledBack {
        at: u64,
        len: usize,
    },
    /// Writes at two places in one batch.
    Batch {
        at: [u64; 2],
        len: usize,
    },
    /// Writes at two places in one batch, each durable when it is answered.
    DurableBatch {
        at: [u64; 2],
        len: usize,
    },
    /// Atomic writes at two places with a durable answer.
    Atomic {
        at: [u64; 2],
        len: usize,
    },
    Discard {
        at: u64,
        len: u64,
    },
    /// Zeroes without a hole.
    Reserve {
        at: u64,
        len: u64,
    },
    /// Makes the volume larger, in blocks.
    Grow {
        blocks: u64,
    },
    /// Makes it smaller. The bytes beyond are not watched from then on.
    Shrink {
        blocks: u64,
    },
    /// Damage is found in the map: writes are refused from now on, and flushes done.
    Damage,
    /// Makes another volume, writes to it, and deletes it.
    ComeAndGo,
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

impl Step {
    /// The ranges of its changes or reads.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        match *self {
            Self::Write { at, len } | Self::Durable { at, len } | Self::Read { at, len } => {
                vec![(at, len as u64)]
            }
            Self::Group { at, len } | Self::RolledBack { at, len } => vec![(at, 2 * len as u64)],
            Self::Batch { at, len } | Self::DurableBatch { at, len } | Self::Atomic { at, len } => {
                at.map(|at| (at, len as u64)).to_vec()
            }
            Self::Discard { at, len } | Self::Reserve { at, len } => vec![(at, len)],
            Self::Grow { .. }
            | Self::Shrink { .. }
            | Self::Damage
            | Self::ComeAndGo
            | Self::Flush => Vec::new(),
        }
    }
}

/// Bytes that identify their writer and their place.
pub(crate) fn pattern(seed: u64, at: u64, len: usize) -> Vec<u8> {
    let word = |i: u64| {
        let mixed = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xd6e8_feb8);
        mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes()
    };
    let skipped = usize::try_from(at % 8).unwrap();
    let mut bytes = Vec::with_capacity(skipped + len + 8);
    for i in at / 8..(at + len as u64).div_ceil(8) {
        bytes.extend_from_slice(&word(i));
    }
    bytes.truncate(skipped + len);
    bytes.drain(..skipped);
    bytes
}

/// The seed of a step's bytes.
pub(crate) fn seed_of(task: usize, step: usize) -> u64 {
    (task * 100 + step + 1) as u64
}

/// A pool and the steps of several threads on a volume of it.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) tasks: Vec<Vec<Step>>,
    /// The volume of each task, by its place among `VOLUMES`.
    pub(crate) volume_of: Vec<usize>,
    /// Compared blocks, ascending.
    pub(crate) watched: Vec<u64>,
    pub(crate) lanes: u32,
    pub(crate) delta: Delta,
    pub(crate) pool_blocks: u64,
    /// See `BlockOptions`.
    pub(crate) threshold_percent: u32,
    pub(crate) checksum: Checksum,
    /// Orders with so many delays, 1 or 2, are gone through.
    pub(crate) delays: u32,
    /// Most places of the first delay to try, evenly spread.
    pub(crate) delayed_max: u64,
    /// They are among so many points from the beginning.
    pub(crate) delayed_within: u64,
    /// True if recoveries crash, too.
    pub(crate) is_nested: bool,
    image: OnceLock<Vec<u8>>,
}

impl Workload {
    pub(crate) fn new(name: &'static str, tasks: Vec<Vec<Step>>) -> Self {
        let mut watched: Vec<u64> = (MAPPED..MAPPED + MAPPED_BLOCKS).collect();
        let zeroes = |step: &&Step| !matches!(step, Step::Discard { .. } | Step::Reserve { .. });
        for (at, len) in tasks.iter().flatten().filter(zeroes).flat_map(Step::ranges) {
            watched.extend(at / BLOCK..(at + len).div_ceil(BLOCK));
        }
        let end = |step: &Step| match step {
            Step::Shrink { blocks } => *blocks,
            _ => u64::MAX,
        };
        let end = tasks.iter().flatten().map(end).min().unwrap_or(u64::MAX);
        watched.retain(|&block| block < end);
        watched.sort_unstable();
        watched.dedup();
        let image = OnceLock::new();
        let (lanes, pool_blocks, threshold_percent) = (2, 128, 50);
        let (delays, delayed_max) = (1, 400);
        Self {
            name,
            volume_of: vec![0; tasks.len()],
            tasks,
            watched,
            lanes,
            delta: Delta::On,
            pool_blocks,
            threshold_percent,
            checksum: Checksum::None,
            delays,
            delayed_max,
            delayed_within: u64::MAX,
            is_nested: false,
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

    pub(crate) fn not_comparing(self) -> Self {
        Self { delta: Delta::Off, ..self }
    }

    /// The same with the tasks on these volumes.
    pub(crate) fn on_volumes(self, volume_of: &[usize]) -> Self {
        Self { volume_of: volume_of.to_vec(), ..self }
    }

    /// The volumes of the tasks.
    pub(crate) fn volumes(&self) -> &'static [&'static str] {
        &VOLUMES[..=self.volume_of.iter().copied().max().unwrap_or(0)]
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

    pub(crate) fn delayed_within(self, delayed_within: u64) -> Self {
        Self { delayed_within, ..self }
    }

    pub(crate) fn nested(self) -> Self {
        Self { is_nested: true, ..self }
    }

    fn is_damaged(&self) -> bool {
        self.tasks.iter().flatten().any(|step| *step == Step::Damage)
    }

    /// Returns the contents of the watched blocks when the threads begin.
    pub(crate) fn initial(&self) -> Vec<u8> {
        let block = |&block: &u64| {
            let mapped = (MAPPED..MAPPED + MAPPED_BLOCKS).contains(&block);
            if mapped { pattern(0, b(block), 4096) } else { vec![0; 4096] }
        };
        let blocks: Vec<Vec<u8>> = self.watched.iter().map(block).collect();
        blocks.concat()
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
            delta: self.delta,
            checksum: self.checksum,
            threshold_percent: self.threshold_percent,
            log_bytes: Some(u64::from(self.lanes) * 2 * 16384),
            lanes: self.lanes,
            checkpoint_lines: 0,
        };
        for name in self.volumes() {
            let volume = BlockVolume::create(&pool, name, b(1536), &options).unwrap();
            for block in MAPPED..MAPPED + MAPPED_BLOCKS {
                volume.write(b(block), &pattern(0, b(block), 4096), Fua::No).unwrap();
            }
            volume.flush().unwrap();
        }
        medium.image()
    }

    fn open(&self, medium: &Arc<SimMedium>) -> Result<Vec<BlockVolume<SimMedium>>, String> {
        let pool = open_pool(medium)?;
        if let Some(reason) = pool.read_only_reason() {
            return Err(format!("the pool is read-only: {reason}"));
        }
        let open = |name: &&str| {
            let volume = BlockVolume::open(&pool, name).map_err(|error| error.to_string())?;
            match volume.volume().read_only_reason() {
                Some(reason) => Err(format!("volume {name} is read-only: {reason}")),
                None => Ok(volume),
            }
        };
        self.volumes().iter().map(open).collect()
    }

    fn all_contents(&self, volumes: &[BlockVolume<SimMedium>]) -> Result<Vec<Vec<u8>>, String> {
        volumes.iter().map(|volume| self.contents(volume)).collect()
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
    match report.problems.iter().find(|problem| !problem.ends_with(TOLD)) {
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
    pub(crate) mistake: Option<&'a Mistake>,
    /// Outcome of the last run by the scheduler.
    pub(crate) ran: OnceLock<schedule::Run>,
}

/// The volume after a crash.
pub(crate) struct Recovered {
    pub(crate) volumes: Vec<BlockVolume<SimMedium>>,
    /// By volume.
    pub(crate) contents: Vec<Vec<u8>>,
}

impl Ordered<'_> {
    fn task(&self, task: usize, volume: &BlockVolume<SimMedium>, log: &Log<Event>) {
        let _planted = self.mistake.map(Mistake::plant);
        observe(Some(&Locks));
        for (step, what) in self.workload.tasks[task].iter().enumerate() {
            let epoch = volume.volume().current_epoch();
            log.note(Event::Begun { task, step, epoch });
            let mut bytes = Vec::new();
            let taken = take_step(volume, *what, seed_of(task, step), &mut bytes);
            let may_be_refused = matches!(what, Step::Write { .. }) && self.workload.is_damaged();
            if taken.is_err() && may_be_refused {
                log.note(Event::Refused { task, step });
                continue;
            }
            if let Err(error) = taken {
                log.note(Event::Trouble(format!("{what:?} of thread {task}: {error}")));
            }
            let epoch = volume.volume().current_epoch();
            log.note(Event::Ended { task, step, epoch, bytes });
        }
        observe(None);
    }
}

/// Makes the step `step`, with bytes from `seed`; reads go to `out`.
fn take_step(
    volume: &BlockVolume<SimMedium>,
    step: Step,
    seed: u64,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let text = |error: everbyte_device::DeviceError| error.to_string();
    let bytes = |at, len| pattern(seed, at, len);
    match step {
        Step::Write { at, len } => volume.write(at, &bytes(at, len), Fua::No).map_err(text),
        Step::Durable { at, len } => volume.write(at, &bytes(at, len), Fua::Yes).map_err(text),
        Step::Group { at, len } => in_group(volume, at, &bytes(at, 2 * len), true),
        Step::RolledBack { at, len } => in_group(volume, at, &bytes(at, 2 * len), false),
        Step::Batch { at, len } | Step::DurableBatch { at, len } => {
            let data = at.map(|at| bytes(at, len));
            let fua = if matches!(step, Step::Batch { .. }) { Fua::No } else { Fua::Yes };
            let outcomes = volume.write_batch(&requests(at, &data, fua));
            outcomes.into_iter().try_for_each(|outcome| outcome.map_err(text))
        }
        Step::Atomic { at, len } => {
            let data = at.map(|at| bytes(at, len));
            let done = volume.write_atomic(&requests(at, &data, Fua::Yes));
            done.map_err(|error| error.to_string())
        }
        Step::Discard { at, len } => volume.discard(at, len, Fua::No).map_err(text),
        Step::Reserve { at, len } => {
            volume.write_zeroes(at, len, Hole::Forbidden, false, Fua::No).map_err(text)
        }
        Step::Damage => {
            let damage = Corrupt::new("map", volume.volume().root_at(), TOLD);
            volume.volume().fail(&damage);
            Ok(())
        }
        Step::Grow { blocks } | Step::Shrink { blocks } => {
            volume.resize(b(blocks)).map_err(|error| error.to_string())
        }
        Step::ComeAndGo => come_and_go(volume, seed).map_err(|error| error.to_string()),
        Step::Flush => volume.flush().map_err(text),
        Step::Read { at, len } => {
            out.resize(len, 0);
            volume.read(at, out).map_err(text)
        }
    }
}

fn requests(at: [u64; 2], data: &[Vec<u8>; 2], fua: Fua) -> [WriteRequest<'_>; 2] {
    [0, 1].map(|i| WriteRequest { offset: at[i], data: &data[i], fua })
}

/// Writes both halves of `bytes` in a group.
fn in_group(
    volume: &BlockVolume<SimMedium>,
    at: u64,
    bytes: &[u8],
    commits: bool,
) -> Result<(), String> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let group = volume.begin_group().map_err(|error| error.to_string())?;
    group.write(at, first).map_err(|error| error.to_string())?;
    group.write(at + first.len() as u64, second).map_err(|error| error.to_string())?;
    match commits {
        true => group.commit().map_err(|error| error.to_string()),
        false => group.roll_back().map_err(|error| error.to_string()),
    }
}

/// Makes a volume in addition to `volume`, writes to it, and deletes it.
fn come_and_go(volume: &BlockVolume<SimMedium>, seed: u64) -> Result<(), PoolError> {
    let name = format!("guest-{seed}");
    let options = BlockOptions { log_bytes: Some(2 * 16384), lanes: 1, ..BlockOptions::default() };
    let guest = BlockVolume::create(volume.pool(), &name, b(8), &options)?;
    for block in 0..3 {
        guest.write(b(block), &pattern(seed, b(block), 4096), Fua::No).unwrap();
    }
    volume.pool().delete_volume(&name)
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

    fn omission(&self) -> Option<Omission> {
        self.mistake.and_then(Mistake::omission)
    }

    fn run(&self, medium: &Arc<SimMedium>, log: &Log<Event>) {
        let volumes = self.workload.open(medium).unwrap();
        log.note(Event::Opened);
        let tasks = (0..self.workload.tasks.len()).map(|task| -> Task<'_> {
            let volume = &volumes[self.workload.volume_of[task]];
            Box::new(move || self.task(task, volume, log))
        });
        let ran = schedule::run(&self.schedule, tasks.collect());
        if let Some(trouble) = &ran.trouble {
            log.note(Event::Trouble(trouble.clone()));
        } else {
            // Unfenced streams of a thread make the medium panic.
            let contents = catch_unwind(AssertUnwindSafe(|| self.workload.all_contents(&volumes)));
            match contents.unwrap_or_else(|panic| Err(*panic.downcast::<String>().unwrap())) {
                Ok(contents) => log.note(Event::Joined { contents }),
                Err(error) => log.note(Event::Trouble(error)),
            }
            if matches!(self.schedule, Schedule::Seeded(_))
                && let Err(error) = check_ownership(&volumes[0])
            {
                log.note(Event::Trouble(format!("before the crash: {error}")));
            }
        }
        self.ran.get_or_init(|| ran);
    }

    fn recover(&self, medium: Arc<SimMedium>) -> Result<Recovered, String> {
        let planted = self.mistake.map(Mistake::plant);
        let opened = self.workload.open(&medium);
        drop(planted);
        let volumes = opened?;
        let contents = self.workload.all_contents(&volumes)?;
        Ok(Recovered { volumes, contents })
    }

    fn check(&self, recovered: Recovered, crash: &Crash<'_, Event>) -> Result<(), String> {
        let events: Vec<&Event> = crash.events.iter().map(|stamped| &stamped.event).collect();
        for (place, (volume, contents)) in
            recovered.volumes.iter().zip(&recovered.contents).enumerate()
        {
            // Every opening here is a recovery, and counts the two open epochs as completed. It is unknown
            // how far the crashed recoveries came.
            let found = volume.volume().completed_epoch();
            let check = |recoveries: usize| {
                let completed = found - 2 * recoveries as u64;
                oracle::check(self.workload, place, &events, completed, contents)
            };
            (2..=crash.nested + 1)
                .fold(check(1), |checked, more| checked.or_else(|_| check(more)))?;
        }
        // Opening has walked the maps, too; that the check agrees need not be seen every time.
        if crash.point == crash.points { check_ownership(&recovered.volumes[0]) } else { Ok(()) }
    }
}

impl Workload {
    fn medium_len(&self) -> u64 {
        b(self.pool_blocks)
    }
}
