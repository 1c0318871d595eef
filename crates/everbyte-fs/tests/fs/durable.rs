//! Durable writes without a checkpoint: after a crash they lie over the file of the last checkpoint.

use std::collections::BTreeSet;
use std::sync::Arc;

use everbyte_crash::{Closures, Crash, Explorer, Log, SimMedium};
use everbyte_fs::{FileSystem, FileType, FsOptions, InodeNo, Name, NewInode};
use everbyte_media::{BLOCK_U64, Medium};
use everbyte_testkit::crash_seed;

use crate::crash::sound;
use crate::real::Real;

const POOL_BLOCKS: u64 = 160;

/// Offsets of the first byte after the hole: in a block of the inode's entries, and in a block below the
/// map's nodes.
const IN_INODE: u64 = 0;
const IN_NODES: u64 = 16 * BLOCK_U64;

/// An operation on the file.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize, usize, u8),
    Durably(usize, usize, u8),
    Truncate(usize),
    Sync,
}
use Step::{Durably, Sync, Truncate, Write};

/// Allowed bytes of the file after a crash.
type AllowedBytes = BTreeSet<Vec<u8>>;

fn name() -> Name<'static> {
    Name::new(b"f").unwrap()
}

fn find(fs: &FileSystem<SimMedium>) -> InodeNo {
    fs.lookup(fs.root(), name()).unwrap().inode
}

/// Creates a durable file of 9000 bytes.
fn prepare(medium: &Arc<SimMedium>, base: u64) {
    let options = FsOptions { lanes: 1, log_bytes: Some(64 << 10), ..FsOptions::default() };
    let real = Real::make(medium, &options);
    let new = NewInode {
        kind: FileType::Regular,
        permissions: 0o644,
        umask: 0,
        uid: 0,
        gid: 0,
        device: 0,
        target: &[],
    };
    let inode = real.fs.create_inode(real.fs.root(), name(), &new).unwrap().inode;
    real.fs.write(inode, base, &[1; 9000]).unwrap();
    real.fs.sync().unwrap();
}

/// `bytes` with `byte` at `offset .. offset + len`; `None` if this exceeds their end.
fn over(bytes: &[u8], (offset, len, byte): (usize, usize, u8)) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    bytes.get_mut(offset..offset + len)?.fill(byte);
    Some(bytes)
}

fn run(medium: &Arc<SimMedium>, log: &Log<AllowedBytes>, (steps, base): (&[Step], u64)) {
    let mut now = vec![1; 9000];
    let mut allowed = AllowedBytes::from([now.clone()]);
    log.note(allowed.clone());
    let real = Real::open(medium).unwrap();
    let (fs, inode) = (&real.fs, find(&real.fs));
    for step in steps {
        let after: AllowedBytes = match *step {
            Write(offset, len, byte) | Durably(offset, len, byte) => {
                now.resize(now.len().max(offset + len), 0);
                now[offset..offset + len].fill(byte);
                let over_all = allowed.iter().filter_map(|old| over(old, (offset, len, byte)));
                over_all.chain([now.clone()]).collect()
            }
            Truncate(size) => {
                now.resize(size, 0);
                allowed.clone()
            }
            Sync => AllowedBytes::from([now.clone()]),
        };
        let is_durable = matches!(step, Durably(..) | Sync);
        if is_durable {
            log.note(allowed.union(&after).cloned().collect());
        }
        match *step {
            Write(offset, len, byte) => {
                drop(fs.write(inode, base + offset as u64, &vec![byte; len]))
            }
            Durably(offset, len, byte) => {
                let data = vec![byte; len];
                assert_eq!(fs.write_durably(inode, base + offset as u64, &data).unwrap(), len);
            }
            Truncate(size) => drop(fs.truncate(inode, base + size as u64).unwrap()),
            Sync => fs.sync().unwrap(),
        }
        if is_durable {
            allowed = after;
            log.note(allowed.clone());
        }
    }
}

fn check(real: Real<SimMedium>, crash: &Crash<'_, AllowedBytes>, base: u64) -> Result<(), String> {
    sound(&real)?;
    let inode = find(&real.fs);
    let mut found = vec![0; 20_000];
    let len = real.fs.read(inode, base, &mut found).map_err(|error| error.to_string())?;
    found.truncate(len);
    let allowed = &crash.events.last().expect("noted before the opening").event;
    if allowed.contains(&found) {
        return Ok(());
    }
    let changes = found.windows(2).enumerate().filter(|(_, pair)| pair[0] != pair[1]);
    let changes: Vec<(usize, u8)> = changes.map(|(at, pair)| (at + 1, pair[1])).collect();
    Err(format!("{len} bytes that begin with {} and change at {changes:?}", found[0]))
}

fn explored(steps: &[Step], base: u64, seed: u64) -> Result<String, String> {
    let scenario = Closures::new(
        |medium, log| run(medium, log, (steps, base)),
        |medium| Real::open(medium).map_err(|error| error.to_string()),
        |real, crash| check(real, crash, base),
    )
    .medium_len(POOL_BLOCKS * BLOCK_U64)
    .prepared(move |medium| prepare(medium, base));
    let explorer = Explorer { seed, nested_depth: 0, runs_max: 6, ..Explorer::default() };
    let summary = explorer.explore(&scenario).map_err(|failure| failure.to_string())?;
    Ok(summary.to_string())
}

#[test]
fn durable_write_survives_every_crash() {
    let workloads: [&[Step]; 8] = [
        &[Truncate(12_000), Durably(9000, 50, 2)],
        &[Durably(100, 50, 2), Durably(4000, 90, 3)],
        &[Durably(100, 50, 2), Write(120, 10, 3), Durably(110, 30, 4), Sync, Durably(0, 8, 5)],
        &[Write(4200, 300, 2), Durably(4300, 64, 3), Durably(8192, 100, 4)],
        &[Durably(0, 4096, 2), Write(0, 4096, 3), Durably(4096, 4096, 4)],
        &[Truncate(5000), Durably(4900, 90, 2), Sync, Durably(4900, 99, 3)],
        &[Truncate(12_000), Durably(9000, 50, 2), Write(10_000, 9, 3), Durably(11_990, 20, 4)],
        &[Write(100, 4, 2), Sync, Durably(200, 300, 3), Truncate(150), Durably(0, 100, 4)],
    ];
    for base in [IN_INODE, IN_NODES] {
        for steps in workloads {
            let summary = explored(steps, base, crash_seed());
            let summary = summary.unwrap_or_else(|e| panic!("{base}: {steps:?}: {e}"));
            println!("{base}: {steps:?}: {summary}");
        }
    }
}

#[test]
fn small_durable_overwrite_costs_one_fence() {
    let medium = Arc::new(SimMedium::new(POOL_BLOCKS * BLOCK_U64));
    prepare(&medium, IN_INODE);
    let real = Real::open(&medium).unwrap();
    let (fs, inode) = (&real.fs, find(&real.fs));
    // The first round also logs the change of the times, with another fence.
    for (round, fences) in [(0, 2), (1, 1), (2, 1)] {
        let (epoch, before) = (fs.volume().completed_epoch(), medium.counters());
        fs.write_durably(inode, 5000, &[round + 5; 64]).unwrap();
        assert_eq!(medium.counters().since(&before).fences, fences);
        assert_eq!(fs.volume().completed_epoch(), epoch);
    }
    let epoch = fs.volume().completed_epoch();
    fs.write_durably(inode, 9000, &[1]).unwrap();
    assert!(fs.volume().completed_epoch() > epoch, "a file that grows needs a checkpoint");
}
