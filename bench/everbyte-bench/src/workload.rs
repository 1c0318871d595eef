//! The workloads of every subject: names and requests.
//!
//! Invariants: requests depend only on the workload, the size of the device, the thread and the round, so all subjects get
//! the same requests. Requests are aligned to their length.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};

/// Seed of all random numbers.
const SEED: u64 = 0x0e5e_7b17_e000;

/// Bytes of the buffer of payloads, and at least twice the bytes of a request. The buffer stays in a second-level cache, and
/// a rewrite of a block brings other bytes.
const PAYLOAD_BYTES: usize = 512 << 10;

/// Alignment of payloads in the buffer, for direct I/O.
const PAYLOAD_STEP: usize = 512;

/// Alignment of the buffer in memory, for direct I/O.
const PAYLOAD_ALIGN: usize = 4096;

/// Bytes at the start of a device for repeated writes before a flush: half of the dirty bytes at which a volume starts a
/// checkpoint.
pub(crate) const AGAIN_BYTES: u64 = 2 << 20;

/// Changed bytes of an edit: one line.
pub(crate) const EDIT_BYTES: usize = 64;

/// Kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Action {
    /// Read written bytes.
    Read,
    /// Write each place once, the first time.
    First,
    /// Write new bytes over old ones.
    Rewrite,
    /// Write new bytes over bytes of the current epoch: no flush lies between.
    Again,
    /// Write a whole request that changes one or two stored lines.
    Edit,
}

/// Order of the requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Pattern {
    /// Uniform over the device.
    Random,
    /// Ascending, each thread in its part of the device.
    Sequential,
}

/// The event that makes a write durable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Durability {
    /// The flush at the end of the measurement. Its time counts.
    Checkpoint,
    /// A flush after this number of writes of a thread.
    FlushEvery(u32),
    /// The answer to the write (FUA).
    Request,
}

impl Durability {
    /// Returns true for more than one flush at the end.
    pub(crate) fn is_stricter(self) -> bool {
        self != Self::Checkpoint
    }
}

/// A workload.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Workload {
    pub(crate) action: Action,
    pub(crate) pattern: Pattern,
    /// Bytes of a request: a power of two.
    pub(crate) bytes: usize,
    pub(crate) threads: usize,
    pub(crate) durability: Durability,
    /// Requests of a thread in flight over NBD; 0 for calls in process.
    pub(crate) depth: usize,
}

impl Workload {
    /// One thread, random, in process, durable by the checkpoint.
    pub(crate) const fn new(action: Action, bytes: usize) -> Self {
        Self {
            action,
            pattern: Pattern::Random,
            bytes,
            threads: 1,
            durability: Durability::Checkpoint,
            depth: 0,
        }
    }

    pub(crate) const fn sequential(mut self) -> Self {
        self.pattern = Pattern::Sequential;
        self
    }

