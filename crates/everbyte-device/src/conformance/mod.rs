//! The conformance suite: every device is held to the contract of [`BlockDevice`] by the same
//! tests.
//!
//! Every operation runs on the device and on a plain `Vec<u8>`, and the suite compares each answer.
//! A failure panics with the failed operation and those before it. The suite cannot test durability.
//! Each device has its own crash tests.

mod bytes;
mod concurrency;
mod ranges;
mod sending;
mod twin;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::device::{BlockDevice, Fua, Hole, WriteRequest};
use crate::error::DeviceError;

/// Size of most devices under test, in bytes.
const SIZE: u64 = 1 << 20;

/// Runs the suite. `make` returns a new device of the given size in bytes (a multiple of 4096, at most
/// 16 MiB). It must read as zeroes. The suite calls `make` about ten times. A read-only device is
/// tested only for its refusals and reads.
///
/// # Panics
/// If the device breaks its contract. The message names the operation.
pub fn conformance(make: &dyn Fn(u64) -> Arc<dyn BlockDevice>) {
    let device = make(SIZE);
    let geometry = device.geometry();
    assert_eq!(geometry.size_bytes, SIZE, "conformance: size of a new device");
    for (what, bytes) in
        [("minimum", geometry.minimum_bytes), ("preferred", geometry.preferred_bytes)]
    {
        assert!(bytes.is_power_of_two(), "conformance: {what}_bytes {bytes} is no power of two");
    }
    if geometry.read_only {
        refusals(&*device);
        return;
    }
    ranges::run(device);
    bytes::run(make);
    sending::run(make);
    concurrency::run(make);
}

/// A read-only device refuses every change and can be read and flushed.
fn refusals(device: &dyn BlockDevice) {
    let mut before = vec![0; 8192];
    let read = |out: &mut [u8]| {
        device.read(0, out).unwrap_or_else(|e| panic!("conformance: reading read-only: {e}"));
    };
    read(&mut before);
    let data = [0xa5; 512];
    let request = WriteRequest { offset: 512, data: &data, fua: Fua::No };
    let mut results = vec![
        ("write", device.write(0, &data, Fua::No)),
        ("write with FUA", device.write(4096, &data, Fua::Yes)),
        ("discard", device.discard(0, 4096, Fua::No)),
        ("write_zeroes", device.write_zeroes(0, 4096, Hole::Allowed, false, Fua::No)),
        ("write_zeroes without hole", device.write_zeroes(0, 9, Hole::Forbidden, false, Fua::No)),
    ];
    let batch = device.write_batch(&[request, request]);
    assert_eq!(batch.len(), 2, "conformance: one result for each request of a batch");
    results.extend(batch.into_iter().map(|result| ("write_batch", result)));
    for (what, result) in results {
        assert!(
            matches!(result, Err(DeviceError::ReadOnly { .. })),
            "conformance: {what} on a read-only device gave {result:?}"
        );
    }
    device.flush().unwrap_or_else(|e| panic!("conformance: flushing read-only: {e}"));
    let mut after = vec![0; 8192];
    read(&mut after);
    assert!(before == after, "conformance: a refused request changed a read-only device");
}
