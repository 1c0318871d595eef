//! The simulated medium: the `Medium` contract over a model of the hardware.
//!
//! Owns operation numbers, counters, thread numbers, recording and the capture of crash states.
//! Invariants: calls take effect one at a time, in the order of one lock; operation `k` is numbered
//! before it takes effect, so a crash state taken "at k" lacks it. Poisoned lines belong to this
//! object and not to its image: a crash state boots without them. Knows neither scenarios nor the
//! choice of images.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use everbyte_media::{
    BlockNo, Counters, LINE, LINE_U64, LineMask, MediaError, Medium, PersistenceDomain, Piece,
    PoisonedRange, PoolOffset,
};
use parking_lot::Mutex;
use rustix::net::SendFlags;

use crate::address::{index, lines_of};
use crate::decision_trace::{Choice, DecisionTrace, Learned, Plan};
use crate::labels::Labels;
use crate::memory::{CrashState, Memory, Rules, ThreadNo};
use crate::omission::{LabelledOmission, Omission, Omitter};
use crate::schedule;

/// Most bytes gathered by one `send`.
const SEND_MAX: usize = 1 << 18;

/// A byte returned by a peek at bytes in flight.
const RUBBISH: u8 = 0xa7;

/// Kind of an operation on persistence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// An ordinary store.
    Store,
    /// A streamed copy.
    Stream,
    /// A flush.
    Flush,
    /// A fence.
    Fence,
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Store => "store",
            Self::Stream => "stream",
            Self::Flush => "flush",
            Self::Fence => "fence",
        })
    }
}

/// One numbered operation on a medium.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Op {
    /// The thread of the operation.
    pub thread: ThreadNo,
    /// Its kind.
    pub kind: OpKind,
    /// Start of its range; 0 for a fence.
    pub at: PoolOffset,
    /// Bytes in its range; 0 for a fence.
    pub len: u64,
    bytes: Box<[u8]>,
}

impl Op {
    /// Returns the bytes stored or streamed; empty for flushes and fences.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Makes the operation on `memory`. Returns true if a crash could now leave a new image.
    pub(crate) fn apply(&self, memory: &mut Memory) -> bool {
        match self.kind {
            OpKind::Store => memory.store(self.thread, false, self.at.0, &self.bytes),
            OpKind::Stream => memory.store(self.thread, true, self.at.0, &self.bytes),
            OpKind::Flush => {
                memory.flush(self.thread, self.at.0, self.len);
                return false;
            }
            OpKind::Fence => return memory.fence(self.thread),
        }
        true
    }
}

/// Crash states to take while operations pass by.
#[derive(Default)]
struct Capture {
    /// Operation numbers, ascending.
    at: Vec<u64>,
    /// Index of the next one.
    next: usize,
    taken: Vec<CrashState>,
    /// Number of decisions made when the last state was taken.
    learned: usize,
}

struct State {
    memory: Memory,
    decisions: DecisionTrace,
    counters: Counters,
    ops: u64,
    /// Loads and other calls, and their limit.
    calls: u64,
    calls_max: u64,
    /// Process-wide keys of the threads seen; the position is the thread's number.
    threads: Vec<u64>,
    trace: Option<Vec<Op>>,
    capture: Capture,
    omitter: Option<Omitter>,
    failed: Option<MediaError>,
    /// Poisoned lines; true once one was loaded.
    poisoned_lines: BTreeMap<u64, bool>,
}

/// A medium in DRAM that models the effects of a loss of power.
///
/// Its persistence domain is power: [`SimMedium::crash_state`] has the images that a loss of power
/// could leave. It implements [`Medium`]'s contract in its weakest reading. Stores of up to 8
/// naturally aligned bytes are atomic. Longer ones are bulk copies, made of such pieces. Threads
/// are distinguished: a fence counts only for flushes and streams of its thread. On real hardware,
/// a thread that reads another thread's unfenced stream could see either bytes, and a thread that
/// stores over it could lose its own bytes to the older ones, even after its fence. Here both
/// panic. A peek at such bytes returns garbage, and reads more than a word in two halves, between
/// which other threads may store.
pub struct SimMedium {
    len: u64,
    state: Mutex<State>,
    /// True if a load has met a poisoned line.
    has_poison: AtomicBool,
}

