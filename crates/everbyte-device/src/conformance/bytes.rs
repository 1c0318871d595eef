//! Effects of single-threaded requests on bytes: unaligned edges, batches, zeroes, random sequences.

use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::SIZE;
use super::twin::{Op, Twin, pattern};
use crate::device::{BlockDevice, Fua, Hole, WriteRequest};
use crate::error::DeviceError;

/// Offsets and lengths where alignment matters.
const EDGES: [usize; 12] = [0, 1, 7, 8, 9, 63, 511, 512, 513, 4095, 4096, 4097];

/// Random operations of each seed.
const RANDOM_OPS: usize = 1500;

pub(super) fn run(make: &dyn Fn(u64) -> Arc<dyn BlockDevice>) {
    edges(make);
    batches(&*make(SIZE));
    for seed in 0..2 {
        random(make, seed);
    }
}

fn twin(name: &str, make: &dyn Fn(u64) -> Arc<dyn BlockDevice>, size: u16) -> Twin {
    Twin::new(name, make(u64::from(size)), 0, usize::from(size))
}

/// Writes, discards and zeroes at every pair of edges, over holes and over data, with the
/// neighbours checked.
fn edges(make: &dyn Fn(u64) -> Arc<dyn BlockDevice>) {
    let mut twin = twin("edges", make, 16384);
    let size = twin.len();
    let mut seed = 100;
    for start in EDGES {
        for len in EDGES {
            // Away from the ends, so that each edge has neighbours on both sides.
            let offset = start + 2048;
            seed += 1;
            twin.apply(Op::Write { offset, len, seed, fua: Fua::No });
            twin.apply(Op::Read { offset: offset.saturating_sub(70), len: len + 140 });
            // Over data, so that the zeroing has bytes to miss.
            twin.apply(Op::Write { offset: 0, len: size, seed: seed * 7, fua: Fua::No });
            match seed % 3 {
                0 => twin.apply(Op::Discard { offset, len, fua: Fua::No }),
                1 => twin.apply(zeroes(offset, len, Hole::Allowed)),
                _ => twin.apply(zeroes(offset, len, Hole::Forbidden)),
            }
            twin.check_all();
            twin.apply(Op::Write { offset, len, seed, fua: Fua::Yes });
            twin.check_all();
            // The next pair starts over a hole.
            twin.apply(Op::Discard { offset: 0, len: size, fua: Fua::No });
        }
    }
    twin.apply(Op::Flush);
    twin.check_all();
}

fn zeroes(offset: usize, len: usize, hole: Hole) -> Op {
    Op::Zeroes { offset, len, hole, fast: false, fua: Fua::No }
}

/// Batches: disjoint, overlapping, in one block, and with a member that fails.
fn batches(device: &dyn BlockDevice) {
    let long = pattern(1, 10_000);
    let short = pattern(2, 100);
    let end = pattern(3, 8);
    let request = |offset, data| WriteRequest { offset, data, fua: Fua::No };
    let requests = [
        request(5000, &long[..]),
        request(SIZE - 4, &end),
        request(9000, &short),
        request(9050, &end),
        request(100, &end),
        request(104, &short),
        WriteRequest { fua: Fua::Yes, ..request(20_000, &end) },
    ];
    let results = device.write_batch(&requests);
    assert_eq!(results.len(), requests.len(), "conformance, batches: results for requests");
    let mut model = vec![0; usize::try_from(SIZE).unwrap_or(0)];
    // The request beyond the end must not affect the others.
    for (index, (result, request)) in results.iter().zip(requests).enumerate() {
        if index == 1 {
            assert!(
                matches!(result, Err(DeviceError::OutOfRange { .. })),
                "conformance, batches: the request beyond the end gave {result:?}"
            );
            continue;
        }
        assert!(result.is_ok(), "conformance, batches: request {index} gave {result:?}");
        let offset = usize::try_from(request.offset).unwrap_or(0);
        model[offset..offset + request.data.len()].copy_from_slice(request.data);
    }
    // Not zero, so bytes that the read leaves out are noticed.
    let mut got = vec![0xee; model.len()];
    let read = device.read(0, &mut got);
    assert!(read.is_ok(), "conformance, batches: reading back gave {read:?}");
    let wrong = got.iter().zip(&model).position(|(got, expected)| got != expected);
    assert_eq!(wrong, None, "conformance, batches: the first wrong byte, after {results:?}");
}

/// A seeded sequence of everything.
fn random(make: &dyn Fn(u64) -> Arc<dyn BlockDevice>, seed: u64) {
    let mut twin = twin(&format!("random, seed {seed}"), make, 57_344);
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..RANDOM_OPS {
        let op = Op::random(&mut rng, twin.len());
        twin.apply(op);
    }
    twin.check_all();
}
