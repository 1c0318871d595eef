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

use everbyte::block::BlockVolume;
use everbyte::device::DeviceError;
use everbyte::{BlockDevice, Fua, Pool};

const BLOCK: usize = 4096;
/// Blocks of each thread.
const BLOCKS: u64 = 96;
/// From the first of them to the first of the next thread's: in another leaf of the map, and so that no lock of
/// one thread's blocks lies in a line with one of another's.
const APART: u64 = 512 + BLOCKS;
/// Between two requests of a thread: so that its blocks come in no order that the processor likes.
const STRIDE: u64 = 37;

/// Stored to where the requests of a thread begin and end.
static MARK: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Copy)]
enum Kind {
    Rewrite,
    Part,
    RewriteDurably,
    PartDurably,
    Read,
}

fn kind_of(name: &str) -> Option<Kind> {
    Some(match name {
        "rewrite" => Kind::Rewrite,
        "part" => Kind::Part,
        "rewrite-fua" => Kind::RewriteDurably,
        "part-fua" => Kind::PartDurably,
        "read" => Kind::Read,
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
        // As a client's, the bytes differ from what is stored.
        bytes[..8].copy_from_slice(&(request + 1).to_le_bytes());
        match kind {
            Kind::Rewrite => disk.write(offset, bytes, Fua::No)?,
            Kind::Part => disk.write(offset + 1024, &bytes[..512], Fua::No)?,
            Kind::RewriteDurably => disk.write(offset, bytes, Fua::Yes)?,
            Kind::PartDurably => disk.write(offset + 1024, &bytes[..512], Fua::Yes)?,
            Kind::Read => disk.read(offset, bytes)?,
        }
    }
    Ok(())
}

/// Does a thread's part whenever it is told to.
fn work(
    disk: &BlockVolume,
    first: u64,
    count: u64,
    turns: &mpsc::Receiver<(Kind, bool)>,
    done: &mpsc::Sender<Result<(), DeviceError>>,
) {
    let mut bytes = [7; BLOCK];
    for (kind, is_marked) in turns {
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
    let kinds = kinds.ok_or("KIND is rewrite, part, rewrite-fua, part-fua or read")?;
    let (count, threads): (u64, u64) = (count.parse()?, threads.parse()?);

    let folder = tempfile::tempdir_in("/dev/shm")?;
    let never = Duration::from_secs(3600);
    let pool = Pool::builder()
        .size(32 << 20)
        .checkpoint_interval(never)
        .create(folder.path().join("pool"))?;
    let disk = pool.create_block("disk", threads * APART * BLOCK as u64)?;
    for block in (0..threads * APART).filter(|block| block % APART < BLOCKS) {
        disk.write(block * BLOCK as u64, &[1; BLOCK], Fua::No)?;
    }
    disk.flush()?;
    println!("mark {:#x}", std::ptr::from_ref(&MARK).addr());

    std::thread::scope(|scope| {
        let (done_sender, done) = mpsc::channel();
        let senders: Vec<_> = (0..threads)
            .map(|thread| {
                let (sender, turns) = mpsc::channel();
                let (disk, done_sender) = (&disk, done_sender.clone());
                scope.spawn(move || work(disk, thread * APART, count, &turns, &done_sender));
                sender
            })
            .collect();
        // What a thread does once is not what a request does.
        for (kind, is_marked) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
            for turn in &senders {
                turn.send((kind, is_marked))?;
                done.recv()??;
            }
            // So that each turn is the first of an epoch to change anything.
            disk.flush()?;
        }
        Ok(())
    })
}
