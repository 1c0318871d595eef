//! Runs a workload and records the contents that a crash may leave.
//!
//! The rule: after a crash a volume is as at its last checkpoint, with the short-path FUA writes since;
//! inside a request with a checkpoint, also as before or after it. The possible contents during a request are
//! known once it is over, because then it is known if it completed an epoch. So an expectation is noted when
//! a request begins and filled in when it ends. Crashes are explored after the whole workload.

mod faults;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use everbyte_block::{BlockOptions, BlockVolume, GroupWriteError, kinds};
use everbyte_crash::{Log, SimMedium};
use everbyte_device::{
    AtomicWriteError, AtomicWrites, BlockDevice, DeviceError, Fua, Hole, WriteRequest,
};
use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::{Corrupt, GroupError, OpenOptions, Pool};

use crate::content::{BLOCK, Content};
use crate::lanes;
use crate::steps::{Case, End, Step, W};

const LEAF_BYTES: u64 = 512 * BLOCK;
const LINE_BYTES: u64 = 64;
/// Log bytes of a block with all lines logged.
const BLOCK_LOG_BYTES: u64 = BLOCK + LINE_BYTES;
/// Log bytes of a replaced block.
const WORD_LOG_BYTES: u64 = 16;
/// The damage reported by `Step::Damage`.
const TOLD: &str = "a test says so";
/// Most further nodes for a map, and logged links of them.
const NODES: u64 = 8;

/// Acceptable contents by volume; `None` stands for "no such volume".
pub(crate) type Contents = BTreeMap<&'static str, Vec<Option<Content>>>;

/// Contents that a crash may leave from the moment this is noted.
#[derive(Debug)]
pub(crate) struct Expect {
    /// The step under way.
    pub(crate) label: String,
    always: Contents,
    /// Further contents that a crash inside the step may leave.
    inside: OnceLock<Contents>,
}

impl Expect {
    /// Returns the contents that volume `name` may hold.
    pub(crate) fn of(&self, name: &str) -> Vec<&Option<Content>> {
        let always = self.always.get(name).into_iter().flatten();
        let inside = self.inside.get().and_then(|inside| inside.get(name));
        let mut found: Vec<_> = always.chain(inside.into_iter().flatten()).collect();
        if !self.always.contains_key(name) {
            found.push(&None);
        }
        found
    }

    /// Names of the volumes there may be.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        let inside = self.inside.get().into_iter().flat_map(BTreeMap::keys);
        self.always.keys().chain(inside).copied()
    }
}

/// The oracle's view of a volume.
struct Track {
    /// Contents that a crash may leave; several only if the workload leaves it open.
    durable: Vec<Content>,
    /// Contents once the sealed epoch is durable.
    sealed: Option<Content>,
    now: Content,
}

impl Track {
    fn settled(now: Content) -> Self {
        Self { durable: vec![now.clone()], sealed: None, now }
    }
}

/// An open pool with its volumes.
pub(crate) struct Open {
    pub(crate) pool: Arc<Pool<SimMedium>>,
    pub(crate) volumes: BTreeMap<String, Arc<BlockVolume<SimMedium>>>,
}

/// Opens the pool on `medium` with every volume.
pub(crate) fn open(medium: &Arc<SimMedium>) -> Result<Open, String> {
    let blocks = medium.len() / BLOCK;
    let options = OpenOptions { capacity_blocks: blocks };
    let pool = Pool::open(Arc::clone(medium), kinds(), &options).map_err(|e| e.to_string())?;
    if let Some(reason) = pool.read_only_reason() {
        return Err(format!("the pool is read-only: {reason}"));
    }
    let pool = Arc::new(pool);
    let mut volumes = BTreeMap::new();
    for volume in pool.volumes() {
        let name = volume.name().to_owned();
        if let Some(reason) = volume.read_only_reason() {
            return Err(format!("volume {name} is read-only: {reason}"));
        }
        let volume = BlockVolume::open(&pool, &name).map_err(|e| format!("volume {name}: {e}"))?;
        volumes.insert(name, Arc::new(volume));
    }
    Ok(Open { pool, volumes })
}

