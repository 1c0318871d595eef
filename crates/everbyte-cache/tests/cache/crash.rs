//! Crashes at every operation of SCM: flushed bytes are present, through the cache and, after a
//! drain, on the backing device. Each unflushed page is old or new, and pages change only by
//! requests.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use everbyte_block::BlockVolume;
use everbyte_cache::plant::Bug;
use everbyte_cache::{Cache, Change, Mode, Settings, inspect};
use everbyte_crash::{Crash, Explorer, Failure, Log, Scenario, SimMedium, Summary};
use everbyte_device::{BlockDevice, DeviceError, Fua, Geometry, Hole, MemoryDevice, Passthrough};
use everbyte_plant::plant;
use everbyte_policy::sim::Kind;
use everbyte_pool::format::VolumeKind;
use everbyte_testkit::{crash_seed, number};

use crate::{Dice, PAGE, POLICIES, format, open, open_pool, resize, settings};

const PAGES: u64 = 12;
const POOL_BLOCKS: u64 = 112;

/// A request to the backing device.
#[derive(Clone, Debug)]
enum Done {
    Write {
        at: u64,
        data: Vec<u8>,
    },
    Zero {
        at: u64,
        len: u64,
    },
    Flush,
    /// A failed flush: earlier unflushed requests are never certain again.
    FailedFlush,
}

/// A request of the backing device: after so many operations of SCM and so many notes of the
/// workload.
#[derive(Clone, Debug)]
struct Entry {
    op: u64,
    notes: usize,
    done: Done,
}

#[derive(Clone, Default)]
struct Journal {
    entries: Arc<Mutex<Vec<Entry>>>,
    notes: Arc<AtomicUsize>,
}

fn first_content(page: u64) -> Vec<u8> {
    vec![0xe0 + u8::try_from(page).unwrap(); 4096]
}

fn first_backing() -> MemoryDevice {
    let backing = MemoryDevice::new(PAGES * PAGE);
    for page in 0..PAGES {
        backing.write(page * PAGE, &first_content(page), Fua::No).unwrap();
    }
    backing
}

/// A backing device that records its requests.
struct Journaled {
    backing: MemoryDevice,
    /// Visible bytes: a growing backing device shows more.
    shown_bytes: AtomicU64,
    medium: Arc<SimMedium>,
    journal: Journal,
    /// True if a client flushes during the next change.
    is_flushed_meanwhile: AtomicBool,
    client: Mutex<Weak<Cache>>,
    fails_next_flush: AtomicBool,
}

impl Journaled {
    /// During a change: the other client, if it has its turn.
    fn meanwhile(&self) {
        if self.is_flushed_meanwhile.swap(false, Ordering::SeqCst) {
            let client = self.client.lock().unwrap().upgrade();
            client.unwrap().flush().unwrap();
        }
    }

    fn note(&self, done: Done) {
        let notes = self.journal.notes.load(Ordering::SeqCst);
        let entry = Entry { op: self.medium.ops(), notes, done };
        self.journal.entries.lock().unwrap().push(entry);
    }
}

impl everbyte_device::Decorator for Journaled {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.backing
    }

    fn geometry(&self) -> Geometry {
        let size_bytes = self.shown_bytes.load(Ordering::SeqCst);
        Geometry { size_bytes, ..self.backing.geometry() }
    }

    fn write(&self, at: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.note(Done::Write { at, data: data.to_vec() });
        self.meanwhile();
        self.backing.write(at, data, fua)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.fails_next_flush.swap(false, Ordering::SeqCst) {
            self.note(Done::FailedFlush);
            let reason = "planned".to_owned();
            return Err(DeviceError::Media { offset: 0, len: 0, reason });
        }
        self.note(Done::Flush);
        Ok(())
    }

    fn discard(&self, at: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        // Before anything is noted: that flush is not one of this change.
        self.meanwhile();
        self.note(Done::Zero { at, len });
        self.backing.discard(at, len, fua)
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        _: Hole,
        _: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        BlockDevice::discard(self, at, len, fua)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        at: u64,
        len: usize,
        seed: u64,
        fua: bool,
    },
    Discard {
        at: u64,
        len: u64,
    },
    Read {
        page: u64,
    },
    Flush,
    Sweep,
    /// A write to a page while it is being written back.
    SweepAndWrite {
        page: u64,
        seed: u64,
    },
    /// A trim with another client's flush in the middle.
    DiscardAndFlush {
        at: u64,
        len: u64,
    },
    /// A write-back with a client's flush in the middle.
    SweepAndFlush,
    /// A write-back with a failed flush of the backing device that drops unflushed requests.
    SweepThatFails,
    Drain,
    /// Opened again without having been closed.
    Reopen,
    /// The same with other sizes; the backing device may have grown to all its pages before.
    Resize {
        dram_pages: u64,
        scm_pages: u64,
        follow: bool,
    },
}

