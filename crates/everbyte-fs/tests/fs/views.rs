//! Views of files: snapshots with a time limit.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use everbyte_crash::SimMedium;
use everbyte_fs::{
    Allocation, FileSystem, FsError, FsOptions, InodeNo, Name, PinError, PinLimits, View, ViewError,
};
use everbyte_media::{BLOCK, BLOCK_U64, Mapped, MediaOptions, Medium, Piece};

use crate::operations::{Op, Subject, written};
use crate::real::{Real, open_pool};

const LARGE_LIMITS: PinLimits =
    PinLimits { pins_max: 8, bytes_max: 64 << 10, time_max: Duration::from_secs(1 << 20) };

/// A durable file `f` of four blocks with position-dependent bytes.
fn prepared<M: Medium>(medium: &Arc<M>) -> (Arc<FileSystem<M>>, InodeNo) {
    let options = FsOptions { lanes: 1, log_bytes: Some(1 << 20), ..FsOptions::default() };
    let mut real = Real::make(medium, &options);
    real.make(&Op::Create(vec!["f"], 0o600)).unwrap();
    let inode = find(&real.fs);
    real.fs.write(inode, 0, &bytes()).unwrap();
    real.fs.sync().unwrap();
    real.fs.volume().set_pin_limits(LARGE_LIMITS);
    (real.fs, inode)
}

fn simulated() -> (Arc<FileSystem<SimMedium>>, InodeNo) {
    prepared(&Arc::new(SimMedium::new(8 << 20)))
}

fn find<M: Medium>(fs: &FileSystem<M>) -> InodeNo {
    fs.lookup(fs.root(), Name::new(b"f").unwrap()).unwrap().inode
}

fn bytes() -> Vec<u8> {
    written(0, 4 * BLOCK, 90)
}

fn seen<M: Medium>(view: &View<M>) -> Vec<u8> {
    let mut seen = vec![0; view.len()];
    assert_eq!(view.read(0, &mut seen).unwrap(), seen.len());
    seen
}

fn is_sound<M: Medium>(fs: &FileSystem<M>) {
    let report = fs.pool().check().unwrap();
    assert!(report.is_clean(), "{report:?}");
}

/// Free blocks of the pool after all possible frees.
fn free_blocks<M: Medium>(fs: &FileSystem<M>) -> u64 {
    is_sound(fs);
    fs.pool().allocator().free_blocks()
}

#[test]
fn view_is_a_snapshot() {
    let (fs, inode) = simulated();
    let view = fs.view(inode, 0, 1 << 20).unwrap();
    assert_eq!(view.len(), 4 * BLOCK, "no more than the file has");
    assert!(matches!(view.pieces(), [Piece::Stored { len: 16384, .. }]), "{:?}", view.pieces());
    fs.write(inode, 100, &[1; 7]).unwrap();
    fs.write(inode, 4096, &[2; 4096]).unwrap();
    fs.write_durably(inode, 8200, &[3; 64]).unwrap();
    fs.allocate(inode, (12_300, 10), Allocation::Zero, false).unwrap();
    assert_eq!(seen(&view), bytes());
    fs.sync().unwrap();
    fs.write(inode, 100, &[4; 7]).unwrap();
    assert_eq!(seen(&view), bytes());
    let mut now = bytes();
    now[100..107].fill(4);
    now[4096..8192].fill(2);
    now[8200..8264].fill(3);
    now[12_300..12_310].fill(0);
    let mut read = vec![0; now.len()];
    fs.read(inode, 0, &mut read).unwrap();
    assert!(read == now, "the file has what was written");
    is_sound(&fs);
}

/// An unpinned block of the open epoch is refilled in place, and is free immediately after its removal.
#[test]
fn view_pins_fresh_blocks() {
    let (fs, inode) = simulated();
    fs.write(inode, 0, &[7; 4096]).unwrap();
    let view = fs.view(inode, 0, 4096).unwrap();
    fs.write(inode, 0, &[8; 4096]).unwrap();
    fs.write(inode, 9, &[9; 5]).unwrap();
    assert_eq!(seen(&view), [7; 4096]);
    for round in 0..200 {
        fs.write(inode, 4096, &[round; 4096]).unwrap();
        fs.truncate(inode, 4096).unwrap();
    }
    assert_eq!(seen(&view), [7; 4096]);
}

#[test]
fn zeroed_block_is_not_filled_under_a_view() {
    let (fs, inode) = simulated();
    let view = fs.view(inode, 0, 4 * BLOCK).unwrap();
    fs.allocate(inode, (0, 4 * BLOCK_U64), Allocation::Zero, false).unwrap();
    fs.sync().unwrap();
    fs.write(inode, 5, &[1; 9000]).unwrap();
    assert_eq!(seen(&view), bytes());
    let zeroes = fs.view(inode, 12_288, BLOCK).unwrap();
    assert!(matches!(zeroes.pieces(), [Piece::Zeroes { len: BLOCK }]), "no block, no pin");
    fs.write(inode, 12_288, &[1; 10]).unwrap();
    assert_eq!(seen(&zeroes), [0; BLOCK]);
}