/// A workload being run.
pub(crate) struct History<'a> {
    case: &'a Case,
    medium: &'a Arc<SimMedium>,
    log: &'a Log<Arc<Expect>>,
    open: Open,
    tracks: BTreeMap<&'static str, Track>,
    /// True after a media error: requests may fail.
    is_faulty: bool,
    /// Volumes not made durable because of a media error.
    unreadable: Vec<&'static str>,
    /// Completed epochs of all volumes before the current request. A request that finds no block completes
    /// the epochs of other volumes.
    epochs_before: RefCell<Option<BTreeMap<String, u64>>>,
}

impl<'a> History<'a> {
    /// Opens the pool and runs the workload.
    pub(crate) fn run(case: &'a Case, medium: &'a Arc<SimMedium>, log: &'a Log<Arc<Expect>>) {
        let names: Vec<&'static str> =
            std::iter::once("a").chain(case.setup.others.iter().map(|other| other.0)).collect();
        let before = open(&Arc::new(SimMedium::from_image(medium.image()))).unwrap();
        let tracks: BTreeMap<_, _> = names
            .iter()
            .map(|&name| (name, Track::settled(Content::of(&before.volumes[name]).unwrap())))
            .collect();
        log.note(Arc::new(Expect {
            label: "opening".to_owned(),
            always: contents(&tracks),
            inside: OnceLock::new(),
        }));
        lanes::first();
        let open = open(medium).unwrap();
        let (is_faulty, unreadable, epochs_before) = (false, Vec::new(), RefCell::default());
        let mut history =
            Self { case, medium, log, open, tracks, is_faulty, unreadable, epochs_before };

        for step in &case.steps {
            history.step("a", step);
        }
        if !history.is_faulty {
            history.check_pool();
        }
    }

    /// Checks that the allocator, not rebuilt by a crash, knows the volumes' blocks. The check makes them
    /// durable.
    fn check_pool(&mut self) {
        let begun = self.note("checking the pool");
        let report = self.open.pool.check().unwrap();
        let sound = report.problems.iter().all(|problem| problem.ends_with(TOLD));
        assert!(sound, "{}: without a crash: {report:?}", self.case.name);
        self.all_durable(&begun);
    }

    /// Notes the end of a step with everything made durable.
    fn all_durable(&mut self, begun: &Expect) {
        let now = |track: &Track| vec![Some(track.now.clone())];
        let inside = self.tracks.iter().map(|(&name, track)| (name, now(track))).collect();
        begun.inside.set(inside).unwrap();
        for track in self.tracks.values_mut() {
            *track = Track::settled(track.now.clone());
        }
        self.rest(&format!("after {}", begun.label));
        self.tracks.keys().for_each(|name| self.check_live(name, &begun.label));
    }

    fn note(&self, label: &str) -> Arc<Expect> {
        let expect = Arc::new(Expect {
            label: label.to_owned(),
            always: contents(&self.tracks),
            inside: OnceLock::new(),
        });
        self.log.note(Arc::clone(&expect));
        expect
    }

    fn track(&mut self, name: &str) -> &mut Track {
        self.tracks.get_mut(name).unwrap()
    }

    fn volume(&self, name: &str) -> Arc<BlockVolume<SimMedium>> {
        Arc::clone(&self.open.volumes[name])
    }

    /// Does `op` on volume `name`; returns true if it completed an epoch.
    fn watch<R>(&self, name: &str, op: impl FnOnce(&BlockVolume<SimMedium>) -> R) -> (R, bool) {
        let volume = self.volume(name);
        let before = volume.volume().completed_epoch();
        *self.epochs_before.borrow_mut() = Some(self.completed_epochs());
        let result = op(&volume);
        (result, volume.volume().completed_epoch() != before)
    }

    fn completed_epochs(&self) -> BTreeMap<String, u64> {
        let epoch = |(name, volume): (&String, &Arc<BlockVolume<SimMedium>>)| {
            (name.clone(), volume.volume().completed_epoch())
        };
        self.open.volumes.iter().map(epoch).collect()
    }

