//! Requests of some kinds to block volumes and to a cache, for tools with counts of instructions,
//! locked instructions and lines of memory. `tests/e2e/request-counts.py` runs it.
//! `cargo run --release -p everbyte --example requests KIND,... REQUESTS THREADS`
//!
//! The program first writes all blocks. Then, for each kind, each thread in turn makes its
//! requests, in its own blocks. The program stores to a word before and after each turn, as a mark
//! in a trace of memory.

#![expect(clippy::print_stdout, reason = "it says what it is about to do")]

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use everbyte::block::{BlockOptions, BlockVolume, Delta};
use everbyte::cache::{CacheOptions, CacheVolume};
use everbyte::device::DeviceError;
use everbyte::{BlockDevice, Fua, Pool};

const BLOCK: usize = 4096;
/// Bytes of a write of a part of a block, and of a line of it.
const PART: usize = 512;
const LINE: usize = 64;
/// Bytes of a write of several blocks, the number of places of a thread for such writes, and their distance.
const RUN: usize = 4 * BLOCK;
const RUNS: u64 = 96;
const RUN_STRIDE: u64 = 37;
/// Blocks of each thread.
const BLOCKS: u64 = 96;
/// Distance from the first block of a thread to the first block of the next thread. The next
/// thread's blocks are in another leaf of the map, and the locks of two threads' blocks share no
/// line.
const APART: u64 = 512 + BLOCKS;
/// Distance between two requests of a thread: it hides the order of the blocks from the processor's
/// prefetcher.
const STRIDE: u64 = 37;

/// Value of the bytes of requests, except the bytes that distinguish them.
const FILL: u8 = 7;

/// Stored to where the requests of a thread begin and end.
static MARK: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Copy)]
enum Kind {
    Rewrite,
    Part,
    RewriteDurably,
    PartDurably,
    /// A rewrite of several blocks.
    Run,
    RunDurably,
    Read,
    /// A write of a part, compared with the bytes written since the last flush. It differs in all
    /// lines.
    Again,
    /// The same write without a difference.
    Same,
    /// A read of a page in the DRAM of a cache.
    Hit,
    /// A write of a dirty page in the DRAM of a cache.
    WriteHit,
}

impl Kind {
    /// Returns true if its blocks are to be written in the same epoch before.
    fn is_second(self) -> bool {
        matches!(self, Self::Again | Self::Same | Self::WriteHit)
    }
}

fn kind_of(name: &str) -> Option<Kind> {
    Some(match name {
        "rewrite" => Kind::Rewrite,
        "part" => Kind::Part,
        "rewrite-fua" => Kind::RewriteDurably,
        "part-fua" => Kind::PartDurably,
        "run" => Kind::Run,
        "run-fua" => Kind::RunDurably,
        "read" => Kind::Read,
        "again" => Kind::Again,
        "same" => Kind::Same,
        "hit" => Kind::Hit,
        "write-hit" => Kind::WriteHit,
        _ => return None,
    })
}

/// Returns the place of a request of several blocks. Each place gets one request until all have one.
fn run_at(first: u64, request: u64) -> u64 {
    first * BLOCK as u64 + request * RUN_STRIDE % RUNS * RUN as u64
}

/// Makes `count` requests in the blocks from `first` on.
#[inline(never)]
fn make_requests(
    disk: &dyn BlockDevice,
    kind: Kind,
    first: u64,
    count: u64,
    bytes: &mut [u8; BLOCK],
) -> Result<(), DeviceError> {
    for request in 0..count {
        let offset = (first + request * STRIDE % BLOCKS) * BLOCK as u64;
        let stamp = (request + 1).to_le_bytes();
        match kind {
            Kind::Same => {}
            Kind::Again => {
                for line in bytes[..PART].chunks_exact_mut(LINE) {
                    line[..8].copy_from_slice(&stamp);
                }
            }
            // As with a client's request, the bytes differ from the stored bytes.
            _ => bytes[..8].copy_from_slice(&stamp),
        }
        match kind {
            Kind::Rewrite | Kind::WriteHit => disk.write(offset, bytes, Fua::No)?,
            Kind::Part | Kind::Again | Kind::Same => {
                disk.write(offset + 1024, &bytes[..PART], Fua::No)?;
            }
            Kind::RewriteDurably => disk.write(offset, bytes, Fua::Yes)?,
            Kind::PartDurably => disk.write(offset + 1024, &bytes[..PART], Fua::Yes)?,
            Kind::Run => disk.write(run_at(first, request), &[FILL; RUN], Fua::No)?,
            Kind::RunDurably => disk.write(run_at(first, request), &[FILL; RUN], Fua::Yes)?,
            Kind::Read | Kind::Hit => disk.read(offset, bytes)?,
        }
    }
    Ok(())
}