#[test]
fn block_reuse_waits_for_the_view() {
    type Change = fn(&FileSystem<SimMedium>, InodeNo) -> Result<(), FsError>;
    let changes: [Change; 4] = [
        |fs, inode| fs.truncate(inode, 0).map(drop),
        |fs, _| fs.unlink(fs.root(), Name::new(b"f").unwrap()),
        |fs, inode| fs.allocate(inode, (0, 4 * BLOCK_U64), Allocation::Punch, true),
        |fs, inode| fs.write(inode, 0, &[9; 4 * BLOCK]).map(drop),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let (fs, inode) = simulated();
        let (view, other) = (fs.view(inode, 0, 1 << 20).unwrap(), fs.view(inode, 0, 1).unwrap());
        let before = free_blocks(&fs);
        change(&fs, inode).unwrap();
        fs.sync().unwrap();
        let held = free_blocks(&fs);
        // Allocates and frees all free blocks several times.
        for _ in 0..3 {
            let new = Op::Create(vec!["n"], 0o600);
            let mut real = Real::sharing(Arc::clone(&fs));
            real.make(&new).unwrap();
            let inode = fs.lookup(fs.root(), Name::new(b"n").unwrap()).unwrap().inode;
            for at in 0..100 {
                fs.write(inode, at * BLOCK_U64, &[0xaa; BLOCK]).unwrap();
            }
            real.make(&Op::Unlink(vec!["n"])).unwrap();
            fs.sync().unwrap();
        }
        assert_eq!(seen(&view), bytes(), "change {number}");
        drop(view);
        assert_eq!(seen(&other), bytes()[..1]);
        drop(other);
        let freed = if number == 3 { before } else { before + 4 };
        assert_eq!(free_blocks(&fs), freed, "change {number}: {held} while they were held");
        assert!(held <= freed - 4, "change {number}");
    }
}

#[test]
fn expired_view_is_refused_before_reuse() {
    let (fs, inode) = simulated();
    fs.volume().set_pin_limits(PinLimits { time_max: Duration::ZERO, ..LARGE_LIMITS });
    let view = fs.view(inode, 0, 4 * BLOCK).unwrap();
    assert!(view.has_ended());
    assert!(matches!(view.read(0, &mut [0; 9]), Err(ViewError::Ended)));
    let (socket, _peer) = UnixStream::pair().unwrap();
    assert!(matches!(view.send(socket.as_fd(), 0), Err(ViewError::Ended)));
    let before = free_blocks(&fs);
    fs.truncate(inode, 0).unwrap();
    fs.sync().unwrap();
    assert_eq!(free_blocks(&fs), before + 4, "the checkpoint did not wait for it");
    drop(view);
    assert_eq!(free_blocks(&fs), before + 4, "and they are freed once");
}

#[test]
fn view_count_and_bytes_are_limited() {
    let (fs, inode) = simulated();
    let limits = PinLimits { pins_max: 3, bytes_max: 5 * BLOCK_U64, ..LARGE_LIMITS };
    fs.volume().set_pin_limits(limits);
    let first = fs.view(inode, 0, 4 * BLOCK).unwrap();
    let second = fs.view(inode, 4095, 1).unwrap();
    let (bytes, bytes_max) = (2 * BLOCK_U64, 5 * BLOCK_U64);
    let refused = fs.view(inode, 4095, 2).map(drop).unwrap_err();
    let too_large = PinError::TooLarge { bytes, bytes_max };
    assert!(matches!(&refused, FsError::Pin(error) if *error == too_large), "{refused}");
    assert_eq!(refused.errno(), 11);
    drop(second);
    let empty = [fs.view(inode, 1 << 20, 5).unwrap(), fs.view(inode, 0, 0).unwrap()];
    let refused = fs.view(inode, 0, 0).map(drop).unwrap_err();
    assert!(matches!(refused, FsError::Pin(PinError::TooMany { max: 3 })), "{refused}");
    drop(first);
    assert!(fs.view(inode, 4095, 2).is_ok());
    fs.volume().set_pin_limits(PinLimits { pins_max: 2, time_max: Duration::ZERO, ..limits });
    drop(empty);
    let late = [fs.view(inode, 0, 1).unwrap(), fs.view(inode, 0, 1).unwrap()];
    assert!(fs.view(inode, 0, 1).is_ok(), "those whose time is over make room");
    drop(late);
}

#[test]
fn write_without_space_ends_views() {
    let (fs, inode) = simulated();
    let view = fs.view(inode, 0, 4 * BLOCK).unwrap();
    let mut real = Real::sharing(Arc::clone(&fs));
    fs.volume().set_pin_limits(LARGE_LIMITS);
    real.make(&Op::Create(vec!["fill"], 0o600)).unwrap();
    let fill = fs.lookup(fs.root(), Name::new(b"fill").unwrap()).unwrap().inode;
    let mut at = 0;
    while fs.write(fill, at, &[1; BLOCK]).is_ok() {
        at += BLOCK_U64;
    }
    assert!(view.has_ended(), "the last write that fitted, or the first that did not, needed it");
    let view = fs.view(inode, 0, 4 * BLOCK).unwrap();
    assert_eq!(seen(&view), bytes());
    fs.write(inode, 100, &[5; 20]).unwrap();
    assert!(matches!(view.check(), Err(ViewError::Ended)));
    let mut read = [0; 20];
    fs.read(inode, 100, &mut read).unwrap();
    assert_eq!(read, [5; 20]);
    is_sound(&fs);
}