    /// Makes the present contents of volumes other than `name` durable if the request completed their epochs.
    /// Returns the contents that a crash inside the request may leave of them.
    fn complete_others(&mut self, name: &str) -> Contents {
        let Some(before) = self.epochs_before.take() else { return Contents::new() };
        let after = self.completed_epochs();
        let mut inside = Contents::new();
        for (other, track) in self.tracks.iter_mut().filter(|(other, _)| **other != name) {
            if before.get(*other) != after.get(*other) && after.contains_key(*other) {
                let left = track.durable.iter().chain([&track.now]).cloned().map(Some).collect();
                inside.insert(*other, left);
                track.durable = vec![track.now.clone()];
            }
        }
        inside
    }

    /// Notes the end of a step: possible contents inside, resulting contents, present contents.
    fn end(
        &mut self,
        name: &'static str,
        begun: &Expect,
        inside: Vec<Content>,
        durable: Vec<Content>,
        now: Content,
    ) {
        let inside = inside.into_iter().chain(durable.clone()).map(Some).collect();
        let mut left = self.complete_others(name);
        left.insert(name, inside);
        begun.inside.set(left).unwrap();
        let track = self.track(name);
        (track.durable, track.now) = (durable, now);
        track.durable.dedup();
        self.rest(&format!("after {}", begun.label));
        self.check_live(name, &begun.label);
    }

    /// Notes a pause without changes. The flush changes nothing; without an operation between the end of a
    /// step and the beginning of the next there would be no crash between them.
    fn rest(&self, label: &str) {
        self.note(label);
        self.medium.flush(PoolOffset(0), 8);
    }

    /// Checks that the volume reads as it should without any crash.
    fn check_live(&self, name: &str, label: &str) {
        if self.is_faulty {
            return;
        }
        let found = Content::of(&self.open.volumes[name]).unwrap();
        let now = &self.tracks[name].now;
        assert!(
            found == *now,
            "{}: {label}: without a crash: {}",
            self.case.name,
            found.first_difference(now)
        );
    }

    fn step(&mut self, name: &'static str, step: &Step) {
        lanes::next();
        match step {
            Step::Write(write) if self.is_faulty => self.write_faulty(name, *write),
            Step::Write(write) => self.write(name, std::slice::from_ref(write)),
            Step::Batch(writes) => self.write(name, writes),
            Step::Atomic(writes) => self.write_atomic(name, writes),
            Step::Discard { at, len, fua } => self.zero(name, *at, *len, *fua, false),
            Step::Reserve { at, len, fua } => self.zero(name, *at, *len, *fua, true),
            Step::Flush if self.is_faulty => self.flush_faulty(name),
            Step::Flush => self.flush(name),
            Step::Damage => self.damage(name),
            Step::Split(steps) => self.split(name, steps),
            Step::Group(writes, end) => self.group(name, writes, *end),
            Step::Resize(size_bytes) => self.resize(name, *size_bytes),
            Step::On(name, step) => self.step(name, step),
            Step::Create { name, blocks } => {
                let options = self.case.setup.options;
                self.create(name, blocks * BLOCK, &options);
            }
            Step::Delete(name) => self.delete(name),
            Step::Fault(fault) => self.fault(name, *fault),
            Step::Close => self.close_faulty(),
            Step::Reopen => self.reopen(),
            Step::Kill => self.kill(),
        }
    }