impl SimMedium {
    /// A medium of `len` durable zero bytes. Panics unless `len` is a multiple of 4096.
    #[must_use]
    pub fn new(len: u64) -> Self {
        Self::from_image(vec![0; index(len)])
    }

    /// A medium with `image` as durable content. Panics unless its size is a multiple of 4096.
    #[must_use]
    pub fn from_image(image: Vec<u8>) -> Self {
        Self::booted(Memory::new(image, Rules::default()), DecisionTrace::default())
    }

    pub(crate) fn booted(memory: Memory, decisions: DecisionTrace) -> Self {
        let len = memory.len();
        assert!(len.is_multiple_of(4096), "a medium's size is a multiple of 4096, not {len}");
        let state = State {
            memory,
            decisions,
            counters: Counters::default(),
            ops: 0,
            calls: 0,
            calls_max: u64::MAX,
            threads: Vec::new(),
            trace: None,
            capture: Capture::default(),
            omitter: None,
            failed: None,
            poisoned_lines: BTreeMap::new(),
        };
        Self { len, state: Mutex::new(state), has_poison: AtomicBool::new(false) }
    }

    /// Returns the state with the possible images of a crash at this moment.
    #[must_use]
    pub fn crash_state(&self) -> CrashState {
        self.state.lock().memory.crash_state()
    }