/// The target volumes of the requests.
struct Disks {
    disk: BlockVolume,
    /// It compares all writes.
    compared: BlockVolume,
    /// It has room for all its pages in DRAM. Its pool is another one: its threads allocate there.
    cache: CacheVolume,
}

impl Disks {
    /// Makes them, of `size_bytes` each, in `folder`.
    fn new(folder: &Path, size_bytes: u64) -> Result<Self, Box<dyn Error>> {
        let pools = Pool::builder();
        let pools = pools.size(32 << 20).checkpoint_interval(Duration::from_secs(3600));
        let pool = pools.create(folder.join("pool"))?;
        let compared = BlockOptions::new().delta(Delta::On);
        let slow = folder.join("slow");
        File::create(&slow)?.set_len(size_bytes)?;
        let in_dram = CacheOptions::new().dram_bytes(size_bytes);
        let cache_pool = pools.create(folder.join("cache"))?;
        Ok(Self {
            disk: pool.create_block("disk", size_bytes)?,
            compared: pool.create_block_with("compared", size_bytes, &compared)?,
            cache: cache_pool.create_cache_with("cache", &slow, size_bytes, &in_dram)?,
        })
    }

    fn all(&self) -> [&dyn BlockDevice; 3] {
        [&self.disk, &self.compared, &self.cache]
    }

    /// The target device of requests of `kind`.
    fn of(&self, kind: Kind) -> &dyn BlockDevice {
        match kind {
            Kind::Again | Kind::Same => &self.compared,
            Kind::Hit | Kind::WriteHit => &self.cache,
            _ => &self.disk,
        }
    }
}

/// Writes `byte` all over the blocks of `threads` threads.
fn fill(disk: &dyn BlockDevice, threads: u64, byte: u8) -> Result<(), DeviceError> {
    for block in (0..threads * APART).filter(|block| block % APART < BLOCKS) {
        disk.write(block * BLOCK as u64, &[byte; BLOCK], Fua::No)?;
    }
    Ok(())
}

/// Does a thread's part on each command.
fn work(
    disks: &Disks,
    first: u64,
    count: u64,
    turns: &mpsc::Receiver<(Kind, bool)>,
    done: &mpsc::Sender<Result<(), DeviceError>>,
) {
    for (kind, is_marked) in turns {
        let mut bytes = [FILL; BLOCK];
        if is_marked {
            MARK.fetch_add(1, Ordering::SeqCst);
        }
        let made = make_requests(disks.of(kind), kind, first, count, &mut bytes);
        if is_marked {
            MARK.fetch_add(1, Ordering::SeqCst);
        }
        if done.send(made).is_err() {
            return;
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kinds, count, threads] = arguments.as_slice() else {
        return Err("three arguments: KIND,... REQUESTS THREADS".into());
    };
    let kinds: Option<Vec<Kind>> = kinds.split(',').map(kind_of).collect();
    let kinds = kinds.ok_or(
        "KIND is rewrite, part, rewrite-fua, part-fua, run, run-fua, read, again, same, hit or write-hit",
    )?;
    let (count, threads): (u64, u64) = (count.parse()?, threads.parse()?);

    let folder = tempfile::tempdir_in("/dev/shm")?;
    let disks = Disks::new(folder.path(), threads * APART * BLOCK as u64)?;
    for disk in disks.all() {
        fill(disk, threads, 1)?;
        disk.flush()?;
    }
    // Requests of several blocks need more of them.
    for run in (0..threads * RUNS).map(|run| run_at(run / RUNS * APART, run % RUNS)) {
        disks.disk.write(run, &[1; RUN], Fua::No)?;
    }
    disks.disk.flush()?;
    println!("mark {:#x}", std::ptr::from_ref(&MARK).addr());

    std::thread::scope(|scope| {
        let (done_sender, done) = mpsc::channel();
        let senders: Vec<_> = (0..threads)
            .map(|thread| {
                let (sender, turns) = mpsc::channel();
                let (disks, done_sender) = (&disks, done_sender.clone());
                scope.spawn(move || work(disks, thread * APART, count, &turns, &done_sender));
                sender
            })
            .collect();
        // The first run of a thread has one-time costs outside the requests.
        for (kind, is_marked) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
            if kind.is_second() {
                // The blocks of the current epoch hold other bytes before the last ones.
                fill(disks.of(kind), threads, FILL + 1)?;
                fill(disks.of(kind), threads, FILL)?;
            }
            for turn in &senders {
                turn.send((kind, is_marked))?;
                done.recv()??;
            }
            // Each turn is then the first to change anything in its epoch.
            for disk in disks.all() {
                disk.flush()?;
            }
        }
        Ok(())
    })
}
