//! Workloads on a scheme as scenarios for the crash explorer, with an oracle for its promise.
//!
//! Invariants: every state of the device between two steps is known in advance. An oracle demands a
//! state allowed by the events before the crash, and nothing beyond the promise.

use std::collections::BTreeSet;
use std::sync::Arc;

use everbyte_crash::{Crash, Labels, Log, Omission, Scenario, SimMedium, Steps};
use everbyte_device::{Fua, WriteRequest};

use everbyte_extent::Delta;
use everbyte_media::PoolOffset;
use everbyte_pool::format::{DESCRIPTOR_AT, Descriptor, Superblock};

use crate::baselines::space::{HEAD, Layout};
use crate::baselines::{Kind, Scheme, build, open};

pub(super) const BLOCK: usize = 4096;
pub(super) const LOG_BYTES: u64 = 64 << 10;
/// Blocks `0 .. MAPPED` are written before the workload, with the pattern of this seed.
pub(super) const MAPPED: usize = 4;
const PREPARED: u64 = 1;
/// A block that is used after recovery and by no workload.
const UNUSED: usize = 15;

/// One write: address, bytes, seed of its pattern.
#[derive(Clone, Copy, Debug)]
pub(super) struct W(pub(super) usize, pub(super) usize, pub(super) u64);

#[derive(Clone, Debug)]
pub(super) enum Step {
    Write(W, Fua),
    Atomic(Vec<W>, Fua),
    Discard { at: usize, len: usize, fua: Fua },
    Flush,
    Checkpoint,
}

impl Step {
    /// Returns true if everything before it is durable when it is done.
    fn is_durable(&self) -> bool {
        match self {
            Self::Write(_, fua) | Self::Atomic(_, fua) | Self::Discard { fua, .. } => {
                *fua == Fua::Yes
            }
            Self::Flush | Self::Checkpoint => true,
        }
    }

    fn ranges(&self) -> Vec<(usize, usize)> {
        match self {
            Self::Write(W(at, len, _), _) | Self::Discard { at, len, .. } => vec![(*at, *len)],
            Self::Atomic(writes, _) => writes.iter().map(|&W(at, len, _)| (at, len)).collect(),
            Self::Flush | Self::Checkpoint => Vec::new(),
        }
    }
}

/// Event reported to the oracle by a workload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Begins(usize),
    Done(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) kind: Kind,
    pub(super) steps: Vec<Step>,
    pub(super) blocks: usize,
    pub(super) delta: Delta,
    /// Operations omitted from the scheme.
    pub(super) omission: Option<Omission>,
}

/// Promise of a scheme about requests before they are durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Promise {
    /// The first so many requests, whole.
    Prefix,
    /// Each word old or new.
    Words,
    /// Each word old or new, but anything in blocks with a hole before or after.
    WordsInOldBlocks,
}

fn promise(kind: Kind) -> Promise {
    match kind {
        Kind::Ramfs | Kind::None => Promise::WordsInOldBlocks,
        Kind::JournalOrdered => Promise::Words,
        Kind::RollbackPublished
        | Kind::RedoPublished
        | Kind::RedoImproved
        | Kind::JournalData
        | Kind::Shadow
        | Kind::Rollback => Promise::Prefix,
    }
}

