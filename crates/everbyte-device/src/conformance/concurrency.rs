//! Many threads at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::twin::{Op, Twin};
use crate::device::{BlockDevice, Fua};

const BLOCK: usize = 4096;
const BLOCK_U64: u64 = 4096;

/// Areas end in the middle of blocks, so that neighbours meet in one block.
const AREA: usize = 9 * BLOCK + 517;
const THREADS: u64 = 4;
const OPS: usize = 300;

/// Small cells, assigned to the threads in turn, so every block has several owners.
const CELL: usize = 61;
const CELLS_PER_THREAD: u64 = 8;
const CELL_ROUNDS: u8 = 200;

/// Blocks of the torn-block test.
const TORN_BLOCKS: u64 = 4;
const TORN_WRITES: usize = 600;

pub(super) fn run(make: &dyn Fn(u64) -> Arc<dyn BlockDevice>) {
    disjoint(&make(64 * BLOCK_U64));
    neighbours(&*make(64 * BLOCK_U64));
    torn(&*make(2 * TORN_BLOCKS * BLOCK_U64));
}

/// Each thread has its own area and model. A read-modify-write of a neighbour loses no bytes.
fn disjoint(device: &Arc<dyn BlockDevice>) {
    thread::scope(|scope| {
        let area = |number: u64| {
            let device = Arc::clone(device);
            move || {
                let name = format!("disjoint areas, thread {number}");
                let mut twin = Twin::new(&name, device, number * AREA as u64, AREA);
                let mut rng = SmallRng::seed_from_u64(1000 + number);
                for _ in 0..OPS {
                    let op = Op::random(&mut rng, AREA);
                    twin.apply(op);
                }
                twin.check_all();
            }
        };
        join((0..THREADS).map(|number| scope.spawn(area(number))).collect());
    });
}

/// Waits for all threads. Panics with the first failure.
fn join(threads: Vec<thread::ScopedJoinHandle<'_, ()>>) {
    // All threads end before the panic, since they share the device.
    let ends: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
    if let Some(panic) = ends.into_iter().find_map(Result::err) {
        std::panic::resume_unwind(panic);
    }
}

/// Small writes into the same blocks by several threads all stay. Each thread checks each of its
/// cells before it writes it again.
fn neighbours(device: &dyn BlockDevice) {
    let started = AtomicU64::new(0);
    thread::scope(|scope| {
        let cells = |number: u64| {
            let started = &started;
            move || {
                // Else the first thread could be done before the last one starts.
                started.fetch_add(1, Ordering::Relaxed);
                while started.load(Ordering::Relaxed) < THREADS {
                    thread::yield_now();
                }
                for round in 0..=CELL_ROUNDS {
                    for cell in 0..CELLS_PER_THREAD {
                        let offset = (cell * THREADS + number) * CELL as u64;
                        rewrite(device, offset, round);
                    }
                }
            }
        };
        join((0..THREADS).map(|number| scope.spawn(cells(number))).collect());
    });
}

/// Expects the cell of the round before, and writes this round's.
fn rewrite(device: &dyn BlockDevice, offset: u64, round: u8) {
    let mut got = [0xee; CELL];
    let read = device.read(offset, &mut got);
    assert!(read.is_ok(), "conformance, neighbours: read at {offset} gave {read:?}");
    let before = round.saturating_sub(1);
    let wrong = got.iter().position(|&byte| byte != before);
    assert_eq!(
        wrong, None,
        "conformance, neighbours: a write near {offset} undid another thread's of {before:#04x}"
    );
    let written = device.write(offset, &[round; CELL], Fua::No);
    assert!(written.is_ok(), "conformance, neighbours: write at {offset} gave {written:?}");
}

/// Readers see every block of concurrent whole-block writes whole.
fn torn(device: &dyn BlockDevice) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = |number: u64| {
            let done = &done;
            move || {
                let mut rng = SmallRng::seed_from_u64(number);
                // At least once, even if the writer is quick.
                loop {
                    read_whole_blocks(device, &mut rng);
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
        };
        let readers = (0..2).map(|number| scope.spawn(reader(number))).collect();
        let mut rng = SmallRng::seed_from_u64(77);
        let mut data = vec![0; 3 * BLOCK];
        let mut failed = None;
        for _ in 0..TORN_WRITES {
            data.fill(rng.random());
            let offset = rng.random_range(0..TORN_BLOCKS) * BLOCK_U64;
            // Kept until the readers are told to end: a panic here would wait for them forever.
            failed = failed.or(device.write(offset, &data, Fua::No).err());
        }
        done.store(true, Ordering::Relaxed);
        join(readers);
        assert!(failed.is_none(), "conformance, torn blocks: write gave {failed:?}");
    });
}

fn read_whole_blocks(device: &dyn BlockDevice, rng: &mut SmallRng) {
    let offset = rng.random_range(0..TORN_BLOCKS) * BLOCK_U64;
    let mut got = vec![0; 2 * BLOCK];
    let read = device.read(offset, &mut got);
    assert!(read.is_ok(), "conformance, torn blocks: read at {offset} gave {read:?}");
    for block in got.chunks(BLOCK) {
        let torn = block.iter().position(|&byte| byte != block[0]);
        assert_eq!(torn, None, "conformance, torn blocks: a block read at {offset} changes");
    }
}
