//! The suite catches media that break the contract, each in one way.

use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use everbyte_media::{
    BLOCK_U64, BlockNo, Counters, LineMask, Mapped, MediaError, MediaOptions, Medium,
    PersistenceDomain, Piece, PoisonedRange, PoolOffset,
};
use everbyte_testkit::medium;

/// A broken medium's fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    WordBigEndian,
    StoreLosesLastByte,
    StreamRoundsUp,
    StreamLosesTail,
    FlushCountsBlocks,
    StreamCountsFlushes,
    FenceCountsNothing,
    CompareMissesLastLine,
    CompareIgnoresStart,
    SendDropsZeroes,
    SendBlocksOnFull,
}

struct Broken {
    inner: Mapped,
    fault: Fault,
}

impl Broken {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

impl Medium for Broken {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn persistence_domain(&self) -> PersistenceDomain {
        self.inner.persistence_domain()
    }

    fn load_word(&self, at: PoolOffset) -> u64 {
        let word = self.inner.load_word(at);
        if self.has(Fault::WordBigEndian) { word.swap_bytes() } else { word }
    }

    fn read(&self, at: PoolOffset, out: &mut [u8]) {
        self.inner.read(at, out);
    }

    fn changed_lines(&self, block: BlockNo, start: usize, new: &[u8]) -> LineMask {
        let start = if self.has(Fault::CompareIgnoresStart) { 0 } else { start };
        let lost = usize::from(self.has(Fault::CompareMissesLastLine) && !new.is_empty());
        self.inner.changed_lines(block, start, &new[..new.len() - lost])
    }

    fn store_word(&self, at: PoolOffset, value: u64) {
        let big = self.has(Fault::WordBigEndian);
        self.inner.store_word(at, if big { value.swap_bytes() } else { value });
    }

    fn store(&self, at: PoolOffset, bytes: &[u8]) {
        let lost = usize::from(self.has(Fault::StoreLosesLastByte) && bytes.len() > 1);
        self.inner.store(at, &bytes[..bytes.len() - lost]);
    }

    fn stream(&self, at: PoolOffset, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        if self.has(Fault::StreamRoundsUp) && bytes.len() > 100 {
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        if self.has(Fault::StreamLosesTail) && bytes.len() > 64 {
            bytes.truncate(bytes.len() / 64 * 64);
        }
        self.inner.stream(at, &bytes);
        if self.has(Fault::StreamCountsFlushes) {
            self.inner.flush(at, bytes.len() as u64);
        }
    }

    fn flush(&self, at: PoolOffset, len: u64) {
        if self.has(Fault::FlushCountsBlocks) && len > 0 {
            return self.inner.flush(at.block().offset(), len.next_multiple_of(BLOCK_U64));
        }
        self.inner.flush(at, len);
    }

    fn fence(&self) -> Result<(), MediaError> {
        if self.has(Fault::FenceCountsNothing) { Ok(()) } else { self.inner.fence() }
    }

    fn check(&self) -> Result<(), MediaError> {
        self.inner.check()
    }

    fn has_poison(&self) -> bool {
        self.inner.has_poison()
    }

    fn poisoned_in(&self, at: PoolOffset, len: u64) -> Option<PoolOffset> {
        self.inner.poisoned_in(at, len)
    }

    fn poisoned_ranges(&self) -> Vec<PoisonedRange> {
        self.inner.poisoned_ranges()
    }

    fn probe(&self, at: PoolOffset, len: u64) {
        self.inner.probe(at, len);
    }

    fn send(&self, socket: BorrowedFd<'_>, pieces: &[Piece<'_>]) -> io::Result<usize> {
        let keep = |piece: &Piece<'_>| {
            !(self.has(Fault::SendDropsZeroes) && matches!(piece, Piece::Zeroes { .. }))
        };
        let pieces: Vec<_> = pieces.iter().copied().filter(keep).collect();
        match self.inner.send(socket, &pieces)? {
            0 if self.has(Fault::SendBlocksOnFull) => Err(io::ErrorKind::WouldBlock.into()),
            sent => Ok(sent),
        }
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn line_cost_ns(&self) -> (u32, u32) {
        self.inner.line_cost_ns()
    }
}

fn passes(fault: Fault) -> bool {
    let inner = Mapped::anonymous(2 * medium::LEN_MIN, &MediaOptions::new());
    let medium = Broken { inner: inner.expect("memory"), fault };
    catch_unwind(AssertUnwindSafe(|| medium::check_medium(&medium))).is_ok()
}

#[test]
fn faithful_wrapper_passes() {
    assert!(passes(Fault::None));
}

#[test]
fn each_fault_is_caught() {
    for fault in [
        Fault::WordBigEndian,
        Fault::StoreLosesLastByte,
        Fault::StreamRoundsUp,
        Fault::StreamLosesTail,
        Fault::FlushCountsBlocks,
        Fault::StreamCountsFlushes,
        Fault::FenceCountsNothing,
        Fault::CompareMissesLastLine,
        Fault::CompareIgnoresStart,
        Fault::SendDropsZeroes,
        Fault::SendBlocksOnFull,
    ] {
        assert!(!passes(fault), "{fault:?} went unnoticed");
    }
}