    pub(crate) const fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    pub(crate) const fn durable(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    pub(crate) const fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    pub(crate) fn writes(&self) -> bool {
        self.action != Action::Read
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.depth > 0 {
            f.write_str("nbd ")?;
        }
        f.write_str(match self.pattern {
            Pattern::Random => "random ",
            Pattern::Sequential => "sequential ",
        })?;
        f.write_str(match self.action {
            Action::Read => "read",
            Action::First => "first write",
            Action::Rewrite => "rewrite",
            Action::Again => "write again",
            Action::Edit => "edit",
        })?;
        match self.bytes {
            bytes if bytes >= 1024 => write!(f, " {}K", bytes / 1024)?,
            bytes => write!(f, " {bytes}B")?,
        }
        if self.writes() {
            match self.durability {
                Durability::Checkpoint => f.write_str(" checkpoint")?,
                Durability::FlushEvery(count) => write!(f, " flush/{count}")?,
                Durability::Request => f.write_str(" fua")?,
            }
        }
        if self.depth > 0 {
            write!(f, " d{}", self.depth)?;
        }
        write!(f, " t{}", self.threads)
    }
}

/// The workloads in process. Workloads on unwritten devices come first.
pub(crate) fn in_process() -> Vec<Workload> {
    use Action::{Again, Edit, First, Read, Rewrite};
    use Durability::{FlushEvery, Request};
    const SIZES: [usize; 4] = [64, 512, 4 << 10, 64 << 10];
    let of = Workload::new;
    let mut all = vec![
        of(First, 4 << 10),
        of(First, 4 << 10).threads(2),
        of(First, 4 << 10).sequential(),
        of(First, 64 << 10).sequential(),
        of(First, 4 << 10).durable(Request),
        of(First, 512),
    ];
    all.extend(SIZES.map(|bytes| of(Rewrite, bytes)));
    all.extend([512, 4 << 10].map(|bytes| of(Again, bytes)));
    all.extend([4 << 10, 64 << 10].map(|bytes| of(Rewrite, bytes).sequential()));
    all.extend([512, 4 << 10].map(|bytes| of(Rewrite, bytes).threads(2)));
    all.extend([512, 4 << 10].map(|bytes| of(Rewrite, bytes).durable(FlushEvery(64))));
    all.extend(SIZES.map(|bytes| of(Rewrite, bytes).durable(Request)));
    all.extend([512, 4 << 10].map(|bytes| of(Rewrite, bytes).durable(Request).threads(2)));
    all.extend([of(Edit, 4 << 10), of(Edit, 4 << 10).durable(Request)]);
    all.extend(SIZES.map(|bytes| of(Read, bytes)));
    all.extend([4 << 10, 64 << 10].map(|bytes| of(Read, bytes).sequential()));
    all.push(of(Read, 4 << 10).threads(2));
    all
}

/// The workloads over NBD.
pub(crate) fn over_nbd() -> Vec<Workload> {
    use Action::{Read, Rewrite};
    use Durability::{FlushEvery, Request};
    let mut all = Vec::new();
    for depth in [1, 16, 64] {
        let of = |action, bytes| Workload::new(action, bytes).depth(depth);
        all.extend([
            of(Read, 4 << 10),
            of(Rewrite, 4 << 10),
            of(Rewrite, 4 << 10).durable(Request),
            of(Rewrite, 512),
            of(Read, 64 << 10).sequential(),
            of(Rewrite, 64 << 10).sequential(),
            of(Read, 1 << 20).sequential(),
            of(Rewrite, 1 << 20).sequential(),
        ]);
    }
    let of = |action, bytes| Workload::new(action, bytes).depth(16);
    all.extend([
        of(Rewrite, 4 << 10).durable(FlushEvery(64)),
        of(Read, 4 << 10).threads(2),
        of(Rewrite, 4 << 10).threads(2),
    ]);
    all
}

/// The workloads of a smoke test, in process and over NBD.
pub(crate) fn smoke() -> (Vec<Workload>, Vec<Workload>) {
    use Action::{Edit, First, Read, Rewrite};
    let of = Workload::new;
    let in_process = vec![
        of(First, 4 << 10),
        of(Rewrite, 4 << 10),
        of(Rewrite, 512).durable(Durability::Request),
        of(Edit, 4 << 10),
        of(Read, 4 << 10),
    ];
    (in_process, vec![of(Read, 4 << 10).depth(16), of(Rewrite, 4 << 10).depth(1)])
}

/// The offsets of one thread's requests.
pub(crate) enum Offsets {
    /// Drawn from all requests that fit.
    Random { rng: SmallRng, requests: u32, bytes: u64 },
    /// Ascending, and again from the start, until `left` is 0.
    Sequential { at: u64, start: u64, end: u64, bytes: u64, left: u64 },
    /// Each once, shuffled.
    Once { order: std::vec::IntoIter<u32>, bytes: u64 },
}

impl Offsets {
    /// The offsets of `thread` in `round` on a device of `size_bytes`.
    pub(crate) fn new(workload: &Workload, size_bytes: u64, thread: usize, round: usize) -> Self {
        let bytes = workload.bytes as u64;
        let once = workload.action == Action::First;
        let size_bytes = match workload.action {
            Action::Again => size_bytes.min(AGAIN_BYTES),
            _ => size_bytes,
        };
        // A small first write maps its whole block, so the next one needs another block.
        let stride = if once { bytes.max(4096) } else { bytes };
        // Numbers of 32 bits keep the shuffled list small: 2^32 requests of 64 bytes cover 256 GiB.
        let requests = u32::try_from(size_bytes / stride).unwrap_or(u32::MAX);
        let (thread, threads) = (thread as u64, workload.threads as u64);
        let mut rng = rng(workload, thread, round as u64);
        match workload.pattern {
            Pattern::Sequential => {
                let share = u64::from(requests) / threads * stride;
                let start = thread * share;
                // A second pass would rewrite what the first pass has mapped.
                let left = if once { share / stride } else { u64::MAX };
                Self::Sequential { at: start, start, end: start + share, bytes: stride, left }
            }
            Pattern::Random if once => {
                // Threads take alternate blocks, so no two threads write one block.
                let first = u32::try_from(thread).unwrap_or(0);
                let mut order: Vec<u32> = (first..requests).step_by(workload.threads).collect();
                order.shuffle(&mut rng);
                Self::Once { order: order.into_iter(), bytes: stride }
            }
            Pattern::Random => Self::Random { rng, requests, bytes },
        }
    }
}

impl Iterator for Offsets {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        match self {
            Self::Random { rng, requests, bytes } => {
                Some(u64::from(rng.random_range(0..*requests)) * *bytes)
            }
            Self::Sequential { at, start, end, bytes, left } => {
                *left = left.checked_sub(1)?;
                let offset = *at;
                *at = if offset + *bytes >= *end { *start } else { offset + *bytes };
                Some(offset)
            }
            Self::Once { order, bytes } => Some(u64::from(order.next()?) * *bytes),
        }
    }
}