    fn write(&mut self, name: &'static str, writes: &[W]) {
        let begun = self.note(&format!("{writes:?}"));
        let now = self.tracks[name].now.clone();
        let bytes: Vec<Vec<u8>> = writes.iter().map(|write| write.bytes(&now)).collect();
        let requests: Vec<WriteRequest<'_>> = writes
            .iter()
            .zip(&bytes)
            .map(|(write, data)| WriteRequest {
                offset: write.at,
                data,
                fua: if write.fua { Fua::Yes } else { Fua::No },
            })
            .collect();
        let in_parts = self.may_be_in_parts(name, &requests);
        let (outcomes, completed) = self.watch(name, |volume| match requests[..] {
            [one] => vec![volume.write(one.offset, one.data, one.fua)],
            _ => volume.write_batch(&requests),
        });
        let done: Vec<WriteRequest<'_>> = requests
            .into_iter()
            .zip(outcomes)
            .filter(|(_, outcome)| self.succeeded(outcome))
            .map(|(request, _)| request)
            .collect();
        let apply = |base: &Content, requests: &[WriteRequest<'_>]| {
            requests.iter().fold(base.clone(), |content, r| content.with(r.offset, r.data))
        };
        let after = apply(&now, &done);
        let durable_ones: Vec<_> = done.iter().copied().filter(|r| r.fua == Fua::Yes).collect();
        let some_durable = some_durable(&done);
        let track = &self.tracks[name];
        let mut inside = Vec::new();
        for base in &track.durable {
            inside.extend(some_durable.iter().map(|some| apply(base, some)));
        }
        // The contents made durable by a completed checkpoint.
        let mut checkpointed = Vec::new();
        if completed {
            checkpointed.extend(some_durable.iter().map(|some| apply(&now, some)));
            if overlap(&done) {
                // A write over an earlier request is made after it, maybe in a later epoch.
                let first = |count| {
                    done.iter().take(count).fold(now.clone(), |all, r| all.with(r.offset, r.data))
                };
                checkpointed.extend((0..=done.len()).map(first));
            }
            if in_parts {
                checkpointed.extend(prefixes(&now, &done));
            }
        }
        inside.extend(checkpointed.iter().cloned());
        let durable = match (completed, durable_ones.len()) {
            (false, _) => track.durable.iter().map(|base| apply(base, &durable_ones)).collect(),
            (true, 0) => checkpointed,
            (true, count) if count == done.len() => vec![after.clone()],
            (true, _) => vec![after.clone(), apply(&now, &durable_ones)],
        };
        if let Some(sealed) = &track.sealed {
            let sealed = apply(sealed, &durable_ones);
            self.track(name).sealed = Some(sealed);
        }
        self.end(name, &begun, inside, durable, after);
    }

    /// Writes to more than one block.
    fn write_atomic(&mut self, name: &'static str, writes: &[W]) {
        if let [one] = writes
            && (one.at + one.len as u64).div_ceil(BLOCK) - one.at / BLOCK <= 1
        {
            // One that lies in a block is made like any other.
            return self.write(name, writes);
        }
        let begun = self.note(&format!("as one: {writes:?}"));
        let now = self.tracks[name].now.clone();
        let bytes: Vec<Vec<u8>> = writes.iter().map(|write| write.bytes(&now)).collect();
        let fua = if writes[0].fua { Fua::Yes } else { Fua::No };
        let requests: Vec<WriteRequest<'_>> = writes
            .iter()
            .zip(&bytes)
            .map(|(write, data)| WriteRequest { offset: write.at, data, fua })
            .collect();
        let (outcome, completed) = self.watch(name, |volume| volume.write_atomic(&requests));
        let is_done = outcome.is_ok();
        let after = match outcome {
            Ok(()) => requests.iter().fold(now.clone(), |all, r| all.with(r.offset, r.data)),
            Err(
                AtomicWriteError::TooLarge { .. }
                | AtomicWriteError::Device(DeviceError::NoSpace { .. }),
            ) if self.case.may_fill => now.clone(),
            Err(error) => panic!("{}: {error}", self.case.name),
        };
        let (inside, durable) = match (fua, completed) {
            (Fua::Yes, _) if is_done => (vec![now], vec![after.clone()]),
            (_, true) => (vec![now.clone()], vec![now, after.clone()]),
            (_, false) => (Vec::new(), self.tracks[name].durable.clone()),
        };
        self.end(name, &begun, inside, durable, after);
    }