const LOSS_RULES: usize = 4;

/// The allowed contents of each page.
type Allowed = BTreeMap<u64, Vec<Vec<u8>>>;

struct Case {
    settings: Settings,
    steps: Vec<Step>,
    journal: Journal,
    /// Number of the rule for the loss of unflushed requests, `0 .. LOSS_RULES`.
    loss_rule: usize,
}

impl Case {
    fn new(settings: Settings, steps: Vec<Step>) -> Self {
        Self { settings, steps, journal: Journal::default(), loss_rule: 0 }
    }

    /// The backing device after a crash at operation `point`, and the number of notes at that time.
    /// Of the requests at that very moment all have arrived, or one. Of those since the last flush
    /// all are present, or none, or all but half of the last, or some.
    fn backing_at(&self, point: u64) -> (MemoryDevice, usize) {
        let entries = self.journal.entries.lock().unwrap();
        let before = entries.iter().take_while(|entry| entry.op < point).count();
        let now = entries.iter().take_while(|entry| entry.op <= point).count();
        let end = if self.loss_rule < 2 { now } else { now.min(before + 1) };
        let notes = entries.get(end).filter(|entry| entry.op <= point);
        let notes = notes.map_or(usize::MAX, |entry| entry.notes);
        let done = &entries[..end];
        let is_sure = |index: usize| {
            let mut later = done[index..].iter().map(|entry| &entry.done);
            matches!(
                later.find(|done| matches!(done, Done::Flush | Done::FailedFlush)),
                Some(Done::Flush)
            )
        };
        let backing = first_backing();
        for (index, entry) in done.iter().enumerate() {
            let halves = match self.loss_rule {
                _ if is_sure(index) => 2,
                0 => 2,
                1 => 0,
                // A request that bypasses the cache is as safe as the backing device makes it.
                2 if index + 1 == end && self.settings.mode != Mode::WriteAround => 1,
                2 => 2,
                _ => index % 2 * 2,
            };
            match &entry.done {
                Done::Write { at, data } => {
                    backing.write(*at, &data[..data.len() * halves / 2], Fua::No).unwrap();
                }
                Done::Zero { at, len } if halves == 2 => {
                    backing.discard(*at, *len, Fua::No).unwrap();
                }
                Done::Zero { .. } | Done::Flush | Done::FailedFlush => {}
            }
        }
        (backing, notes)
    }
}

fn pages_of(at: u64, len: u64) -> impl Iterator<Item = u64> {
    at / PAGE..(at + len).div_ceil(PAGE)
}

/// Copies the part of a page in `data`, written to byte `at` of the device, into the page's
/// content.
fn overlay(content: &mut [u8], page: u64, at: u64, data: &[u8]) {
    for (place, byte) in (page * PAGE..).zip(content) {
        if (at..at + data.len() as u64).contains(&place) {
            *byte = data[usize::try_from(place - at).unwrap()];
        }
    }
}

/// The running workload: contents of each page, and contents allowed after a crash.
struct Life<'a> {
    mode: Mode,
    log: &'a Log<Allowed>,
    notes: &'a AtomicUsize,
    contents: Vec<Vec<u8>>,
    allowed: Allowed,
    /// True if the next flush may report an earlier failed one.
    is_failure_unreported: bool,
}

