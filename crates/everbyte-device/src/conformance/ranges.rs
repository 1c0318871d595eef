//! Legal ranges succeed; illegal ranges change nothing.

use std::sync::Arc;

use super::twin::{Op, Twin, send};
use crate::device::{BlockDevice, Fua, Hole, WriteRequest};
use crate::error::DeviceError;

/// Starts past every device, or with an overflow of the end.
const OUTSIDE_BYTES: usize = 16;

pub(super) fn run(device: Arc<dyn BlockDevice>) {
    let size = device.geometry().size_bytes;
    let len = usize::try_from(size).unwrap_or(usize::MAX);
    let mut twin = Twin::new("ranges", Arc::clone(&device), 0, len);
    // No byte is zero, so the last check notices any change by a refused request.
    twin.apply(Op::Write { offset: 0, len, seed: 1, fua: Fua::No });
    inside(&mut twin);
    for (offset, len) in [
        (size, 1),
        (size - 1, 2),
        (size - 4096, 4097),
        (0, size + 1),
        (size + 1, 0),
        (size + 4096, 4096),
        (1, u64::MAX),
        (u64::MAX, 1),
        (u64::MAX, 0),
        (u64::MAX - 4095, 4096),
        (u64::MAX - 3, 8),
        (u64::MAX, u64::MAX),
        (1 << 63, 1 << 63),
    ] {
        outside(&*device, offset, len);
    }
    for offset in [0, size / 2, size] {
        refused("status", offset, 0, device.status(offset, 0, 1).map(drop));
    }
    twin.check_all();
}

/// Zero-length requests and requests up to the exact end.
fn inside(twin: &mut Twin) {
    let size = twin.len();
    for (offset, len) in [(0, 0), (1, 0), (4096, 0), (size - 1, 0), (size, 0), (size - 1, 1)] {
        for op in [
            Op::Write { offset, len, seed: 2, fua: Fua::Yes },
            Op::Read { offset, len },
            Op::Send { offset, len, prefix: 3 },
            Op::Batch(vec![(offset, len, 3)]),
            Op::Cache { offset, len },
            Op::Zeroes { offset, len, hole: Hole::Allowed, fast: false, fua: Fua::No },
            Op::Discard { offset, len, fua: Fua::No },
            Op::Write { offset, len, seed: 4, fua: Fua::No },
        ] {
            twin.apply(op);
        }
    }
    twin.apply(Op::Status { offset: size - 1, len: 1, extents_max: 1 });
    twin.apply(Op::Batch(Vec::new()));
}

fn refused(what: &str, offset: u64, len: u64, result: Result<(), DeviceError>) {
    assert!(
        matches!(result, Err(DeviceError::OutOfRange { .. })),
        "conformance, ranges: {what} of {len} bytes at {offset} gave {result:?}"
    );
}

/// Every request with a range refuses this range.
fn outside(device: &dyn BlockDevice, offset: u64, len: u64) {
    let zeroes = |hole| device.write_zeroes(offset, len, hole, false, Fua::No);
    refused("discard", offset, len, device.discard(offset, len, Fua::No));
    refused("write_zeroes", offset, len, zeroes(Hole::Allowed));
    refused("write_zeroes without hole", offset, len, zeroes(Hole::Forbidden));
    refused("status", offset, len, device.status(offset, len, 4).map(drop));
    refused("prefetch", offset, len, device.prefetch(offset, len));
    // No buffer exists for the longest lengths.
    send_refused(device, offset, usize::try_from(len).unwrap_or(usize::MAX));

    // Lengths that no buffer has are tried with one that lies outside as well.
    let len = if offset == 0 { len } else { len.min(OUTSIDE_BYTES as u64) };
    let size = device.geometry().size_bytes;
    if offset.checked_add(len).is_some_and(|end| end <= size) {
        return;
    }
    let mut buffer = vec![0xa5; usize::try_from(len).unwrap_or(OUTSIDE_BYTES)];
    refused("write", offset, len, device.write(offset, &buffer, Fua::No));
    // The refused request stands between two others, and must affect neither.
    let good = WriteRequest { offset: 0, data: &[], fua: Fua::No };
    let bad = WriteRequest { offset, data: &buffer, fua: Fua::No };
    let [first, second, third]: [_; 3] = device
        .write_batch(&[good, bad, good])
        .try_into()
        .unwrap_or_else(|r| panic!("conformance, ranges: 3 requests gave the results {r:?}"));
    assert!(first.is_ok() && third.is_ok(), "conformance, ranges: {first:?}, {third:?}");
    refused("write_batch", offset, len, second);
    refused("read", offset, len, device.read(offset, &mut buffer));
    send_refused(device, offset, buffer.len());
}

fn send_refused(device: &dyn BlockDevice, offset: u64, len: usize) {
    let sent = send(device, offset, len, b"prefix");
    assert!(
        sent.as_ref().is_err_and(|error| !error.contains("were sent")),
        "conformance, ranges: send of {len} bytes at {offset} gave {sent:?}"
    );
}
