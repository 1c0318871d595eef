//! Memory that goes bad, or space that runs out, during a request, after its check.
//!
//! Owns a medium that fails at a given moment. A crash leaves the contents still at risk then, so tests of
//! that end with a crash.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use everbyte_block::{BlockOptions, BlockVolume, Checksum, Delta, kinds};
use everbyte_crash::{CrashState, Plan, SimMedium};
use everbyte_device::{BlockDevice, DeviceError, Fua, SendError};
use everbyte_extent::ViewError;
use everbyte_media::{
    BlockNo, Counters, LineMask, MediaError, Medium, PersistenceDomain, Piece, PoisonedRange,
    PoolOffset,
};
use everbyte_pool::format::Entry;
use everbyte_pool::{OpenOptions, Pool};

use crate::pattern;

const POOL_BLOCKS: u64 = 128;
const HEADER: u64 = 2 * 4096;

/// A simulated medium with one line that fails right after it was probed, right before it is sent, or right after a record
/// was appended.
struct Fading {
    inner: SimMedium,
    /// The line's address; 0 for none.
    line: AtomicU64,
    /// The same for the line that fails before it is sent.
    sent_line: AtomicU64,
    /// The same for the line that fails after a record.
    record_line: AtomicU64,
    /// Called after each store of a whole block in place.
    on_whole_store: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Medium for Fading {
    fn probe(&self, at: PoolOffset, len: u64) {
        self.inner.probe(at, len);
        let line = self.line.load(Ordering::Relaxed);
        if line != 0 && (at.0..at.0 + len).contains(&line) {
            self.inner.inject_poison(PoolOffset(line), 1);
        }
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn persistence_domain(&self) -> PersistenceDomain {
        self.inner.persistence_domain()
    }
    fn load_word(&self, at: PoolOffset) -> u64 {
        self.inner.load_word(at)
    }
    fn read(&self, at: PoolOffset, out: &mut [u8]) {
        self.inner.read(at, out);
    }
    fn changed_lines(&self, block: BlockNo, start: usize, new: &[u8]) -> LineMask {
        self.inner.changed_lines(block, start, new)
    }
    fn store_word(&self, at: PoolOffset, value: u64) {
        self.inner.store_word(at, value);
    }
    fn store(&self, at: PoolOffset, bytes: &[u8]) {
        self.inner.store(at, bytes);
        if bytes.len() == 4096
            && let Some(call) = &*self.on_whole_store.lock().unwrap()
        {
            call();
        }
    }
    fn stream(&self, at: PoolOffset, bytes: &[u8]) {
        self.inner.stream(at, bytes);
        let line = self.record_line.load(Ordering::Relaxed);
        // Fills have whole blocks.
        if line != 0 && !bytes.len().is_multiple_of(4096) {
            self.inner.inject_poison(PoolOffset(line), 1);
            self.inner.probe(PoolOffset(line), 1);
        }
    }
    fn flush(&self, at: PoolOffset, len: u64) {
        self.inner.flush(at, len);
    }
    fn fence(&self) -> Result<(), MediaError> {
        self.inner.fence()
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
    /// Sends zeroes where the line failed, as the kernel does once another thread has met the page.
    fn send(&self, socket: BorrowedFd<'_>, pieces: &[Piece<'_>]) -> io::Result<usize> {
        let line = self.sent_line.load(Ordering::Relaxed);
        if line == 0 {
            return self.inner.send(socket, pieces);
        }
        self.inner.inject_poison(PoolOffset(line), 1);
        self.inner.probe(PoolOffset(line), 1);
        let zeroes = |piece: &Piece<'_>| Piece::Zeroes { len: piece.len() };
        self.inner.send(socket, &pieces.iter().map(zeroes).collect::<Vec<_>>())
    }
    fn counters(&self) -> Counters {
        self.inner.counters()
    }
    fn line_cost_ns(&self) -> (u32, u32) {
        self.inner.line_cost_ns()
    }
}

fn open<M: Medium>(medium: &Arc<M>) -> Arc<Pool<M>> {
    let options = OpenOptions { capacity_blocks: POOL_BLOCKS };
    Arc::new(Pool::open(Arc::clone(medium), kinds(), &options).unwrap())
}

/// A pool with the volume `v` of 8 blocks, all flushed, with a log of one lane.
fn medium() -> Arc<Fading> {
    medium_with(Delta::On)
}

fn medium_with(delta: Delta) -> Arc<Fading> {
    let medium = Arc::new(Fading {
        inner: SimMedium::new(POOL_BLOCKS * 4096),
        line: AtomicU64::new(0),
        sent_line: AtomicU64::new(0),
        record_line: AtomicU64::new(0),
        on_whole_store: Mutex::new(None),
    });
    Pool::format(&*medium, 4, [1; 16]).unwrap();
    let options = BlockOptions {
        delta,
        checksum: Checksum::None,
        threshold_percent: 50,
        log_bytes: Some(2 * 16384),
        lanes: 1,
        checkpoint_lines: 0,
    };
    let volume = BlockVolume::create(&open(&medium), "v", 8 * 4096, &options).unwrap();
    volume.write(0, &pattern(1, 8 * 4096), Fua::No).unwrap();
    volume.flush().unwrap();
    medium
}

/// Returns the place of block `block` of the volume.
fn place_of(medium: &Fading, block: u64) -> PoolOffset {
    let named = |at| Entry::decode(medium.load_word(PoolOffset(at))).unwrap().unwrap().block;
    named(named(HEADER + 192).offset().0 + block * 8).offset()
}

/// The bytes of the failing request; without FUA it begins a block earlier.
const FAILED: std::ops::Range<usize> = 3 * 4096 + 5 * 64..3 * 4096 + 5 * 64 + 60;
/// Those of the request after it.
const LATER: std::ops::Range<usize> = 6 * 4096 + 64..6 * 4096 + 128;

/// Lets a request fail when its last block's old bytes are read, with FUA its only one, and then another
/// thread make another one: a fence completes only its own thread's streams, and the volume has one lane.
/// Returns the contents after a crash, and the start of the log.
fn fail_then_write(fua: Fua) -> (CrashState, PoolOffset) {
    let medium = medium();
    let pool = open(&medium);
    let volume = BlockVolume::open(&pool, "v").unwrap();
    let line = place_of(&medium, 3).plus(5 * 64);
    medium.line.store(line.0, Ordering::Relaxed);
    let start = if fua == Fua::Yes { FAILED.start } else { 3 * 4096 - 64 };
    let error = volume.write(start as u64, &vec![7; FAILED.end - start], fua);
    assert!(matches!(error, Err(DeviceError::Media { .. })), "{error:?}");
    std::thread::scope(|scope| {
        scope.spawn(|| volume.write(LATER.start as u64, &[9; 64], fua).unwrap());
    });
    let log = BlockNo(volume.volume().descriptor().log_start).offset();
    (medium.inner.crash_state(), log)
}

/// Returns the volume's contents after a crash with the image of `plan`.
fn recovered(left: &CrashState, plan: Plan) -> Vec<u8> {
    let pool = open(&Arc::new(left.boot(plan)));
    let volume = BlockVolume::open(&pool, "v").unwrap();
    assert_eq!(volume.volume().read_only_reason(), None);
    let mut found = vec![0; 8 * 4096];
    volume.read(0, &mut found).unwrap();
    found
}

#[test]
fn failed_fua_record_hides_no_later_record() {
    let (left, _) = fail_then_write(Fua::Yes);
    let mut expected = pattern(1, 8 * 4096);
    expected[LATER].fill(9);
    for plan in [Plan::nothing(), Plan::everything()] {
        let found = recovered(&left, plan.clone());
        assert!(found[LATER] == expected[LATER], "{plan}: an answered durable write is lost");
        // The memory is sound again: its last four bytes must not have been redone as zeroes.
        assert!(found == expected, "{plan}: something else has changed");
    }
}

#[test]
fn failed_undo_record_hides_no_later_record() {
    let (left, log) = fail_then_write(Fua::No);
    let expected = pattern(1, 8 * 4096);
    // Epochs are even or odd, and so are halves: the records begin in one of the two.
    for half in [0, 16384] {
        let found = recovered(&left, Plan::missing(log.plus(half)));
        assert!(found[LATER] == expected[LATER], "a write that was not flushed was not undone");
        assert!(found == expected, "something else has changed");
    }
}

#[test]
fn logged_clean_poisoned_line_passes_checkpoint() {
    let medium = medium();
    let pool = open(&medium);
    let volume = BlockVolume::open(&pool, "v").unwrap();
    medium.line.store(place_of(&medium, 3).plus(5 * 64).0, Ordering::Relaxed);
    let start = 3 * 4096 - 64;
    let error = volume.write(start as u64, &vec![7; FAILED.end - start], Fua::No);
    assert!(matches!(error, Err(DeviceError::Media { .. })), "{error:?}");
    // The line before, which has a record by now.
    let logged = place_of(&medium, 2).plus(63 * 64);
    medium.inner.inject_poison(logged, 1);
    medium.probe(logged, 1);
    volume.flush().unwrap();
    volume.write(LATER.start as u64, &[9; 64], Fua::No).unwrap();
    volume.flush().unwrap();
    medium.check().unwrap();
}

#[test]
fn leaf_lost_by_direct_write_passes_checkpoint() {
    let medium = medium_with(Delta::Off);
    let pool = open(&medium);
    let volume = BlockVolume::open(&pool, "v").unwrap();
    // The direct path takes known entries only.
    volume.read(0, &mut vec![0; 8 * 4096]).unwrap();
    let leaf = Entry::decode(medium.load_word(PoolOffset(HEADER + 192))).unwrap().unwrap().block;
    medium.record_line.store(leaf.offset().0, Ordering::Relaxed);
    let error = volume.write(0, &pattern(5, 2 * 4096), Fua::No);
    assert!(matches!(error, Err(DeviceError::Media { .. })), "{error:?}");
    volume.flush().unwrap();
    medium.check().unwrap();
}

#[test]
fn split_write_without_space_reports_partial() {
    let medium = medium();
    let pool = open(&medium);
    // A log with room for the lines of three blocks. No block is replaced without need.
    let options = BlockOptions {
        delta: Delta::Off,
        threshold_percent: 101,
        log_bytes: Some(2 * 16384),
        lanes: 1,
        ..BlockOptions::default()
    };
    let volume = BlockVolume::create(&pool, "w", 8 * 4096, &options).unwrap();
    volume.write(0, &pattern(2, 4 * 4096), Fua::Yes).unwrap();
    let others = BlockVolume::create(&pool, "others", 1 << 20, &options).unwrap();
    let mut at = 0;
    while others.write(at, &pattern(at, 4096), Fua::No).is_ok() {
        at += 4096;
    }
    others.discard(0, 4096, Fua::Yes).unwrap();
    assert_eq!(pool.allocator().free_blocks(), 1, "for the hole at the end of the request");
    let taker = Arc::clone(&pool);
    *medium.on_whole_store.lock().unwrap() =
        Some(Box::new(move || while taker.allocator().alloc().is_some() {}));
    let error = volume.write(0, &pattern(3, 5 * 4096), Fua::No).unwrap_err();
    *medium.on_whole_store.lock().unwrap() = None;
    assert!(matches!(error, DeviceError::Media { offset: 0, len: 20_480, .. }), "{error}");
    assert!(error.to_string().contains("done in part: no space"), "{error}");
    let mut back = vec![0; 5 * 4096];
    volume.read(0, &mut back).unwrap();
    assert!(back[..4 * 4096] == pattern(3, 5 * 4096)[..4 * 4096]);
    assert!(back[4 * 4096..] == [0; 4096]);
}

#[test]
fn send_of_poisoned_page_fails() {
    let medium = medium();
    let pool = open(&medium);
    let volume = BlockVolume::open(&pool, "v").unwrap();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    everbyte_device::send(&volume, (3 * 4096, 4096), b"ok", ours.as_fd()).unwrap();
    medium.sent_line.store(place_of(&medium, 3).plus(5 * 64).0, Ordering::Relaxed);
    let sent = everbyte_device::send(&volume, (3 * 4096, 4096), b"ok", ours.as_fd());
    assert!(matches!(sent, Err(SendError::Socket(_))), "{sent:?}");
    // A page failed elsewhere does not justify the end of a connection.
    everbyte_device::send(&volume, (4 * 4096, 4096), b"ok", ours.as_fd()).unwrap();
    let view = volume.view(6 * 4096, 4096).unwrap();
    medium.sent_line.store(place_of(&medium, 6).0, Ordering::Relaxed);
    let sent = view.send(ours.as_fd(), 0);
    assert!(matches!(sent, Err(ViewError::Memory(_))), "{sent:?}");
}