impl Life<'_> {
    fn note(&self) {
        self.log.note(self.allowed.clone());
        self.notes.fetch_add(1, Ordering::SeqCst);
    }

    /// Before a write: its pages may become new from now on. A bypassing write is as safe as the
    /// backing device makes it. The device may keep any of the unflushed requests: the write may
    /// also reach a page that lacks some earlier ones.
    fn begin(&mut self, at: u64, data: &[u8]) {
        for page in pages_of(at, data.len() as u64) {
            let content = &mut self.contents[usize::try_from(page).unwrap()];
            overlay(content, page, at, data);
            let allowed = self.allowed.get_mut(&page).unwrap();
            let mut new = vec![content.clone()];
            if self.mode == Mode::WriteAround {
                new.clone_from(allowed);
                new.iter_mut().for_each(|content| overlay(content, page, at, data));
            }
            for content in new {
                if !allowed.contains(&content) {
                    allowed.push(content);
                }
            }
        }
        self.note();
    }

    fn is_durable(&mut self, pages: impl Iterator<Item = u64>) {
        for page in pages {
            let content = self.contents[usize::try_from(page).unwrap()].clone();
            self.allowed.insert(page, vec![content]);
        }
        self.note();
    }
}

impl Scenario for Case {
    type Event = Allowed;
    type Recovered = Arc<SimMedium>;

    fn medium_len(&self) -> u64 {
        POOL_BLOCKS * PAGE
    }

    fn prepare(&self, medium: &Arc<SimMedium>) {
        format(medium, &self.settings, 2 * 65536);
        open_pool(medium).unwrap().close().unwrap();
    }

    fn run(&self, medium: &Arc<SimMedium>, log: &Log<Allowed>) {
        self.journal.entries.lock().unwrap().clear();
        self.journal.notes.store(0, Ordering::SeqCst);
        let backing = Arc::new(Journaled {
            backing: first_backing(),
            shown_bytes: AtomicU64::new(self.settings.backing_bytes),
            medium: Arc::clone(medium),
            journal: self.journal.clone(),
            is_flushed_meanwhile: AtomicBool::new(false),
            client: Mutex::default(),
            fails_next_flush: AtomicBool::new(false),
        });
        let contents: Vec<_> = (0..PAGES).map(first_content).collect();
        let allowed = (0..).zip(&contents).map(|(page, c)| (page, vec![c.clone()])).collect();
        let notes = &self.journal.notes;
        let mode = self.settings.mode;
        let mut life = Life { mode, log, notes, contents, allowed, is_failure_unreported: false };
        life.note();
        let reopen = || {
            let cache = Arc::new(open(medium, Arc::<Journaled>::clone(&backing)).unwrap());
            *backing.client.lock().unwrap() = Arc::downgrade(&cache);
            cache
        };
        let mut cache = reopen();
        for step in &self.steps {
            if let Step::Resize { dram_pages, scm_pages, follow } = *step {
                if follow {
                    backing.shown_bytes.store(PAGES * PAGE, Ordering::SeqCst);
                }
                let change = Change {
                    dram_bytes: Some(dram_pages * PAGE),
                    scm_bytes: Some(scm_pages * PAGE),
                    follows_backing: follow,
                };
                resize(medium, Arc::<Journaled>::clone(&backing), &change).unwrap();
            }
            if matches!(step, Step::Reopen | Step::Resize { .. }) {
                cache = reopen();
                for page in 0..cache.geometry().size_bytes.div_ceil(PAGE) {
                    let found = page_of(&*cache, page);
                    let allowed = &life.allowed[&page];
                    let old = allowed.iter().find(|old| old.starts_with(&found));
                    let old = old.unwrap_or_else(|| panic!("reopened: page {page}")).clone();
                    life.contents[usize::try_from(page).unwrap()] = old;
                }
                continue;
            }
            life.step(&cache, &backing, step);
        }
    }