    /// Returns the number of operations so far: stores, streams, flushes and fences. Empty ones,
    /// and fences of a failed medium, are not numbered.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.state.lock().ops
    }

    /// Returns the whole content visible to loads. Decides every undecided line.
    #[must_use]
    pub fn image(&self) -> Vec<u8> {
        let state = &mut *self.state.lock();
        let mut image = vec![0; index(self.len)];
        if !image.is_empty() {
            state.memory.read(0, &mut image, &mut state.decisions);
        }
        image
    }

    /// Returns the decisions made so far about undecided lines of the crash.
    #[must_use]
    pub fn choices(&self) -> Vec<Choice> {
        self.state.lock().decisions.made().to_vec()
    }

    /// Fails the medium permanently, as a failed write-back would. The first reason stays.
    pub fn fail(&self, reason: MediaError) {
        self.state.lock().failed.get_or_insert(reason);
    }

    /// Omits from now on the operations of `omission`, with the range names of `labels`. The
    /// explorer does the same for [`Scenario::omission`](crate::Scenario::omission).
    pub fn omit(&self, omission: Omission, labels: Labels) {
        self.omit_placed(Some(Arc::new(LabelledOmission { omission, labels })));
    }

    pub(crate) fn omit_placed(&self, placed: Option<Arc<LabelledOmission>>) {
        self.state.lock().omitter = placed.map(Omitter::new);
    }

    /// Returns true if an operation of this thread is left out, by the answer of `asked`.
    fn omits(&self, asked: impl FnOnce(&mut Omitter, ThreadNo) -> bool) -> bool {
        let state = &mut *self.state.lock();
        if state.omitter.is_none() {
            return false;
        }
        let thread = state.thread();
        state.omitter.as_mut().is_some_and(|omitter| asked(omitter, thread))
    }

    /// Poisons every line of `at .. at + len`: loads give zeroes and detect it, stores are lost.
    /// Panics if `len` is 0.
    pub fn inject_poison(&self, at: PoolOffset, len: u64) {
        assert!(len > 0, "no bytes, no lines");
        self.check_range_of(at, len);
        let state = &mut *self.state.lock();
        for line in lines_of(at.0, len) {
            state.poisoned_lines.entry(line).or_insert(false);
        }
    }

    /// Loads as the hardware does.
    fn load(&self, state: &mut State, at: PoolOffset, out: &mut [u8]) {
        state.count_call();
        state.memory.read(at.0, out, &mut state.decisions);
        let lines = lines_of(at.0, out.len() as u64);
        for (&line, found) in state.poisoned_lines.range_mut(lines) {
            *found = true;
            self.has_poison.store(true, Ordering::Release);
            let from = (line * LINE_U64).max(at.0) - at.0;
            let to = ((line + 1) * LINE_U64).min(at.0 + out.len() as u64) - at.0;
            out[index(from)..index(to)].fill(0);
        }
    }

    /// Loads bytes that others may be storing to.
    fn peek_part(&self, at: PoolOffset, out: &mut [u8]) {
        self.check_range_of(at, out.len() as u64);
        if out.is_empty() {
            return;
        }
        schedule::point();
        let state = &mut *self.state.lock();
        let thread = state.thread();
        self.load(state, at, out);
        if state.memory.unfenced_by_other(thread, at.0, out.len()).is_some() {
            out.fill(RUBBISH);
        }
    }

    /// Returns true if the plan's script did not fit the decisions asked for.
    pub(crate) fn diverged(&self) -> bool {
        self.state.lock().decisions.diverged()
    }

    /// Returns true after a decision about a line without a full enumeration.
    pub(crate) fn thinned(&self) -> bool {
        self.state.lock().decisions.thinned()
    }

    /// Has calls panic from the one after so many on.
    pub(crate) fn limit_calls(&self, calls_max: u64) {
        self.state.lock().calls_max = calls_max;
    }

    /// Records every operation from now on.
    pub(crate) fn start_trace(&self) {
        self.state.lock().trace = Some(Vec::new());
    }

    /// Returns the recorded operations, and stops recording.
    pub(crate) fn take_trace(&self) -> Vec<Op> {
        self.state.lock().trace.take().unwrap_or_default()
    }

    /// Captures crash states just before the operations numbered `at`, ascending.
    pub(crate) fn start_capture(&self, at: Vec<u64>) {
        self.state.lock().capture = Capture { at, ..Capture::default() };
    }

    /// Returns the captured crash states, after capturing one that is due at the present number.
    pub(crate) fn take_captured(&self) -> Vec<CrashState> {
        let state = &mut *self.state.lock();
        state.pass();
        state.capture.next = usize::MAX;
        std::mem::take(&mut state.capture.taken)
    }

    /// Returns the decided bytes of lines left undecided by the crash: until the last capture of a
    /// crash state, or until now without one.
    pub(crate) fn learned(&self) -> Vec<Learned> {
        let state = self.state.lock();
        let all = state.decisions.learned();
        let known = if state.capture.at.is_empty() { all.len() } else { state.capture.learned };
        all[..known].to_vec()
    }

    /// The number of the calling thread.
    pub(crate) fn thread(&self) -> ThreadNo {
        self.state.lock().thread()
    }

    fn check_range_of(&self, at: PoolOffset, len: u64) {
        assert!(
            len <= self.len && at.0 <= self.len - len,
            "{len} bytes at {at} leave a medium of {} bytes",
            self.len
        );
    }

    fn put(&self, kind: OpKind, at: PoolOffset, bytes: &[u8]) {
        let len = bytes.len() as u64;
        self.check_range_of(at, len);
        if bytes.is_empty() {
            return;
        }
        schedule::point();
        let state = &mut *self.state.lock();
        let verb = if kind == OpKind::Stream { "streams" } else { "stores" };
        state.refuse_unfenced(verb, at, bytes.len());
        state.begin(kind, at, len, bytes);
        state.counters.bytes_stored += len;
        state.counters.lines_stored += lines_of(at.0, len).count() as u64;
    }
}