/// Bytes by seed and place, each different from 0.
pub(super) fn pattern(W(at, len, seed): W) -> Vec<u8> {
    let byte = |at: u64| {
        let mixed = (at / 3 + seed * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.to_le_bytes()[6] | 1
    };
    (at as u64..(at + len) as u64).map(byte).collect()
}

/// Contents of the blocks touched by a workload: `None` where a block is a hole.
#[derive(Clone, PartialEq, Eq)]
struct State(Vec<Option<Vec<u8>>>);

impl State {
    fn put(&mut self, at: usize, data: &[u8]) {
        for (at, &byte) in (at..).zip(data) {
            let block = self.0[at / BLOCK].get_or_insert_with(|| vec![0; BLOCK]);
            block[at % BLOCK] = byte;
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Write(write, _) => self.put(write.0, &pattern(*write)),
            Step::Atomic(writes, _) => writes.iter().for_each(|w| self.put(w.0, &pattern(*w))),
            Step::Discard { at, len, .. } => {
                for at in *at..at + len {
                    if at % BLOCK == 0 && at + BLOCK <= at + len {
                        self.0[at / BLOCK] = None;
                    }
                }
            }
            Step::Flush | Step::Checkpoint => {}
        }
    }

    fn bytes(&self, block: usize) -> &[u8] {
        static ZEROES: [u8; BLOCK] = [0; BLOCK];
        self.0[block].as_deref().unwrap_or(&ZEROES)
    }
}

impl Case {
    pub(super) fn new(kind: Kind, steps: Vec<Step>) -> Self {
        Self { kind, steps, blocks: 16, delta: Delta::Auto, omission: None }
    }

    fn device_bytes(&self) -> u64 {
        (self.blocks * BLOCK) as u64
    }

    /// Blocks touched by the workload, and blocks present before.
    fn watched(&self) -> BTreeSet<usize> {
        let ranges = self.steps.iter().flat_map(Step::ranges);
        ranges.flat_map(|(at, len)| at / BLOCK..=(at + len - 1) / BLOCK).chain(0..MAPPED).collect()
    }

    /// The states before each step, and after the last.
    fn states(&self) -> Vec<State> {
        let mut state = State(vec![None; self.blocks]);
        state.put(0, &pattern(W(0, MAPPED * BLOCK, PREPARED)));
        let mut states = vec![state.clone()];
        for step in &self.steps {
            state.apply(step);
            states.push(state.clone());
        }
        states
    }

    /// Returns true if the scheme stores in place and a request covers the word at `at` in part.
    fn is_cut(&self, at: usize) -> bool {
        let inside = |edge: usize| edge > at && edge < at + 8;
        let ranges = self.steps.iter().flat_map(Step::ranges);
        self.kind == Kind::None
            && ranges.into_iter().any(|(start, len)| inside(start) || inside(start + len))
    }

    fn check_contents(&self, found: &State, window: &[State]) -> Result<(), String> {
        let watched = self.watched();
        let same = |state: &&State| watched.iter().all(|&b| state.bytes(b) == found.bytes(b));
        if window.iter().any(|state| same(&state)) {
            return Ok(());
        }
        if promise(self.kind) == Promise::Prefix {
            let differ =
                |state: &State| watched.iter().copied().find(|&b| state.bytes(b) != found.bytes(b));
            let blocks: Vec<_> = window.iter().map(differ).collect();
            return Err(format!("none of the states: first differences in blocks {blocks:?}"));
        }
        for &block in &watched {
            let unsure = window.len() > 1 && window.iter().any(|state| state.0[block].is_none());
            if unsure && promise(self.kind) == Promise::WordsInOldBlocks {
                continue;
            }
            for word in (0..BLOCK).step_by(8) {
                let step = if self.is_cut(block * BLOCK + word) { 1 } else { 8 };
                for at in (word..word + 8).step_by(step) {
                    let piece = |state: &State| state.bytes(block)[at..at + step].to_vec();
                    if !window.iter().any(|state| piece(state) == piece(found)) {
                        return Err(format!("byte {at} of block {block} is neither old nor new"));
                    }
                }
            }
        }
        Ok(())
    }
}

fn make(step: &Step, scheme: &dyn Scheme) -> Result<(), String> {
    let text = |error: &dyn std::error::Error| format!("{step:?}: {error}");
    match step {
        Step::Write(write, fua) => {
            scheme.write(write.0 as u64, &pattern(*write), *fua).map_err(|e| text(&e))
        }
        Step::Atomic(writes, fua) => {
            let data: Vec<_> = writes.iter().map(|&write| pattern(write)).collect();
            let request = |(write, data)| {
                let &W(at, _, _) = write;
                let data: &Vec<u8> = data;
                WriteRequest { offset: at as u64, data, fua: *fua }
            };
            let requests: Vec<_> = writes.iter().zip(&data).map(request).collect();
            scheme.write_atomic(&requests).map_err(|e| text(&e))
        }
        Step::Discard { at, len, fua } => {
            scheme.discard(*at as u64, *len as u64, *fua).map_err(|e| text(&e))
        }
        Step::Flush => scheme.flush().map_err(|e| text(&e)),
        Step::Checkpoint => scheme.checkpoint().map_err(|e| text(&e)),
    }
}

fn contents(
    scheme: &dyn Scheme,
    watched: &BTreeSet<usize>,
    blocks: usize,
) -> Result<State, String> {
    let mut state = State(vec![None; blocks]);
    for &block in watched {
        let mut bytes = vec![0; BLOCK];
        scheme.read((block * BLOCK) as u64, &mut bytes).map_err(|error| error.to_string())?;
        state.0[block] = Some(bytes);
    }
    Ok(state)
}

/// The log and the data of rollback's pool, and of its one volume.
fn rollback_labels(image: &[u8]) -> Labels {
    let len = image.len() as u64;
    let superblock = Superblock::parse(image, PoolOffset(0), len).unwrap();
    let (data, end) = (superblock.data_start, superblock.size_blocks);
    let at = PoolOffset(superblock.table_start * BLOCK as u64 + DESCRIPTOR_AT[0]);
    let bytes = &image[usize::try_from(at.0).unwrap()..];
    let volume = Descriptor::parse(bytes, at, data, end).unwrap();
    let log_blocks = 2 * u64::from(volume.lanes) * u64::from(volume.half_blocks);
    let part = |from: u64, to: u64| from * BLOCK as u64..to * BLOCK as u64;
    Labels::default()
        .with(part(data, end), "data")
        .with(part(volume.log_start, volume.log_start + log_blocks), "log")
}

impl Scenario for Case {
    type Event = Event;
    type Recovered = (Arc<SimMedium>, Arc<dyn Scheme>);

    fn medium_len(&self) -> u64 {
        self.kind.medium_bytes(self.device_bytes(), LOG_BYTES).unwrap()
    }

    fn prepare(&self, medium: &Arc<SimMedium>) {
        let scheme =
            build(self.kind, Arc::clone(medium), self.device_bytes(), LOG_BYTES, self.delta)
                .unwrap();
        scheme.write(0, &pattern(W(0, MAPPED * BLOCK, PREPARED)), Fua::No).unwrap();
        scheme.checkpoint().unwrap();
    }

    fn run(&self, medium: &Arc<SimMedium>, log: &Log<Event>) {
        let scheme = open(self.kind, Arc::clone(medium), self.delta).unwrap();
        for (number, step) in self.steps.iter().enumerate() {
            log.note(Event::Begins(number));
            make(step, &*scheme).unwrap();
            log.note(Event::Done(number));
        }
    }

    fn recover(&self, medium: Arc<SimMedium>) -> Result<Self::Recovered, String> {
        let scheme = open(self.kind, Arc::clone(&medium), self.delta)
            .map_err(|error| format!("{error:#}"))?;
        Ok((medium, scheme))
    }

    fn labels(&self) -> Labels {
        if self.kind == Kind::Rollback {
            return rollback_labels(&self.image());
        }
        let layout = Layout::new(self.kind.code(), self.device_bytes(), LOG_BYTES).unwrap();
        let (table, log) = (layout.entry_at(0).0, layout.log_at().0);
        let data = log + layout.log_bytes();
        Labels::default()
            .with(HEAD.0..table, "head")
            .with(table..log, "table")
            .with(log..data, "log")
            .with(data..self.medium_len(), "data")
    }

    fn omission(&self) -> Option<Omission> {
        self.omission.clone()
    }

    fn check(
        &self,
        (medium, scheme): Self::Recovered,
        crash: &Crash<'_, Event>,
    ) -> Result<(), String> {
        let (mut first, mut last) = (0, 0);
        for stamped in crash.events {
            match stamped.event {
                Event::Begins(number) => last = number + 1,
                Event::Done(number) if self.steps[number].is_durable() => first = number + 1,
                Event::Done(_) => {}
            }
        }
        let watched = self.watched();
        let found = contents(&*scheme, &watched, self.blocks)?;
        self.check_contents(&found, &self.states()[first..=last])?;
        drop(scheme);
        let again = open(self.kind, Arc::clone(&medium), self.delta)
            .map_err(|error| format!("{error:#}"))?;
        if contents(&*again, &watched, self.blocks)? != found {
            return Err("opened again, it is not the same".to_owned());
        }
        if crash.nested == 0 { self.check_usable(&*again, &medium) } else { Ok(()) }
    }
}

impl Case {
    /// Writes after recovery, a second life, and reads.
    fn check_usable(&self, scheme: &dyn Scheme, medium: &Arc<SimMedium>) -> Result<(), String> {
        let steps = [
            Step::Write(W(MAPPED * BLOCK - 100, 50, 91), Fua::Yes),
            Step::Write(W(UNUSED * BLOCK, BLOCK, 92), Fua::No),
            Step::Write(W(UNUSED * BLOCK + 700, 900, 93), Fua::Yes),
        ];
        let mut watched = self.watched();
        watched.insert(UNUSED);
        let mut expected = contents(scheme, &watched, self.blocks)?;
        for step in &steps {
            make(step, scheme)?;
            expected.apply(step);
        }
        let again = open(self.kind, Arc::clone(medium), self.delta)
            .map_err(|error| format!("{error:#}"))?;
        match contents(&*again, &watched, self.blocks)? == expected {
            true => Ok(()),
            false => Err("what was written after recovery is not there".to_owned()),
        }
    }
}

impl Steps for Case {
    fn steps(&self) -> usize {
        self.steps.len()
    }

    fn only(&self, kept: &[usize]) -> Self {
        let steps = kept.iter().map(|&step| self.steps[step].clone()).collect();
        Self { steps, ..self.clone() }
    }
}