    /// The backing device has another content after each of its requests.
    fn beside(&self, point: u64) -> u64 {
        let entries = self.journal.entries.lock().unwrap();
        let until = |is_in: fn(u64, u64) -> bool| {
            entries.iter().filter(|entry| is_in(entry.op, point)).count() as u64
        };
        until(|op, point| op < point) + until(|op, point| op <= point)
    }

    fn recover(&self, medium: Arc<SimMedium>) -> Result<Arc<SimMedium>, String> {
        let pool = open_pool(&medium)?;
        pool.read_only_reason().map_or(Ok(medium), |reason| Err(reason.to_owned()))
    }

    fn check(&self, medium: Arc<SimMedium>, crash: &Crash<'_, Allowed>) -> Result<(), String> {
        let (backing, notes) = self.backing_at(crash.point);
        let Some(last) = crash.events[..notes.min(crash.events.len())].last() else {
            return Ok(());
        };
        let backing = Arc::new(PageOutcome::before(&medium, backing)?);
        let cache = open(&medium, Arc::<PageOutcome>::clone(&backing))?;
        let mut found = Vec::new();
        for (page, allowed) in &last.event {
            if page * PAGE >= backing.shown_bytes {
                break;
            }
            let content = page_of(&cache, *page);
            if !allowed.iter().any(|allowed| allowed.starts_with(&content)) {
                let starts = |c: &Vec<u8>| format!("{:02x?}", &c[..4]);
                let allowed: Vec<_> = allowed.iter().map(starts).collect();
                return Err(format!("page {page}: {}, not {allowed:?}", starts(&content)));
            }
            found.push(content);
        }
        cache.drain().map_err(|error| error.to_string())?;
        for (page, content) in (0..).zip(&found) {
            if page_of(&*backing, page) != *content {
                return Err(format!("page {page} is another one on the backing device"));
            }
        }
        // After any crash, the cache can follow its backing device now, which has the rest.
        let full = PageOutcome { shown_bytes: PAGES * PAGE, backing: Arc::clone(&backing.backing) };
        let full = Arc::new(full);
        let follow = Change { follows_backing: true, ..Change::default() };
        resize(&medium, Arc::<PageOutcome>::clone(&full), &follow)?;
        let again = open(&medium, Arc::<PageOutcome>::clone(&full))?;
        if let Some(page) = (0..PAGES).find(|page| page_of(&again, *page) != page_of(&*full, *page))
        {
            return Err(format!(
                "page {page} is not what the backing device has, after following it"
            ));
        }
        match (0..).zip(&found).find(|(page, content)| !page_of(&again, *page).starts_with(content))
        {
            Some((page, _)) => Err(format!("page {page} is another one when opened again")),
            None => Ok(()),
        }
    }
}

