//! A whole medium as the hardware sees it: durable base, lines in flight, threads' fences.
//!
//! Owns addresses, the split of stores into lines, and the effect of a thread's fence.
//! Invariants: the base is never written while a crash state shares it; a line is in `touched`
//! if it was stored to or partly decided since boot. Costs depend on the lines touched, not on
//! the size. Knows nothing of locks, counters, operation numbers or the explorer.

use std::sync::Arc;

use everbyte_media::{LINE, LINE_U64};

use crate::address::{index, lines_of, overlap};
use crate::decision_trace::{DecisionTrace, Image, mix};
use crate::line::{Line, LineContent, StoreKind, StoredPiece, Thinning, mask_of};
use crate::line_map::LineMap;

/// A number of a simulated thread, in the order of first use of the medium.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ThreadNo(pub u32);

/// Order in which the pieces of one ordinary store persist within a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StoreOrder {
    /// In any order: long stores are bulk copies without a promised order.
    #[default]
    Any,
    /// Ascending, as if each piece were a separate store.
    Ascending,
}

/// Rules of the medium's hardware, and limits of the tried contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rules {
    pub(crate) stores: StoreOrder,
    /// Largest number of unordered pieces of a line with a try of every subset.
    pub(crate) subsets_max: u32,
    /// Picks among sets too many to try.
    pub(crate) seed: u64,
}

/// Default of the largest number of pieces of a line with a try of every subset.
pub(crate) const SUBSETS_MAX: u32 = 3;

impl Default for Rules {
    fn default() -> Self {
        Self { stores: StoreOrder::Any, subsets_max: SUBSETS_MAX, seed: 0 }
    }
}

/// All possible images of a medium after a crash at one moment. It can be booted any number of
/// times.
///
/// Cheap to clone. Lines with several possible contents are decided only at their first read, byte
/// by byte: contents that a load cannot distinguish stay undecided together.
#[derive(Clone, Debug)]
pub struct CrashState {
    base: Arc<Vec<u8>>,
    /// Lines that may differ from the base.
    lines: Arc<LineMap<LineContent>>,
    rules: Rules,
}

impl CrashState {
    /// Lines with more than one possible content.
    #[must_use]
    pub fn open_lines(&self) -> usize {
        self.lines.iter().filter(|(_, crash_content)| crash_content.differ() != 0).count()
    }

    /// Returns true if a crash may leave more than one value in the byte at `at`.
    pub(crate) fn in_doubt(&self, at: u64) -> bool {
        let line = self.lines.get(at / LINE_U64);
        line.is_some_and(|crash_content| crash_content.differ() >> (at % LINE_U64) & 1 != 0)
    }

    /// A hash of this state's differences from others over the same base.
    pub(crate) fn fingerprint(&self) -> u64 {
        let of_line = |(line, crash_content): (u64, &LineContent)| {
            let images = crash_content.images();
            let words = images.iter().flat_map(|image| image.as_chunks::<8>().0);
            let first = mix(&[line, images.len() as u64]);
            words.fold(first, |hash, word| mix(&[hash, u64::from_le_bytes(*word)]))
        };
        // Lines come in any order.
        self.lines.iter().map(of_line).fold(0, u64::wrapping_add)
    }
}

/// Unfenced flushes and streams of a thread.
#[derive(Default, Debug)]
struct InFlight {
    /// Lines flushed, with the sequence number below which their ordinary stores count.
    flushed: Vec<(u64, u64)>,
    /// Lines streamed to.
    streamed: Vec<u64>,
}

/// The state of a medium in use.
#[derive(Debug)]
pub(crate) struct Memory {
    base: Arc<Vec<u8>>,
    origin: Arc<LineMap<LineContent>>,
    touched: LineMap<Line>,
    /// By the number of the thread.
    in_flight: Vec<InFlight>,
    seq: u64,
    rules: Rules,
}

/// The line after the crash before the boot of this medium.
fn original(base: &[u8], origin: &LineMap<LineContent>, line: u64) -> LineContent {
    origin.get(line).cloned().unwrap_or_else(|| {
        let mut image: Image = [0; LINE];
        image.copy_from_slice(&base[index(line * LINE_U64)..][..LINE]);
        LineContent::Known(image)
    })
}

impl Memory {
    /// A memory with `image` as durable content.
    pub(crate) fn new(image: Vec<u8>, rules: Rules) -> Self {
        let lines = Arc::new(LineMap::new(image.len() as u64 / LINE_U64));
        Self::booted(&CrashState { base: Arc::new(image), lines, rules })
    }

    pub(crate) fn booted(state: &CrashState) -> Self {
        Self {
            base: Arc::clone(&state.base),
            origin: Arc::clone(&state.lines),
            touched: LineMap::new(state.base.len() as u64 / LINE_U64),
            in_flight: Vec::new(),
            seq: 0,
            rules: state.rules,
        }
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.base.len() as u64
    }

    /// Copies the newest bytes at `at` into the non-empty `out`.
    pub(crate) fn read(&mut self, at: u64, out: &mut [u8], decisions: &mut DecisionTrace) {
        out.copy_from_slice(&self.base[index(at)..][..out.len()]);
        let (first, last) = lines_of(at, out.len() as u64).into_inner();
        let mut next = first;
        while let Some(line) = self.touched.next_with(&self.origin, next, last) {
            let (start, len) = overlap(line, at, out.len());
            if let Some(image) = self.newest(line, mask_of(start, len), decisions) {
                patch(out, at, line, image);
            }
            next = line + 1;
        }
    }