impl State {
    /// The number of the calling thread.
    fn thread(&mut self) -> ThreadNo {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        thread_local!(static KEY: Cell<u64> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed)));
        let key = KEY.get();
        let known = self.threads.iter().position(|&thread| thread == key);
        let number = known.unwrap_or_else(|| {
            self.threads.push(key);
            self.threads.len() - 1
        });
        ThreadNo(u32::try_from(number).expect("so many threads there are not"))
    }

    /// Panics if another thread streamed some of these bytes and has not fenced since.
    fn refuse_unfenced(&mut self, verb: &str, at: PoolOffset, len: usize) {
        let thread = self.thread();
        if let Some(other) = self.memory.unfenced_by_other(thread, at.0, len) {
            let (thread, other) = (thread.0, other.0);
            panic!(
                "thread {thread} {verb} {len} bytes at {at}, of which thread {other} streamed some \
                 that it has not fenced"
            );
        }
    }

    /// Counts a call. Panics above the limit, unless the caller is unwinding for this reason.
    fn count_call(&mut self) {
        self.calls = self.calls.saturating_add(1);
        if self.calls > self.calls_max && !std::thread::panicking() {
            panic!(
                "recovery and check have made {} calls of the medium: they run in circles, or Explorer::calls_max is \
                 too small",
                self.calls_max
            );
        }
    }

    /// Captures the crash state of this operation number, if it is wanted.
    fn pass(&mut self) {
        if self.capture.at.get(self.capture.next) == Some(&self.ops) {
            self.capture.next += 1;
            let taken = self.memory.crash_state();
            self.capture.taken.push(taken);
            self.capture.learned = self.decisions.learned().len();
        }
    }

    /// Numbers an operation, records it if wanted, and makes it.
    fn begin(&mut self, kind: OpKind, at: PoolOffset, len: u64, bytes: &[u8]) {
        self.count_call();
        self.pass();
        self.ops += 1;
        let thread = self.thread();
        match kind {
            OpKind::Store => self.memory.store(thread, false, at.0, bytes),
            OpKind::Stream => self.memory.store(thread, true, at.0, bytes),
            OpKind::Flush => self.memory.flush(thread, at.0, len),
            OpKind::Fence => {
                self.memory.fence(thread);
            }
        }
        if len > 0
            && let Some((line, _)) = self.poisoned_lines.range(lines_of(at.0, len)).next()
        {
            let at = PoolOffset(line * LINE_U64);
            self.failed.get_or_insert(MediaError::StoreLost { at });
        }
        if let Some(trace) = &mut self.trace {
            trace.push(Op { thread, kind, at, len, bytes: bytes.into() });
        }
    }
}

impl CrashState {
    /// Starts a medium on one of the possible images, chosen by `plan`.
    #[must_use]
    pub fn boot(&self, plan: Plan) -> SimMedium {
        SimMedium::booted(Memory::booted(self), DecisionTrace::new(plan))
    }
}

impl Medium for SimMedium {
    fn len(&self) -> u64 {
        self.len
    }

    fn persistence_domain(&self) -> PersistenceDomain {
        PersistenceDomain::Power
    }

    fn load_word(&self, at: PoolOffset) -> u64 {
        assert!(at.0.is_multiple_of(8), "a word at {at} is not aligned");
        let mut word = [0; 8];
        self.read(at, &mut word);
        u64::from_le_bytes(word)
    }

    fn read(&self, at: PoolOffset, out: &mut [u8]) {
        self.check_range_of(at, out.len() as u64);
        if !out.is_empty() {
            schedule::point();
            let state = &mut *self.state.lock();
            state.refuse_unfenced("reads", at, out.len());
            self.load(state, at, out);
        }
    }

    fn peek_word(&self, at: PoolOffset) -> u64 {
        assert!(at.0.is_multiple_of(8), "a word at {at} is not aligned");
        let mut word = [0; 8];
        self.peek_part(at, &mut word);
        u64::from_le_bytes(word)
    }

    fn peek(&self, at: PoolOffset, out: &mut [u8]) {
        let half = out.len() / 2;
        let (first, second) = out.split_at_mut(half);
        self.peek_part(at, first);
        self.peek_part(at.plus(half as u64), second);
    }

    fn changed_lines(&self, block: BlockNo, start: usize, new: &[u8]) -> LineMask {
        let touched = LineMask::covering(start, new.len());
        let mut old = vec![0; new.len()];
        self.read(block.offset().plus(start as u64), &mut old);
        let mut changed = LineMask::EMPTY;
        for (first, len) in touched.runs() {
            for line in (first..first + len).step_by(LINE) {
                let from = line.max(start) - start;
                let to = (line + LINE).min(start + new.len()) - start;
                if old[from..to] != new[from..to] {
                    changed = changed.or(LineMask::covering(line, LINE));
                }
            }
        }
        changed
    }