impl Life<'_> {
    fn write(&mut self, cache: &Cache, at: u64, len: usize, seed: u64, fua: bool) {
        let data = Dice(seed).bytes(len);
        self.begin(at, &data);
        cache.write(at, &data, if fua { Fua::Yes } else { Fua::No }).unwrap();
        if fua {
            self.is_durable(pages_of(at, len as u64));
        }
    }

    /// A trim with a client's flush in the middle: its pages are unchanged or zeroes afterwards.
    fn discard_and_flush(&mut self, cache: &Cache, backing: &Journaled, at: u64, len: u64) {
        let before = self.contents.clone();
        self.begin(at, &vec![0; usize::try_from(len).unwrap()]);
        backing.is_flushed_meanwhile.store(true, Ordering::SeqCst);
        cache.discard(at, len, Fua::No).unwrap();
        if backing.is_flushed_meanwhile.swap(false, Ordering::SeqCst) {
            return;
        }
        for (page, (now, before)) in (0..).zip(self.contents.iter().zip(before)) {
            let mut allowed = vec![now.clone()];
            if pages_of(at, len).any(|trimmed| trimmed == page) {
                allowed.push(before);
            }
            self.allowed.insert(page, allowed);
        }
        self.note();
    }

    fn flush(&mut self, cache: &Cache) {
        if cache.flush().is_err() {
            assert!(std::mem::take(&mut self.is_failure_unreported));
            cache.flush().unwrap();
        }
        self.is_durable(0..PAGES);
    }

    fn step(&mut self, cache: &Cache, backing: &Journaled, step: &Step) {
        match *step {
            Step::Write { at, len, seed, fua } => self.write(cache, at, len, seed, fua),
            Step::Discard { at, len } => {
                self.begin(at, &vec![0; usize::try_from(len).unwrap()]);
                cache.discard(at, len, Fua::No).unwrap();
            }
            Step::Read { page } => {
                let found = page_of(cache, page);
                assert!(found == self.contents[usize::try_from(page).unwrap()], "page {page}");
            }
            Step::DiscardAndFlush { at, len } => self.discard_and_flush(cache, backing, at, len),
            Step::SweepAndFlush => {
                backing.is_flushed_meanwhile.store(true, Ordering::SeqCst);
                cache.sweep().unwrap();
                if !backing.is_flushed_meanwhile.swap(false, Ordering::SeqCst) {
                    self.is_durable(0..PAGES);
                }
            }
            Step::SweepThatFails => {
                backing.fails_next_flush.store(true, Ordering::SeqCst);
                let has_failed = cache.sweep().is_err();
                backing.fails_next_flush.store(false, Ordering::SeqCst);
                self.is_failure_unreported |= has_failed;
            }
            Step::Flush => self.flush(cache),
            Step::Sweep => drop(cache.sweep().unwrap()),
            Step::SweepAndWrite { page, seed } => {
                cache.sweep().unwrap();
                self.write(cache, page * PAGE, 100, seed, false);
                cache.sweep().unwrap();
            }
            Step::Drain => {
                cache.drain().unwrap();
                self.is_durable(0..PAGES);
            }
            Step::Reopen | Step::Resize { .. } => unreachable!("they need the medium"),
        }
    }
}

/// A backing device with the number of bytes recorded in the cache.
struct PageOutcome {
    backing: Arc<MemoryDevice>,
    shown_bytes: u64,
}

impl PageOutcome {
    fn before(medium: &Arc<SimMedium>, backing: MemoryDevice) -> Result<Self, String> {
        let pool = open_pool(medium)?;
        let volume = BlockVolume::open_as(&pool, "c", VolumeKind::CACHE);
        let volume = volume.map_err(|error| error.to_string())?;
        let found = inspect(&volume).map_err(|error| error.to_string())?;
        Ok(Self { backing: Arc::new(backing), shown_bytes: found.settings.backing_bytes })
    }
}

impl everbyte_device::Decorator for PageOutcome {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.backing
    }

    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.shown_bytes, ..self.backing.geometry() }
    }
}

/// The bytes of a page, or of its existing part.
fn page_of(device: &dyn BlockDevice, page: u64) -> Vec<u8> {
    let len = (device.geometry().size_bytes - page * PAGE).min(PAGE);
    let mut found = vec![0; usize::try_from(len).unwrap()];
    device.read(page * PAGE, &mut found).unwrap();
    found
}

fn explorer(seed: u64) -> Explorer {
    Explorer {
        seed,
        points_max: 120,
        runs_max: 2,
        samples: 1,
        nested_depth: 0,
        shrink_runs_max: 20,
        ..Explorer::default()
    }
}

fn explore(case: &mut Case, seed: u64) -> Result<Summary, Box<Failure>> {
    let mut explored = Summary::default();
    for loss_rule in 0..LOSS_RULES {
        case.loss_rule = loss_rule;
        explored += explorer(seed).explore(case)?;
    }
    Ok(explored)
}

fn write(page: u64, len: usize, seed: u64) -> Step {
    Step::Write { at: page * PAGE, len, seed, fua: false }
}

/// More pages than the cache holds, so that they are evicted, fetched and evicted again.
fn rounds() -> Vec<Step> {
    let mut steps: Vec<Step> = (0..8).map(|page| write(page, 4096, page)).collect();
    steps.push(Step::Flush);
    steps.extend((4..12).map(|page| write(page, 300, 100 + page)));
    steps.extend([Step::Read { page: 0 }, Step::Read { page: 5 }, Step::Sweep]);
    steps.extend([write(5, 64, 200), Step::Flush, write(5, 65, 201)]);
    steps
}

