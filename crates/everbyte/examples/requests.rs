//! Requests of some kinds to a block volume, for tools that count what they do: instructions, locked
//! instructions, lines of memory. `tests/e2e/request-counts.py` runs it.
//! `cargo run --release -p everbyte --example requests KIND,... REQUESTS THREADS`
//!
//! All blocks are written first. Then, for each kind, each thread in turn makes its requests, in
//! blocks of its own. A word is stored to before each of these turns and after it, so that a trace of memory
//! shows where they are.

#![expect(clippy::print_stdout, reason = "it says what it is about to do")]

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use everbyte::block::{BlockOptions, BlockVolume, Delta};
use everbyte::device::DeviceError;
use everbyte::{BlockDevice, Fua, Pool};

const BLOCK: usize = 4096;
/// Bytes of a write of a part of a block, and of a line of it.
const PART: usize = 512;
const LINE: usize = 64;
/// Blocks of each thread.
const BLOCKS: u64 = 96;
/// From the first of them to the first of the next thread's: in another leaf of the map, and so that no lock of
/// one thread's blocks lies in a line with one of another's.
const APART: u64 = 512 + BLOCKS;
/// Between two requests of a thread: so that its blocks come in no order that the processor likes.
const STRIDE: u64 = 37;

/// Value of the bytes of requests, beside those that tell them from others.
const FILL: u8 = 7;

/// Stored to where the requests of a thread begin and end.
static MARK: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Copy)]
enum Kind {
    Rewrite,
    Part,
    RewriteDurably,
    PartDurably,
    Read,
    /// A part that is compared with what was written since the last flush, and differs in all lines.
    Again,
    /// The same that does not differ.
    Same,
}

impl Kind {
    /// Returns true if it is made to the volume that compares all writes.
    fn is_compared(self) -> bool {
        matches!(self, Self::Again | Self::Same)
    }
}

fn kind_of(name: &str) -> Option<Kind> {
    Some(match name {
        "rewrite" => Kind::Rewrite,
        "part" => Kind::Part,
        "rewrite-fua" => Kind::RewriteDurably,
        "part-fua" => Kind::PartDurably,
        "read" => Kind::Read,
        "again" => Kind::Again,
        "same" => Kind::Same,
        _ => return None,
    })
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
            // As a client's, the bytes differ from what is stored.
            _ => bytes[..8].copy_from_slice(&stamp),
        }
        match kind {
            Kind::Rewrite => disk.write(offset, bytes, Fua::No)?,
            Kind::Part | Kind::Again | Kind::Same => {
                disk.write(offset + 1024, &bytes[..PART], Fua::No)?;
            }
            Kind::RewriteDurably => disk.write(offset, bytes, Fua::Yes)?,
            Kind::PartDurably => disk.write(offset + 1024, &bytes[..PART], Fua::Yes)?,
            Kind::Read => disk.read(offset, bytes)?,
        }
    }
    Ok(())
}

/// The volumes that requests are made to.
struct Disks {
    disk: BlockVolume,
    /// It compares all writes.
    compared: BlockVolume,
}

/// Writes `byte` all over the blocks of `threads` threads.
fn fill(disk: &BlockVolume, threads: u64, byte: u8) -> Result<(), DeviceError> {
    for block in (0..threads * APART).filter(|block| block % APART < BLOCKS) {
        disk.write(block * BLOCK as u64, &[byte; BLOCK], Fua::No)?;
    }
    Ok(())
}

/// Does a thread's part whenever it is told to.
fn work(
    disks: &Disks,
    first: u64,
    count: u64,
    turns: &mpsc::Receiver<(Kind, bool)>,
    done: &mpsc::Sender<Result<(), DeviceError>>,
) {
    for (kind, is_marked) in turns {
        let mut bytes = [FILL; BLOCK];
        let disk = if kind.is_compared() { &disks.compared } else { &disks.disk };
        if is_marked {
            MARK.fetch_add(1, Ordering::SeqCst);
        }
        let made = make_requests(disk, kind, first, count, &mut bytes);
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
    let kinds = kinds.ok_or("KIND is rewrite, part, rewrite-fua, part-fua, read, again or same")?;
    let (count, threads): (u64, u64) = (count.parse()?, threads.parse()?);

    let folder = tempfile::tempdir_in("/dev/shm")?;
    let never = Duration::from_secs(3600);
    let pool = Pool::builder()
        .size(32 << 20)
        .checkpoint_interval(never)
        .create(folder.path().join("pool"))?;
    let size_bytes = threads * APART * BLOCK as u64;
    let compared = BlockOptions { delta: Delta::On, ..BlockOptions::default() };
    let disks = Disks {
        disk: pool.create_block("disk", size_bytes)?,
        compared: pool.create_block_with("compared", size_bytes, &compared)?,
    };
    for disk in [&disks.disk, &disks.compared] {
        fill(disk, threads, 1)?;
        disk.flush()?;
    }
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
        // What a thread does once is not what a request does.
        for (kind, is_marked) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
            if kind.is_compared() {
                // Blocks of the epoch's own, which hold other bytes before the last ones.
                fill(&disks.compared, threads, FILL + 1)?;
                fill(&disks.compared, threads, FILL)?;
            }
            for turn in &senders {
                turn.send((kind, is_marked))?;
                done.recv()??;
            }
            // So that each turn is the first of an epoch to change anything.
            disks.disk.flush()?;
            disks.compared.flush()?;
        }
        Ok(())
    })
}