    /// The newest content of the line, if it may be other than in the base; only the bytes of `mask` mean
    /// anything.
    fn newest(&mut self, line: u64, mask: u64, decisions: &mut DecisionTrace) -> Option<&Image> {
        if !self.touched.contains(line) {
            let crash_content = self.origin.get(line)?;
            if crash_content.differ() & mask == 0 {
                decisions.note_thinned(crash_content.thinned());
                return Some(&crash_content.images()[0]);
            }
            self.touched.insert(line, Line::new(crash_content.clone()));
        }
        self.touched.get_mut(line).map(|touched| touched.read(mask, line, decisions))
    }

    /// A thread other than `thread` with an unfenced stream to `at .. at + len`.
    pub(crate) fn unfenced_by_other(
        &self,
        thread: ThreadNo,
        at: u64,
        len: usize,
    ) -> Option<ThreadNo> {
        let lines = lines_of(at, len as u64);
        let unfenced = |line: u64, other: ThreadNo| {
            let (start, len) = overlap(line, at, len);
            let touched = self.touched.get(line);
            touched.is_some_and(|touched| touched.streamed_by(other.0) & mask_of(start, len) != 0)
        };
        let all = (0..).map(ThreadNo).zip(&self.in_flight);
        let mut others = all.filter(|(other, _)| *other != thread);
        let found = others.find(|(other, in_flight)| {
            let mut theirs = in_flight.streamed.iter().filter(|line| lines.contains(line));
            theirs.any(|line| unfenced(*line, *other))
        });
        found.map(|(other, _)| other)
    }

    /// Unfenced flushes and streams of `thread`.
    fn in_flight_of(in_flight: &mut Vec<InFlight>, thread: ThreadNo) -> &mut InFlight {
        let place = thread.0 as usize;
        if in_flight.len() <= place {
            in_flight.resize_with(place + 1, InFlight::default);
        }
        &mut in_flight[place]
    }

    /// Stores the non-empty `bytes` at `at`.
    pub(crate) fn store(&mut self, thread: ThreadNo, streamed: bool, at: u64, bytes: &[u8]) {
        let ordered = self.rules.stores == StoreOrder::Ascending;
        let kind = if streamed { StoreKind::Streamed(thread.0) } else { StoreKind::Ordinary };
        for line in lines_of(at, bytes.len() as u64) {
            let (start, len) = overlap(line, at, bytes.len());
            let from = index(line * LINE_U64 + start as u64 - at);
            let first = || Line::new(original(&self.base, &self.origin, line));
            let touched = self.touched.get_or_insert_with(line, first);
            let part = &bytes[from..from + len];
            StoredPiece::split(start, part, kind, ordered, &mut self.seq, |piece| {
                touched.push(piece);
            });
            if streamed {
                Self::in_flight_of(&mut self.in_flight, thread).streamed.push(line);
            }
        }
    }

    /// Starts writing back the lines of `at .. at + len`; `len` is not 0.
    pub(crate) fn flush(&mut self, thread: ThreadNo, at: u64, len: u64) {
        let in_flight = Self::in_flight_of(&mut self.in_flight, thread);
        for line in lines_of(at, len) {
            if self.touched.get(line).is_some_and(|touched| !touched.is_clean()) {
                in_flight.flushed.push((line, self.seq));
            }
        }
    }

    /// Makes the flushes and streams of `thread` durable. Returns true if there were any.
    pub(crate) fn fence(&mut self, thread: ThreadNo) -> bool {
        let done = std::mem::take(Self::in_flight_of(&mut self.in_flight, thread));
        let mut any = false;
        for (line, limit) in done.flushed {
            if let Some(touched) = self.touched.get_mut(line) {
                any |=
                    touched.persist(|piece| piece.kind == StoreKind::Ordinary && piece.seq < limit);
            }
        }
        for line in done.streamed {
            if let Some(touched) = self.touched.get_mut(line) {
                any |= touched.persist(|piece| piece.kind == StoreKind::Streamed(thread.0));
            }
        }
        any
    }

    /// Returns the state after a crash now.
    pub(crate) fn crash_state(&mut self) -> CrashState {
        let mut lines = (*self.origin).clone();
        let subsets_max = self.rules.subsets_max as usize;
        let thinning = Thinning { subsets_max, seed: self.rules.seed };
        for (line, touched) in self.touched.iter_mut() {
            lines.insert(line, touched.crash_content(line, thinning));
        }
        CrashState { base: Arc::clone(&self.base), lines: Arc::new(lines), rules: self.rules }
    }

    /// Moves settled lines into the base, if no crash state shares it.
    pub(crate) fn fold(&mut self) {
        let Some(base) = Arc::get_mut(&mut self.base) else { return };
        if !self.origin.is_empty() {
            return;
        }
        self.touched.retain(|line, touched| {
            let Some(image) = touched.settled() else { return true };
            base[index(line * LINE_U64)..][..LINE].copy_from_slice(image);
            false
        });
    }
}

/// Copies the bytes of `image`, the content of `line`, to `out`, which holds the range from `at`
/// on.
fn patch(out: &mut [u8], at: u64, line: u64, image: &Image) {
    let (start, len) = overlap(line, at, out.len());
    let to = index(line * LINE_U64 + start as u64 - at);
    out[to..to + len].copy_from_slice(&image[start..start + len]);
}