/// Initial pages of a resized cache of slightly more than ten, small ones and large.
fn resized() -> Vec<Step> {
    let mut steps: Vec<Step> = (0..6).map(|page| write(page, 4096, page)).collect();
    steps.extend([Step::Read { page: 8 }, Step::Flush, write(7, 200, 30)]);
    steps.push(Step::Resize { dram_pages: 1, scm_pages: 2, follow: false });
    steps.extend([write(3, 64, 31), write(10, 50, 32), Step::Flush, write(10, 20, 33)]);
    steps.push(Step::Resize { dram_pages: 3, scm_pages: 5, follow: true });
    steps.extend([write(10, 4096, 34), write(11, 100, 35), Step::Flush, Step::Read { page: 9 }]);
    steps
}

/// Trims and write-back with a client's flush in the middle. The last trim durably frees pages that
/// left the cache before it.
fn two_clients() -> Vec<Step> {
    vec![
        write(1, 4096, 1),
        write(2, 300, 2),
        Step::DiscardAndFlush { at: PAGE, len: 2 * PAGE },
        Step::Discard { at: 9 * PAGE, len: PAGE },
        write(3, 4096, 3),
        write(4, 100, 4),
        Step::SweepAndFlush,
        write(3, 50, 5),
        Step::DiscardAndFlush { at: 3 * PAGE, len: PAGE },
        Step::Write { at: 6 * PAGE, len: 10, seed: 6, fua: true },
    ]
}

/// Bypassing changes dropped by a failed flush before a client flushes or reads them.
fn failing() -> Vec<Step> {
    vec![
        Step::Read { page: 5 },
        Step::Discard { at: PAGE, len: PAGE },
        write(2, 4096, 2),
        write(5, 10, 1),
        Step::SweepThatFails,
        Step::Flush,
        Step::Discard { at: 7 * PAGE, len: PAGE },
        write(5, 10, 3),
        Step::SweepThatFails,
        Step::Read { page: 7 },
        Step::Flush,
        Step::Drain,
    ]
}

/// A cache before a backing device that ended within a page and has grown since.
fn cut(steps: Vec<Step>) -> Case {
    Case::new(settings(10 * PAGE + 100, 2, 3), steps)
}

fn cases(policy: Kind) -> Vec<Case> {
    let small = settings(PAGES * PAGE, 2, 3);
    let mut cases = Vec::new();
    for mode in Mode::ALL {
        let steps = vec![
            write(1, 4096, 1),
            write(2, 100, 2),
            Step::Flush,
            Step::SweepAndWrite { page: 1, seed: 3 },
            Step::Discard { at: PAGE, len: 2 * PAGE },
            Step::Write { at: 3 * PAGE + 4000, len: 300, seed: 4, fua: true },
            Step::Read { page: 1 },
            Step::Drain,
            write(1, 10, 5),
        ];
        cases.push(Case::new(Settings { mode, policy, ..small.clone() }, steps));
        let steps = if policy == Kind::Hybrid { two_clients() } else { failing() };
        cases.push(Case::new(Settings { mode, policy, ..small.clone() }, steps));
    }
    cases.push(Case::new(Settings { policy, ..small.clone() }, rounds()));
    cases.push(Case::new(Settings { policy, ..cut(vec![]).settings }, resized()));
    cases
}

#[expect(clippy::print_stdout, reason = "tests say what they explored")]
fn survive(cases: Vec<Case>) {
    let (mut workloads, mut total) = (0, Summary::default());
    for mut case in cases {
        total += explore(&mut case, crash_seed()).unwrap_or_else(|failure| {
            panic!("{:?} {:?}: {failure}", case.settings, case.steps);
        });
        workloads += 1;
    }
    println!("{workloads} workloads: {total}");
}

#[test]
fn flushed_writes_survive_any_crash() {
    survive(cases(Kind::Everbyte));
}