/// Payloads of one thread, and its buffer for reads.
pub(crate) struct Payload {
    memory: Vec<u8>,
    /// Index of the aligned part.
    start: usize,
    at: usize,
    count: u64,
}

impl Payload {
    /// The payloads of `thread` in `round`. Each workload has other payloads, so no write meets its own bytes of an earlier
    /// workload.
    pub(crate) fn new(workload: &Workload, thread: usize, round: usize) -> Self {
        let bytes = PAYLOAD_BYTES.max(2 * workload.bytes);
        Self::filled(bytes, rng(workload, thread as u64, !(round as u64)))
    }

    fn filled(bytes: usize, mut rng: SmallRng) -> Self {
        let mut memory = vec![0; bytes + PAYLOAD_ALIGN];
        // The allocator aligns less than direct I/O needs.
        let start = memory.as_ptr().addr().next_multiple_of(PAYLOAD_ALIGN) - memory.as_ptr().addr();
        rng.fill_bytes(&mut memory[start..start + bytes]);
        Self { memory, start, at: 0, count: 0 }
    }

    /// The bytes of every block before an edit, equal in all threads and rounds.
    pub(crate) fn unedited() -> Self {
        Self::filled(PAYLOAD_BYTES, SmallRng::seed_from_u64(SEED))
    }

    /// New bytes for a request.
    #[inline]
    pub(crate) fn next(&mut self, len: usize) -> &[u8] {
        // Each payload begins elsewhere, so two writes of one block differ.
        self.at += PAYLOAD_STEP;
        if self.at + len > self.memory.len() - PAYLOAD_ALIGN {
            self.at = 0;
        }
        &self.memory[self.start + self.at..self.start + self.at + len]
    }

    /// The unedited bytes with one changed line. The next call restores the line.
    #[inline]
    pub(crate) fn edited(&mut self, len: usize) -> &[u8] {
        // The last stamp again: this restores its line.
        let before = self.count;
        self.stamp_line(before, len);
        self.count += 1;
        let now = self.count;
        self.stamp_line(now, len);
        self.first(len)
    }

    /// Mixes `stamp` into the line with its number. The second call undoes the first; a stamp of 0 changes nothing.
    #[expect(clippy::cast_possible_truncation, reason = "a line of a request")]
    fn stamp_line(&mut self, stamp: u64, len: usize) {
        let from = self.start + stamp as usize % (len / EDIT_BYTES) * EDIT_BYTES;
        for (byte, mix) in self.memory[from..].iter_mut().zip(stamp.to_le_bytes()) {
            *byte ^= mix;
        }
    }

    /// The first bytes: the contents of a block before an edit.
    pub(crate) fn first(&self, len: usize) -> &[u8] {
        &self.memory[self.start..self.start + len]
    }

    /// Memory for a read.
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory[self.start..self.start + len]
    }
}

fn rng(workload: &Workload, thread: u64, round: u64) -> SmallRng {
    // The hash decorrelates neighboring threads and rounds.
    let mut hasher = DefaultHasher::new();
    (SEED, workload, thread, round).hash(&mut hasher);
    SmallRng::seed_from_u64(hasher.finish())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn first_touches_cover_everything_once() {
        for pattern in [Pattern::Random, Pattern::Sequential] {
            let mut workload = Workload::new(Action::First, 4096).threads(2);
            workload.pattern = pattern;
            let size = 64 << 12;
            let all: Vec<u64> =
                (0..2).flat_map(|thread| Offsets::new(&workload, size, thread, 0)).collect();
            let distinct: HashSet<u64> = all.iter().copied().collect();
            assert_eq!((all.len(), distinct.len()), (64, 64), "{workload}");
            assert!(all.iter().all(|offset| offset % 4096 == 0 && *offset < size));
        }
    }

    #[test]
    fn small_first_touches_take_a_block_each() {
        let workload = Workload::new(Action::First, 512);
        let all: HashSet<u64> = Offsets::new(&workload, 16 << 12, 0, 0).collect();
        assert_eq!(all.len(), 16);
        assert!(all.iter().all(|offset| offset % 4096 == 0));
    }

    #[test]
    fn every_subject_gets_the_same_requests() {
        let workload = Workload::new(Action::Read, 512);
        let take = |round| Offsets::new(&workload, 1 << 20, 0, round).take(50).collect::<Vec<_>>();
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
        assert!(take(1).iter().all(|offset| offset % 512 == 0 && *offset < 1 << 20));
    }

    #[test]
    fn edit_changes_one_line() {
        let unedited = Payload::unedited();
        let mut payload = Payload::unedited();
        for _ in 0..200 {
            let edited = payload.edited(4096);
            let lines = edited.chunks(EDIT_BYTES).zip(unedited.first(4096).chunks(EDIT_BYTES));
            assert_eq!(lines.filter(|(new, old)| new != old).count(), 1);
        }
    }

    #[test]
    fn names_are_unique() {
        let all: Vec<String> =
            in_process().iter().chain(&over_nbd()).map(ToString::to_string).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    }
}