    fn store_word(&self, at: PoolOffset, value: u64) {
        assert!(at.0.is_multiple_of(8), "a word at {at} is not aligned");
        self.put(OpKind::Store, at, &value.to_le_bytes());
    }

    fn store(&self, at: PoolOffset, bytes: &[u8]) {
        self.put(OpKind::Store, at, bytes);
    }

    fn stream(&self, at: PoolOffset, bytes: &[u8]) {
        let omitted = self.omits(|omitter, thread| omitter.omits_streaming(thread, at));
        self.put(if omitted { OpKind::Store } else { OpKind::Stream }, at, bytes);
    }

    fn flush(&self, at: PoolOffset, len: u64) {
        self.check_range_of(at, len);
        if len != 0 && !self.omits(|omitter, thread| omitter.omits_flush(thread, at)) {
            schedule::point();
            let state = &mut *self.state.lock();
            state.begin(OpKind::Flush, at, len, &[]);
            state.counters.lines_flushed += lines_of(at.0, len).count() as u64;
        }
    }

    fn fence(&self) -> Result<(), MediaError> {
        if self.omits(Omitter::omits_fence) {
            return Ok(());
        }
        schedule::point();
        let state = &mut *self.state.lock();
        state.counters.fences += 1;
        if let Some(reason) = &state.failed {
            return Err(reason.clone());
        }
        state.begin(OpKind::Fence, PoolOffset(0), 0, &[]);
        Ok(())
    }

    fn check(&self) -> Result<(), MediaError> {
        self.state.lock().failed.clone().map_or(Ok(()), Err)
    }

    fn has_poison(&self) -> bool {
        self.has_poison.load(Ordering::Acquire)
    }

    fn poisoned_in(&self, at: PoolOffset, len: u64) -> Option<PoolOffset> {
        self.poisoned_ranges().iter().find_map(|bad| bad.first_in(at, len))
    }

    fn poisoned_ranges(&self) -> Vec<PoisonedRange> {
        let state = self.state.lock();
        let found = state.poisoned_lines.iter().filter(|&(_, &found)| found);
        found
            .map(|(&line, _)| PoisonedRange { at: PoolOffset(line * LINE_U64), len: LINE_U64 })
            .collect()
    }

    /// Loads every line.
    fn probe(&self, at: PoolOffset, len: u64) {
        self.check_range_of(at, len);
        if len == 0 {
            return;
        }
        let state = &mut *self.state.lock();
        for (_, found) in state.poisoned_lines.range_mut(lines_of(at.0, len)) {
            *found = true;
            self.has_poison.store(true, Ordering::Release);
        }
    }

    /// Sends a copy, so the bytes are those at the time of the call.
    fn send(&self, socket: BorrowedFd<'_>, pieces: &[Piece<'_>]) -> io::Result<usize> {
        let mut message = Vec::new();
        for piece in pieces {
            let room = SEND_MAX - message.len();
            let filled = message.len();
            match *piece {
                Piece::Bytes(bytes) => message.extend_from_slice(&bytes[..bytes.len().min(room)]),
                Piece::Zeroes { len } => message.resize(filled + len.min(room), 0),
                Piece::Stored { at, len } => {
                    self.check_range_of(at, len as u64);
                    message.resize(filled + len.min(room), 0);
                    self.read(at, &mut message[filled..]);
                    if self.poisoned_in(at, (message.len() - filled) as u64).is_some() {
                        return Err(rustix::io::Errno::FAULT.into());
                    }
                }
            }
        }
        if message.is_empty() {
            return Ok(0);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::io::retry_on_intr(|| rustix::net::send(socket, &message, flags)) {
            Ok(sent) => Ok(sent),
            Err(rustix::io::Errno::AGAIN) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn counters(&self) -> Counters {
        self.state.lock().counters
    }

    fn line_cost_ns(&self) -> (u32, u32) {
        (1, 1)
    }
}

impl fmt::Debug for SimMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimMedium").field("len", &self.len).field("ops", &self.ops()).finish()
    }
}
