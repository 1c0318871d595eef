//! Rounds: some chunks become inaccessible for a moment, and hot ones in runs change places with cold ones in
//! DRAM.
//!
//! A round picks random chunks, as many direct ones as chunks in DRAM, so it observes both in the
//! same way and at the same time. One thread makes rounds.
//!
//! Invariants: no chunk is watched after [`Chunks::end_round`]; a round watches chunks only if a
//! direct chunk could move to DRAM.

use std::sync::atomic::Ordering::SeqCst;

use super::Chunks;
use super::budget::MOVE_MAPPINGS;
use super::heat::{is_worth_exchange, score, with_score};
use crate::region::direct::chunk::{ChunkNo, WATCHES};
use crate::region::direct::memory::{ChunkError, ChunkMemory};
use crate::region::stats::{add, count};
use crate::slots::index;

/// Chunk words inspected to find one chunk to watch.
const LOOKS: u64 = 256;
/// Mappings added for the duration of a round.
const ROUND_MAPPINGS: u64 = 2 * WATCHES as u64;
/// Chunks of each kind in a round.
const OF_A_KIND: usize = WATCHES / 2;

/// A watched chunk.
#[derive(Clone, Copy)]
struct WatchedChunk {
    at: ChunkNo,
    since_ns: u64,
}

/// State of a round and of its random choices.
pub(crate) struct Round {
    watched: [Option<WatchedChunk>; WATCHES],
    random: u64,
}

/// Findings of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) touched: u64,
    pub(crate) moves: u64,
    /// The bound on mappings stood in the way.
    pub(crate) is_refused: bool,
}

/// A chunk and its heat.
type Candidate = (u8, ChunkNo);

impl Round {
    /// Rounds with choices derived from a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { watched: [None; WATCHES], random: seed | 1 }
    }

    /// The next number of a xorshift generator (G. Marsaglia, "Xorshift RNGs", 2003).
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

impl<M: ChunkMemory> Chunks<M> {
    /// Makes some chunks inaccessible. False if no exchange is possible or the mapping budget is
    /// used up; no chunk is inaccessible in this case.
    pub(crate) fn begin_round(&self, round: &mut Round) -> bool {
        if self.limit.load(SeqCst) == 0 || self.has_failed() {
            return false;
        }
        if !self.budget.take(ROUND_MAPPINGS) {
            count(&self.counters.moves_refused);
            return false;
        }
        let direct = self.watch_some(round, 0..OF_A_KIND, true);
        // Without a direct chunk no exchange is possible, so no chunk in DRAM is disturbed.
        if direct == 0 {
            self.budget.give_back(ROUND_MAPPINGS);
            return false;
        }
        let dram = self.watch_some(round, OF_A_KIND..WATCHES, false);
        add(&self.counters.chunks_watched, direct + dram);
        true
    }

    /// Watches direct chunks or chunks in DRAM. Returns their number.
    fn watch_some(
        &self,
        round: &mut Round,
        watches: std::ops::Range<usize>,
        are_runs: bool,
    ) -> u64 {
        let mut found = 0;
        for watch in watches {
            let Some(at) = self.find(round.random(), are_runs) else { break };
            // Both before the watch begins: an access may come immediately after it.
            self.touched[watch].store(0, SeqCst);
            let since_ns = self.memory.now_ns();
            if self.watch(at, watch) {
                round.watched[watch] = Some(WatchedChunk { at, since_ns });
                found += 1;
            }
        }
        found
    }

    /// A chunk to watch at or behind a random one.
    fn find(&self, random: u64, is_run: bool) -> Option<ChunkNo> {
        let chunks = self.len();
        let mut ahead =
            (0..LOOKS.min(chunks)).map(|step| ChunkNo((random % chunks + step) % chunks));
        ahead.find(|&at| {
            let seen = self.table.load(at);
            let is_kind = if is_run { seen.run().is_some() } else { seen.is_dram() };
            is_kind && !seen.is_watched() && seen.pins() == 0
        })
    }

    /// Makes the remaining watched chunks accessible, `window_ns` after the start of the round, and
    /// moves chunks by the result.
    pub(crate) fn end_round(&self, round: &mut Round, window_ns: u64) -> Findings {
        let mut findings = Findings::default();
        let mut direct = [(0, ChunkNo(0)); WATCHES];
        let mut dram = direct;
        let (mut directs, mut drams) = (0, 0);
        for (watch, watched) in round.watched.iter_mut().enumerate() {
            let Some(WatchedChunk { at, since_ns }) = watched.take() else { continue };
            self.unwatch(at);
            let touched_ns = Some(self.touched[watch].load(SeqCst)).filter(|ns| *ns > 0);
            let latency_ns = touched_ns.map(|ns| ns.saturating_sub(since_ns));
            findings.touched += u64::from(touched_ns.is_some());
            let heat = &self.heat[index(at.0)];
            let now = with_score(heat.load(SeqCst), score(latency_ns, window_ns));
            heat.store(now, SeqCst);
            let seen = self.table.load(at);
            if seen.run().is_some() {
                direct[directs] = (now, at);
                directs += 1;
            } else if seen.is_dram() {
                dram[drams] = (now, at);
                drams += 1;
            }
        }
        self.budget.give_back(ROUND_MAPPINGS);
        add(&self.counters.chunks_touched, findings.touched);
        let (direct, dram) = (&mut direct[..directs], &mut dram[..drams]);
        direct.sort_unstable_by_key(|(heat, _)| std::cmp::Reverse(*heat));
        dram.sort_unstable_by_key(|(heat, _)| *heat);
        self.rearrange(direct, dram, &mut findings);
        findings
    }

    /// Moves the hottest chunks of `direct`, first in the list, to DRAM, and the coldest of `dram`
    /// to runs.
    fn rearrange(&self, direct: &[Candidate], dram: &[Candidate], findings: &mut Findings) {
        let mut dram = dram.iter();
        // Chunks above the limit came to DRAM for lack of runs. They leave first.
        while self.dram.load(SeqCst) > self.limit.load(SeqCst) {
            let Some((_, at)) = dram.next() else { return };
            self.move_counted(*at, findings, Self::demote);
        }
        for (heat, at) in direct {
            let has_room = self.dram.load(SeqCst) < self.limit.load(SeqCst);
            if !has_room {
                let Some((cold, out)) = dram.next() else { return };
                if !is_worth_exchange(*heat, *cold) {
                    return;
                }
                if !self.move_counted(*out, findings, Self::demote) {
                    continue;
                }
            } else if *heat == 0 {
                // The list is sorted: no later chunk was accessed either.
                return;
            }
            self.move_counted(*at, findings, Self::promote);
        }
    }

    /// Makes a move if the mapping budget allows it. False if it was not made.
    fn move_counted(
        &self,
        at: ChunkNo,
        findings: &mut Findings,
        make: impl Fn(&Self, ChunkNo) -> Result<bool, ChunkError>,
    ) -> bool {
        if !self.budget.take(MOVE_MAPPINGS) {
            count(&self.counters.moves_refused);
            findings.is_refused = true;
            return false;
        }
        let moved = make(self, at);
        self.note_failed(&moved);
        let is_made = moved == Ok(true);
        findings.moves += u64::from(is_made);
        is_made
    }
}
