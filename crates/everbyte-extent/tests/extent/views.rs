//! Bytes of an extent where they lie: views, and places.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use everbyte_crash::SimMedium;
use everbyte_extent::{BlockReadError, DeviceOffset, ExtentError, View, ViewError};
use everbyte_media::{BLOCK, BLOCK_U64, Mapped, Medium, Piece};
use everbyte_pool::{PinError, PinLimits};

use crate::new_pair;
use crate::pair::{BOTH, Pair, Settings, pattern};

/// Two blocks of data, a hole, kept zeroes, and a block of data.
fn mixed() -> Pair<Mapped> {
    let pair = new_pair(256, &Settings::default());
    for which in BOTH {
        pair.write(which, 0, &pattern(which as u64, 5 * BLOCK)).unwrap();
        pair.zero(which, 2 * BLOCK_U64, BLOCK_U64, false).unwrap();
        pair.zero(which, 3 * BLOCK_U64, BLOCK_U64, true).unwrap();
    }
    pair.volume().flush().unwrap();
    pair
}

fn seen<M: Medium>(view: &View<M>, from: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xa5; len];
    let count = view.read(from, &mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

#[test]
fn view_reads_and_sends_its_range() {
    let pair = mixed();
    for which in BOTH {
        let all = pair.read(which, 1000, 17_000).unwrap();
        let view = pair.extents[which].view(DeviceOffset(1000), 17_000).unwrap();
        assert_eq!((view.len(), view.is_empty(), view.has_ended()), (17_000, false, false));
        assert_eq!(view.pieces().iter().map(Piece::len).sum::<usize>(), 17_000);
        for (from, len) in [(0, 17_000), (0, 9), (3095, 2), (7000, 9000), (16_990, 50)] {
            let end = all.len().min(from + len);
            assert!(seen(&view, from, len) == all[from..end], "{from}+{len}");
        }
        assert!(seen(&view, 17_000, 9).is_empty());
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        assert_eq!(view.send(ours.as_fd(), 1234).unwrap(), 17_000 - 1234);
        drop(ours);
        let mut sent = Vec::new();
        theirs.read_to_end(&mut sent).unwrap();
        assert!(sent == all[1234..]);
    }
}

#[test]
fn view_is_snapshot_under_writes_and_unmaps() {
    let pair = mixed();
    for which in BOTH {
        let before = pair.content(which).unwrap();
        let view = pair.extents[which].view(DeviceOffset(0), before.len()).unwrap();
        pair.write(which, 100, &[1; 9]).unwrap();
        pair.write(which, BLOCK_U64, &[2; BLOCK]).unwrap();
        pair.write(which, 2 * BLOCK_U64 + 9, &[3; 5000]).unwrap();
        pair.zero(which, 4 * BLOCK_U64, BLOCK_U64, false).unwrap();
        pair.volume().flush().unwrap();
        // A writer in need of space does not get the blocks of the view.
        pair.write(1 - which, 5 * BLOCK_U64, &[4; 3 * BLOCK]).unwrap();
        assert!(seen(&view, 0, before.len()) == before);
        drop(view);
        pair.judge().unwrap();
    }
}

#[test]
fn view_of_closed_volume_reports_end() {
    let pair = mixed();
    let view = pair.extents[0].view(DeviceOffset(0), 100).unwrap();
    pair.pool.close().unwrap();
    assert!(view.has_ended());
    assert!(matches!(view.check(), Err(ViewError::Ended)));
    assert!(matches!(view.read(0, &mut [0; 9]), Err(ViewError::Ended)));
    let (ours, _theirs) = UnixStream::pair().unwrap();
    assert!(matches!(view.send(ours.as_fd(), 0), Err(ViewError::Ended)));
}

#[test]
fn limits_of_pins_are_limits_of_views() {
    let pair = mixed();
    let limits = PinLimits { pins_max: 2, bytes_max: 8192, ..PinLimits::default() };
    pair.volume().set_pin_limits(limits);
    let view = |at, len| pair.extents[0].view(DeviceOffset(at), len);
    let refused = |result: Result<View<Mapped>, ExtentError>| match result {
        Err(ExtentError::Pin(error)) => error,
        other => panic!("{:?}", other.map(drop)),
    };
    assert!(matches!(refused(view(0, 8193)), PinError::TooLarge { bytes: 8193, .. }));
    let held = view(0, 5).unwrap();
    let error = refused(view(BLOCK_U64 - 5, 4096));
    assert!(matches!(error, PinError::TooLarge { .. }), "two blocks more are too many: {error}");
    let second = view(BLOCK_U64, 5).unwrap();
    assert!(matches!(refused(view(0, 1)), PinError::TooMany { max: 2 }));
    drop((held, second));
    assert!(matches!(view(33_333 * 3, 1).map(drop), Err(ExtentError::OutOfRange { .. })));
}

#[test]
fn unreachable_time_does_not_limit_views() {
    let pair = mixed();
    let limits = PinLimits { time_max: Duration::MAX, ..PinLimits::default() };
    pair.volume().set_pin_limits(limits);
    let view = pair.extents[0].view(DeviceOffset(0), 100).unwrap();
    assert_eq!(seen(&view, 0, 100), pair.read(0, 0, 100).unwrap());
    pair.volume().flush().unwrap();
    assert!(!view.has_ended());
}

#[test]
fn view_and_place_refuse_unreadable_bytes() {
    let pair = Pair::make(&Arc::new(SimMedium::new(256 * BLOCK_U64)), &Settings::default());
    for which in BOTH {
        pair.write(which, 0, &pattern(which as u64, 3 * BLOCK)).unwrap();
        pair.volume().flush().unwrap();
        let extent = &pair.extents[which];
        let view = extent.view(DeviceOffset(0), 3 * BLOCK).unwrap();
        let line = pair.entry(which, 1).unwrap().block.offset().plus(640);
        pair.medium().inject_poison(line, 64);
        for at in [BLOCK_U64 + 640, BLOCK_U64] {
            let at = DeviceOffset(at);
            let bad =
                |error| matches!(error, ExtentError::BlockReadError(BlockReadError::Memory(_)));
            assert!(bad(extent.view(at, 700).map(drop).unwrap_err()));
            assert!(bad(extent.place_of(at, 700).unwrap_err()));
        }
        assert!(matches!(view.check(), Err(ViewError::Memory(_))), "it was bad all along");
        extent.view(DeviceOffset(0), BLOCK).unwrap();
        assert!(extent.place_of(DeviceOffset(0), BLOCK).unwrap().is_some());
    }
}

#[test]
fn place_is_one_stored_run_or_none() {
    let pair = mixed();
    for which in BOTH {
        let place = |at, len| pair.extents[which].place_of(DeviceOffset(at), len).unwrap();
        let at = place(100, 3000).unwrap();
        let mut bytes = vec![0; 3000];
        pair.medium().read(at, &mut bytes);
        assert!(bytes == pair.read(which, 100, 3000).unwrap());
        assert_eq!(place(2 * BLOCK_U64, 10), None, "a hole lies nowhere");
        assert_eq!(place(3 * BLOCK_U64, 10), None, "what would be read there is no zeroes");
        assert_eq!(place(2 * BLOCK_U64 - 10, 20), None, "a part of it lies nowhere");
        // Written alone, the block lies elsewhere.
        pair.write(which, 0, &[7; BLOCK]).unwrap();
        assert_eq!(place(BLOCK_U64 - 10, 20), None, "two places");
        assert!(place(BLOCK_U64 - 10, 10).is_some() && place(BLOCK_U64, 20).is_some());
        let beyond = pair.extents[which].place_of(DeviceOffset(1 << 40), 1);
        assert!(matches!(beyond, Err(ExtentError::OutOfRange { .. })));
    }
}