#[test]
fn two_clocks_survive_any_crash() {
    survive(cases(Kind::Hybrid));
}

/// A later opening reads unflushed bypassing writes of an earlier one.
#[test]
fn flushed_bypass_writes_survive_any_crash() {
    let settings = Settings { mode: Mode::WriteAround, ..settings(PAGES * PAGE, 2, 3) };
    let steps = vec![write(0, 5000, 1), Step::Reopen, Step::Flush, Step::Reopen];
    survive(vec![Case::new(settings, steps)]);
}

/// Of a bypassing trim and a later bypassing write of a part of the page, the backing device may
/// keep only the write.
#[test]
fn page_part_may_outlive_bypassing_trim() {
    let settings = Settings { mode: Mode::WriteAround, ..settings(PAGES * PAGE, 2, 3) };
    // The rule of loss takes every second request: one of the two loses the trim.
    for before in 0..2 {
        let mut steps: Vec<Step> = (0..before).map(|page| write(page, 9, page)).collect();
        steps.extend([Step::Discard { at: 8 * PAGE, len: PAGE }, write(8, 900, 1)]);
        // What opening it again does to SCM are points to crash at.
        steps.push(Step::Reopen);
        survive(vec![Case::new(settings.clone(), steps)]);
    }
}

fn random_case(seed: u64) -> Case {
    let mut dice = Dice(seed);
    let mut steps = Vec::new();
    // A flush in the midst of a trim waits for it where it must be made again after a failure; here
    // they have one thread.
    let fails = dice.below(2) == 0;
    for _ in 0..5 + dice.below(12) {
        let page = dice.below(PAGES - 3);
        steps.push(match dice.below(15) {
            14 if fails => Step::SweepThatFails,
            14 => Step::DiscardAndFlush { at: page * PAGE, len: PAGE * (1 + dice.below(3)) },
            13 => Step::SweepAndFlush,
            12 => Step::Resize {
                dram_pages: 1 + dice.below(3),
                scm_pages: 1 + dice.below(4),
                follow: false,
            },
            0 => Step::Flush,
            1 => Step::Sweep,
            2 => Step::SweepAndWrite { page, seed: dice.below(1000) },
            3 => Step::Discard { at: page * PAGE, len: PAGE * (1 + dice.below(3)) },
            4 => Step::Drain,
            5 => Step::Reopen,
            6 | 7 => Step::Read { page },
            _ => Step::Write {
                at: page * PAGE + dice.below(3) * 50,
                len: usize::try_from([9, 64, 4096, 5000][usize::try_from(dice.below(4)).unwrap()])
                    .unwrap(),
                seed: dice.below(1000),
                fua: dice.below(4) == 0,
            },
        });
    }
    let choose = |dice: &mut Dice, len: usize| usize::try_from(dice.below(len as u64)).unwrap();
    let mode = Mode::ALL[choose(&mut dice, 3)];
    let policy = POLICIES[choose(&mut dice, POLICIES.len())];
    let sizes = settings(PAGES * PAGE, 1 + dice.below(3), 1 + dice.below(4));
    Case::new(Settings { mode, policy, ..sizes }, steps)
}

#[test]
fn random_workloads_survive_any_crash() {
    let cases = number("EVERBYTE_CRASH_CASES", 12);
    let first = number("EVERBYTE_CRASH_SEED", 1);
    let mut total = Summary::default();
    for seed in first..first + cases {
        let mut case = random_case(seed);
        case.loss_rule = usize::try_from(seed).unwrap() % LOSS_RULES;
        total += explorer(seed).explore(&case).unwrap_or_else(|failure| {
            panic!("seed {seed}: {:?} {:?}: {failure}", case.settings, case.steps);
        });
    }
    println!("{cases} random workloads, from seed {first} on: {total}");
}