    /// Returns true if requests are so many blocks that the log has no room for their lines, nor the pool for
    /// new blocks instead: only then may a crash leave the first blocks of them.
    fn may_be_in_parts(&self, name: &str, requests: &[WriteRequest<'_>]) -> bool {
        let blocks: u64 = requests
            .iter()
            .map(|r| (r.offset + r.data.len() as u64).div_ceil(BLOCK) - r.offset / BLOCK)
            .sum();
        let half_bytes = self.volume(name).volume().log_half_bytes();
        let has_room_for_lines = blocks * BLOCK_LOG_BYTES + NODES * LINE_BYTES <= half_bytes;
        let has_room_for_words = (blocks + NODES) * WORD_LOG_BYTES + LINE_BYTES <= half_bytes;
        let free = self.open.pool.info().free_bytes / BLOCK;
        !(has_room_for_lines || has_room_for_words && blocks + NODES <= free)
    }

    fn succeeded(&self, outcome: &Result<(), DeviceError>) -> bool {
        match outcome {
            Ok(()) => true,
            Err(DeviceError::NoSpace { .. }) if self.case.may_fill => false,
            Err(error) => panic!("{}: {error}", self.case.name),
        }
    }

    fn zero(&mut self, name: &'static str, at: u64, len: u64, fua: bool, reserve: bool) {
        let verb = if reserve { "reserve" } else { "discard" };
        let begun = self.note(&format!("{verb} {len} bytes at {at}, FUA {fua}"));
        let force = if fua { Fua::Yes } else { Fua::No };
        let (outcome, completed) = self.watch(name, |volume| match reserve {
            true => volume.write_zeroes(at, len, Hole::Forbidden, false, force),
            false => volume.discard(at, len, force),
        });
        let track = &self.tracks[name];
        let now = track.now.clone();
        let after = if self.succeeded(&outcome) { now.zeroed(at, len) } else { now.clone() };
        let mut inside = vec![];
        if completed {
            let mut to = at;
            while to < at + len {
                inside.push(now.zeroed(at, to - at));
                to = ((to / LEAF_BYTES + 1) * LEAF_BYTES).min(at + len);
            }
        }
        let durable = match (fua, completed) {
            (true, _) => vec![after.clone()],
            (false, true) => inside.clone(),
            (false, false) => track.durable.clone(),
        };
        self.end(name, &begun, inside, durable, after);
    }

    fn damage(&self, name: &str) {
        let volume = self.volume(name);
        let root_at = volume.volume().root_at();
        volume.volume().fail(&Corrupt::new("map", root_at, TOLD));
    }

    fn flush(&mut self, name: &'static str) {
        let begun = self.note("flush");
        self.volume(name).flush().unwrap();
        let now = self.tracks[name].now.clone();
        self.end(name, &begun, Vec::new(), vec![now.clone()], now);
    }

    fn split(&mut self, name: &'static str, steps: &[Step]) {
        let volume = Arc::clone(self.volume(name).volume());
        let guard = volume.lock_checkpoint();
        let pending = volume.begin_checkpoint(&guard).unwrap();
        let track = self.track(name);
        track.sealed = Some(track.now.clone());
        for step in steps {
            self.step(name, step);
        }
        let begun = self.note("finishing a checkpoint");
        pending.finish().unwrap();
        let track = self.track(name);
        let sealed = track.sealed.take().unwrap();
        let now = track.now.clone();
        self.end(name, &begun, Vec::new(), vec![sealed], now);
    }

    fn group(&mut self, name: &'static str, writes: &[W], end: End) {
        let begun = self.note("beginning a group");
        let volume = self.volume(name);
        let group = volume.begin_group().unwrap();
        let before = self.tracks[name].now.clone();
        self.end(name, &begun, Vec::new(), vec![before.clone()], before.clone());
        for write in writes {
            lanes::next();
            let begun = self.note(&format!("in a group: {write:?}"));
            let now = self.tracks[name].now.clone();
            let bytes = write.bytes(&now);
            let next = match group.write(write.at, &bytes) {
                Ok(()) => now.with(write.at, &bytes),
                Err(GroupWriteError::Group(GroupError::TooLarge { .. })) if self.case.may_fill => {
                    now
                }
                Err(error) => panic!("{}: {error}", self.case.name),
            };
            self.end(name, &begun, Vec::new(), vec![before.clone()], next);
        }
        let begun = self.note(&format!("ending a group: {end:?}"));
        let now = self.tracks[name].now.clone();
        let (durable, now) = match end {
            End::Commit => {
                group.commit().unwrap();
                (now.clone(), now)
            }
            End::RollBack => {
                group.roll_back().unwrap();
                (before.clone(), before)
            }
            End::Drop => {
                drop(group);
                (before, now)
            }
        };
        self.end(name, &begun, Vec::new(), vec![durable], now);
    }

    fn resize(&mut self, name: &'static str, size_bytes: u64) {
        let begun = self.note(&format!("resize to {size_bytes}"));
        self.volume(name).resize(size_bytes).unwrap();
        let now = self.tracks[name].now.clone();
        let after = now.resized(size_bytes);
        self.end(name, &begun, vec![now], vec![after.clone()], after);
    }

    fn create(&mut self, name: &'static str, size_bytes: u64, options: &BlockOptions) {
        let begun = self.note(&format!("create volume {name}"));
        let made = BlockVolume::create(&self.open.pool, name, size_bytes, options).unwrap();
        self.open.volumes.insert(name.to_owned(), Arc::new(made));
        let zeroes = Content::zeroes(size_bytes);
        self.tracks.insert(name, Track::settled(zeroes.clone()));
        self.end(name, &begun, Vec::new(), vec![zeroes.clone()], zeroes);
    }

    fn delete(&mut self, name: &'static str) {
        let begun = self.note(&format!("delete volume {name}"));
        let _open = self.open.volumes.remove(name).unwrap();
        self.open.pool.delete_volume(name).unwrap();
        let now = self.tracks.remove(name).unwrap().now;
        begun.inside.set(BTreeMap::from([(name, vec![Some(now), None])])).unwrap();
        self.rest(&format!("after {}", begun.label));
    }

    fn reopen(&mut self) {
        let begun = self.note("closing and opening");
        self.open.pool.close().unwrap();
        self.open = open(self.medium).unwrap();
        self.all_durable(&begun);
    }

    fn kill(&mut self) {
        self.note("opening without having closed");
        self.open = open(self.medium).unwrap();
        for (&name, track) in &mut self.tracks {
            let found = Content::of(&self.open.volumes[name]).unwrap();
            let known = track.durable.contains(&found);
            assert!(
                known,
                "{}: opened without having closed: {}",
                self.case.name,
                found.first_difference(&track.durable[0])
            );
            *track = Track::settled(found);
        }
        self.rest("after opening without having closed");
    }
}

fn contents(tracks: &BTreeMap<&'static str, Track>) -> Contents {
    let durable = |track: &Track| track.durable.iter().cloned().map(Some).collect();
    tracks.iter().map(|(&name, track)| (name, durable(track))).collect()
}

/// Returns true if two of `requests` have a block in common.
fn overlap(requests: &[WriteRequest<'_>]) -> bool {
    let mut blocks: Vec<u64> = requests
        .iter()
        .flat_map(|r| r.offset / BLOCK..(r.offset + r.data.len() as u64).div_ceil(BLOCK))
        .collect();
    blocks.sort_unstable();
    blocks.windows(2).any(|pair| pair[0] == pair[1])
}

/// The FUA requests of `requests` that may be durable at a crash among them: any of those without a shared
/// block, once all before these are.
fn some_durable<'d>(requests: &[WriteRequest<'d>]) -> Vec<Vec<WriteRequest<'d>>> {
    let (mut found, mut earlier, mut rest) = (vec![Vec::new()], Vec::new(), requests);
    while !rest.is_empty() {
        let len = (1..=rest.len()).rev().find(|len| !overlap(&rest[..*len])).unwrap_or(1);
        let (run, later) = rest.split_at(len);
        let run: Vec<_> = run.iter().copied().filter(|r| r.fua == Fua::Yes).collect();
        for mask in 1..1_usize << run.len() {
            let some = run.iter().enumerate().filter(|(at, _)| mask >> at & 1 == 1);
            found.push(earlier.iter().copied().chain(some.map(|(_, r)| *r)).collect());
        }
        earlier.extend(run);
        rest = later;
    }
    found
}

/// `base` with the first blocks of `requests`, for every number of blocks but all.
fn prefixes(base: &Content, requests: &[WriteRequest<'_>]) -> Vec<Content> {
    let mut found = Vec::new();
    let mut content = base.clone();
    for request in requests {
        let mut done = 0;
        while done < request.data.len() {
            found.push(content.clone());
            let at = request.offset + done as u64;
            let room = usize::try_from(BLOCK - at % BLOCK).unwrap();
            let len = room.min(request.data.len() - done);
            content = content.with(at, &request.data[done..done + len]);
            done += len;
        }
    }
    found
}