#[test]
fn view_outlives_its_file_system() {
    let medium = Arc::new(SimMedium::new(8 << 20));
    let (fs, inode) = prepared(&medium);
    let view = fs.view(inode, 0, 4 * BLOCK).unwrap();
    let pool = Arc::clone(fs.pool());
    drop(fs);
    let fs = FileSystem::open(&pool, "files").unwrap();
    fs.truncate(inode, 0).unwrap();
    fs.sync().unwrap();
    fs.write(inode, 0, &[1; 4 * BLOCK]).unwrap();
    assert_eq!(seen(&view), bytes(), "another opening knows it");
    drop(fs);
    pool.close().unwrap();
    assert!(matches!(view.check(), Err(ViewError::Ended)));
    drop(view);
    drop(pool);
    let pool = open_pool(&medium).unwrap();
    assert!(pool.recovery().was_clean);
    let report = pool.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn volume_deletion_ends_views() {
    let (fs, inode) = simulated();
    let view = fs.view(inode, 0, 4 * BLOCK).unwrap();
    fs.truncate(inode, 0).unwrap();
    fs.sync().unwrap();
    fs.pool().delete_volume("files").unwrap();
    assert!(matches!(view.check(), Err(ViewError::Ended)));
    let refused = fs.view(inode, 0, 1).map(drop);
    assert!(refused.is_err(), "the volume is gone");
    let report = fs.pool().check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    drop(view);
    assert!(fs.pool().check().unwrap().is_clean());
}

#[test]
fn view_is_sent_to_a_socket_without_copy() {
    let medium = Mapped::anonymous(8 << 20, &MediaOptions::default()).unwrap();
    let (fs, inode) = prepared(&Arc::new(medium));
    fs.truncate(inode, 5 * BLOCK_U64).unwrap();
    let view = fs.view(inode, 4000, 1 << 20).unwrap();
    fs.truncate(inode, 0).unwrap();
    let (mut peer, socket) = UnixStream::pair().unwrap();
    let mut sent = 0;
    while sent < view.len() {
        sent += view.send(socket.as_fd(), sent).unwrap();
    }
    drop(socket);
    let mut received = Vec::new();
    peer.read_to_end(&mut received).unwrap();
    let expected = [&bytes()[4000..], &[0; BLOCK]].concat();
    assert!(received == expected);
    let addresses: Vec<_> = view.addresses().collect();
    assert!(matches!(addresses[..], [(Some(_), 12_384), (None, BLOCK)]), "{addresses:?}");
}

#[test]
fn view_reports_media_errors() {
    let medium = Arc::new(SimMedium::new(8 << 20));
    let (fs, inode) = prepared(&medium);
    let view = fs.view(inode, 0, 4 * BLOCK).unwrap();
    let [Piece::Stored { at, .. }] = *view.pieces() else { panic!("{:?}", view.pieces()) };
    medium.inject_poison(at.plus(5000), 64);
    let read = view.read(0, &mut [0; 4900]);
    assert!(matches!(read, Ok(4900)), "nobody knows yet, and these are sound: {read:?}");
    assert!(matches!(view.read(0, &mut [0; 6000]), Err(ViewError::Memory(_))));
    assert!(matches!(view.check(), Err(ViewError::Memory(_))), "none of it counts any more");
    assert!(matches!(fs.view(inode, 0, 4 * BLOCK).map(drop), Err(FsError::Extent(_))));
    assert!(fs.view(inode, 0, 4096).is_ok());
}

/// Frees a file under a view and writes to all free blocks. Returns true if the view is unchanged.
fn keeps_bytes_that_are_freed() -> bool {
    let (fs, inode) = simulated();
    let view = fs.view(inode, 0, 4 * BLOCK).unwrap();
    fs.truncate(inode, 0).unwrap();
    fs.sync().unwrap();
    let mut at = 0;
    while !view.has_ended() && fs.write(inode, at, &[1; BLOCK]).is_ok() && at < 16 << 20 {
        at += BLOCK_U64;
        let mut now = vec![0; view.len()];
        if view.read(0, &mut now).is_ok() && now != bytes() {
            return false;
        }
    }
    true
}

#[test]
fn freed_pinned_block_is_not_reused() {
    assert!(keeps_bytes_that_are_freed());
}

#[test]
fn view_stores_nothing() {
    let (fs, inode) = simulated();
    let before = fs.volume().medium().counters();
    let view = fs.view(inode, 0, 4 * BLOCK).unwrap();
    assert_eq!(seen(&view), bytes());
    drop(view);
    assert_eq!(fs.volume().medium().counters(), before);
}