/// The workload fails with `bug` as `expected` says, a part of the message, and without it passes. The exploration is
/// the same every night.
fn caught(bug: Bug, mut case: Case, expected: &str) {
    if let Err(failure) = explore(&mut case, 0) {
        panic!("{bug:?} is not planted yet: {failure}");
    }
    let planted = plant(bug);
    let found = catch_unwind(AssertUnwindSafe(|| explore(&mut case, 0)));
    drop(planted);
    let found = match found {
        Ok(Ok(_)) => panic!("{bug:?} was not caught"),
        Ok(Err(failure)) => failure.message,
        // A workload that notices it by itself panics.
        Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_default(),
    };
    assert!(found.contains(expected), "{bug:?} is caught: {found}");
}

fn small(steps: Vec<Step>) -> Case {
    Case::new(settings(PAGES * PAGE, 2, 3), steps)
}

#[test]
fn clean_before_flush() {
    caught(
        Bug::CleanBeforeFlush,
        small(vec![write(1, 4096, 1), Step::Flush, Step::Sweep]),
        "page 1: [e1, e1, e1, e1], not",
    );
}

#[test]
fn open_epoch_written_back() {
    // The flush keeps the backing device's first write apart from its flush at opening.
    let steps = vec![write(5, 9, 2), Step::Flush, write(1, 4096, 1), Step::Sweep];
    caught(Bug::OpenEpochWrittenBack, small(steps), "page 1: [60, 23, 01, 51], not");
}

/// A page with a bypassing change is fetched, demoted to SCM and persisted there by a checkpoint
/// without a flush: the next bypassing write needs this after an invalidation of pages.
fn fetched_after_a_change(mode: Mode, change: Step) -> Case {
    let mut steps: Vec<Step> = (1..8).map(|page| Step::Read { page }).collect();
    steps.push(change);
    steps.extend([0, 6, 7, 8].map(|page| Step::Read { page }));
    steps.push(Step::Discard { at: 10 * PAGE, len: PAGE });
    Case::new(Settings { mode, policy: Kind::Hybrid, ..settings(PAGES * PAGE, 2, 3) }, steps)
}

#[test]
fn fetch_after_bypass_survives_crash() {
    let discard = Step::Discard { at: 0, len: PAGE };
    survive(vec![
        fetched_after_a_change(Mode::WriteAround, write(0, 4096, 1)),
        fetched_after_a_change(Mode::WriteBack, discard),
    ]);
}

#[test]
fn evicted_dirty_page_survives_crash() {
    let mut steps: Vec<Step> = (0..5).map(|page| write(page, 4096, page)).collect();
    steps.push(Step::Flush);
    steps.extend((5..8).map(|page| write(page, 4096, page)));
    steps.push(Step::Flush);
    survive(vec![small(steps)]);
}

#[test]
fn flush_covers_pages_in_dram() {
    survive(vec![small(vec![write(1, 4096, 1), Step::Flush, write(2, 9, 2)])]);
}

#[test]
fn growth_reads_cut_last_page_again() {
    let follow = Step::Resize { dram_pages: 2, scm_pages: 3, follow: true };
    survive(vec![cut(vec![write(10, 50, 1), Step::Flush, follow])]);
}

#[test]
fn bypass_after_trim_survives_crash() {
    let mut steps: Vec<Step> = (0..4).map(|page| Step::Read { page }).collect();
    steps.extend([Step::Flush, Step::Discard { at: 0, len: 4 * PAGE }, write(8, 9, 1)]);
    survive(vec![small(steps)]);
}

#[test]
fn trim_forgets_flushed() {
    caught(Bug::TrimForgetsFlushed, small(two_clients()), "page 1: [e1, e1, e1, e1], not");
}

/// SCM has a page durably as clean, from before the write found by the trim.
#[test]
fn trim_of_rewritten_page_survives() {
    let mut steps: Vec<Step> = (0..3).map(|page| Step::Read { page }).collect();
    steps.extend([Step::Flush, write(0, 9, 1), Step::Discard { at: 0, len: PAGE }]);
    survive(vec![small(steps)]);
}

#[test]
fn failed_backing_flush_loses_no_write() {
    let case = |mode| Case::new(Settings { mode, ..small(vec![]).settings }, failing());
    survive([Mode::WriteBack, Mode::WriteAround].map(case).into());
}
