//! A device and its model with the same operations.
//!
//! A twin owns a window of a device. During its life no other thread writes there, but neighbours may
//! write adjacent bytes.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::device::{BlockDevice, Fua, Hole, WriteRequest};
use crate::error::DeviceError;

/// Operations in the message of a failure.
const HISTORY: usize = 12;

/// One operation. Offsets are relative to the window. `seed` determines the written bytes.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Read { offset: usize, len: usize },
    Send { offset: usize, len: usize, prefix: usize },
    Write { offset: usize, len: usize, seed: u64, fua: Fua },
    Batch(Vec<(usize, usize, u64)>),
    Discard { offset: usize, len: usize, fua: Fua },
    Zeroes { offset: usize, len: usize, hole: Hole, fast: bool, fua: Fua },
    Status { offset: usize, len: usize, extents_max: usize },
    Cache { offset: usize, len: usize },
    Flush,
}

impl Op {
    /// Any operation on a window of `size` bytes.
    pub(super) fn random(rng: &mut SmallRng, size: usize) -> Self {
        let (offset, len) = range(rng, size);
        let fua = if rng.random_bool(0.1) { Fua::Yes } else { Fua::No };
        let hole = if rng.random_bool(0.5) { Hole::Allowed } else { Hole::Forbidden };
        match rng.random_range(0..100) {
            0..25 => Self::Read { offset, len },
            25..35 => Self::Send { offset, len, prefix: rng.random_range(0..40) },
            35..60 => Self::Write { offset, len, seed: rng.next_u64(), fua },
            60..68 => Self::Batch(
                (0..rng.random_range(0..6))
                    .map(|_| {
                        let (offset, len) = range(rng, size);
                        (offset, len, rng.next_u64())
                    })
                    .collect(),
            ),
            68..78 => Self::Discard { offset, len, fua },
            78..87 => Self::Zeroes { offset, len, hole, fast: rng.random_bool(0.2), fua },
            87..95 => Self::Status { offset, len: len.max(1), extents_max: rng.random_range(1..9) },
            95..98 => Self::Cache { offset, len },
            _ => Self::Flush,
        }
    }
}

/// A range inside `size` bytes: mostly small, often near block edges.
fn range(rng: &mut SmallRng, size: usize) -> (usize, usize) {
    let mut offset = rng.random_range(0..size);
    if rng.random_bool(0.4) {
        offset = offset / 4096 * 4096;
    } else if rng.random_bool(0.3) {
        offset = (offset / 4096 * 4096 + rng.random_range(0..16)).saturating_sub(8).min(size - 1);
    }
    let most = match rng.random_range(0..10) {
        0..4 => 64,
        4..6 => 600,
        6..9 => 10_000,
        _ => 50_000,
    };
    let mut len: usize = rng.random_range(0..most);
    if rng.random_bool(0.3) {
        len = len.next_multiple_of(4096);
    }
    (offset, len.min(size - offset))
}

/// The bytes of `seed`. All are nonzero, so they differ from a hole.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    for byte in &mut bytes {
        *byte |= 1;
    }
    bytes
}

/// `device.send` into a socket pair. Its other end reads as fast as possible.
///
/// # Errors
/// The text of the error of `send`, also for bytes sent by a failed send.
pub(super) fn send(
    device: &dyn BlockDevice,
    offset: u64,
    len: usize,
    prefix: &[u8],
) -> Result<Vec<u8>, String> {
    let (near, mut far) = UnixStream::pair().map_err(|e| format!("no socket pair: {e}"))?;
    // In a thread: the bytes may exceed the socket's buffer.
    let receiver = std::thread::spawn(move || {
        let mut received = Vec::new();
        far.read_to_end(&mut received).map(|_| received)
    });
    let sent = crate::send(device, (offset, len), prefix, near.as_fd());
    // The receiver reads until this end is closed.
    drop(near);
    let received = receiver
        .join()
        .map_err(|_| "the receiver panicked".to_owned())?
        .map_err(|e| format!("receiving: {e}"))?;
    match sent {
        Ok(()) => Ok(received),
        Err(error) if received.is_empty() => Err(error.to_string()),
        Err(error) => Err(format!("{error}, but {} bytes were sent before", received.len())),
    }
}

pub(super) struct Twin {
    device: Arc<dyn BlockDevice>,
    base: u64,
    model: Vec<u8>,
    history: VecDeque<Op>,
    name: String,
}

impl Twin {
    /// A twin of the `len` bytes at `base`, which must be all zero now.
    pub(super) fn new(name: &str, device: Arc<dyn BlockDevice>, base: u64, len: usize) -> Self {
        Self { device, base, model: vec![0; len], history: VecDeque::new(), name: name.to_owned() }
    }

    pub(super) fn len(&self) -> usize {
        self.model.len()
    }

    fn fail(&self, what: &str) -> ! {
        let mut history = self.history.iter();
        let failed = history.next_back();
        let before: String = history.map(|op| format!("\n    {op:?}")).collect();
        panic!(
            "conformance, {}: window of {} bytes at {}: {failed:?}: {what}\n  before it:{before}",
            self.name,
            self.model.len(),
            self.base
        );
    }

    fn expect<T, E: Debug>(&self, result: Result<T, E>) -> T {
        match result {
            Ok(value) => value,
            Err(error) => self.fail(&format!("failed with {error:?}")),
        }
    }

    fn compare(&self, got: &[u8], offset: usize) {
        let expected = &self.model[offset..offset + got.len()];
        if let Some(at) = got.iter().zip(expected).position(|(g, e)| g != e) {
            self.fail(&format!(
                "byte {} is {:#04x} instead of {:#04x}",
                offset + at,
                got[at],
                expected[at]
            ));
        }
    }

    /// Runs `op` on both and compares the answers.
    pub(super) fn apply(&mut self, op: Op) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(op.clone());
        let base = self.base;
        match op {
            Op::Read { offset, len } => {
                // Not zero, so the comparison detects bytes that the read did not store.
                let mut out = vec![0xee; len];
                self.expect(self.device.read(base + offset as u64, &mut out));
                self.compare(&out, offset);
            }
            Op::Send { offset, len, prefix } => self.send(offset, len, prefix),
            Op::Write { offset, len, seed, fua } => {
                let data = pattern(seed, len);
                self.expect(self.device.write(base + offset as u64, &data, fua));
                self.model[offset..offset + len].copy_from_slice(&data);
            }
            Op::Batch(requests) => self.batch(&requests),
            Op::Discard { offset, len, fua } => {
                self.expect(self.device.discard(base + offset as u64, len as u64, fua));
                self.model[offset..offset + len].fill(0);
            }
            Op::Zeroes { offset, len, hole, fast, fua } => {
                let at = base + offset as u64;
                match self.device.write_zeroes(at, len as u64, hole, fast, fua) {
                    // A refusal of fast zeroing changes nothing, so the model stays.
                    Err(DeviceError::NotFast) if fast => {}
                    result => {
                        self.expect(result);
                        self.model[offset..offset + len].fill(0);
                    }
                }
            }
            Op::Status { offset, len, extents_max } => {
                self.status(offset, len, extents_max);
            }
            Op::Cache { offset, len } => {
                self.expect(self.device.prefetch(base + offset as u64, len as u64));
            }
            Op::Flush => self.expect(self.device.flush()),
        }
    }

    fn send(&self, offset: usize, len: usize, prefix: usize) {
        let head = pattern(prefix as u64, prefix);
        let got = self.expect(send(&*self.device, self.base + offset as u64, len, &head));
        if got.len() != prefix + len {
            self.fail(&format!("{} bytes arrived instead of {prefix} + {len}", got.len()));
        }
        if got[..prefix] != head {
            self.fail("the prefix arrived changed");
        }
        self.compare(&got[prefix..], offset);
    }

    fn batch(&mut self, requests: &[(usize, usize, u64)]) {
        let data: Vec<_> = requests.iter().map(|&(_, len, seed)| pattern(seed, len)).collect();
        let requests: Vec<_> = requests
            .iter()
            .zip(&data)
            .map(|(&(offset, ..), data)| WriteRequest {
                offset: self.base + offset as u64,
                data,
                fua: Fua::No,
            })
            .collect();
        let results = self.device.write_batch(&requests);
        if results.len() != requests.len() {
            self.fail(&format!("{} results for {} requests", results.len(), requests.len()));
        }
        for (result, request) in results.into_iter().zip(&requests) {
            self.expect(result);
            let offset = self.relative(request.offset);
            self.model[offset..offset + request.data.len()].copy_from_slice(request.data);
        }
    }

    fn relative(&self, address: u64) -> usize {
        usize::try_from(address - self.base).unwrap_or(usize::MAX)
    }

    /// Checks the extents of a range and returns the number of their bytes.
    fn status(&self, offset: usize, len: usize, extents_max: usize) -> usize {
        let at = self.base + offset as u64;
        let extents = self.expect(self.device.status(at, len as u64, extents_max));
        if extents.is_empty() || extents.len() > extents_max {
            self.fail(&format!("{} extents", extents.len()));
        }
        let mut from = offset;
        for extent in &extents {
            let extent_len = usize::try_from(extent.len).unwrap_or(usize::MAX);
            if extent_len == 0 || extent_len > offset + len - from {
                self.fail(&format!("an extent at {from} is empty or too long: {extents:?}"));
            }
            let bytes = &self.model[from..from + extent_len];
            if (extent.zero || extent.hole) && bytes.iter().any(|&byte| byte != 0) {
                self.fail(&format!("the extent at {from} is no zeroes: {extents:?}"));
            }
            from += extent_len;
        }
        from - offset
    }

    /// Reads the whole window back and walks its extents from one end to the other.
    pub(super) fn check_all(&mut self) {
        let len = self.model.len();
        self.apply(Op::Read { offset: 0, len });
        for extents_max in [1, 5, usize::MAX] {
            let mut at = 0;
            while at < len {
                let op = Op::Status { offset: at, len: len - at, extents_max };
                // The message of a failure shows this query as well.
                self.history.push_back(op);
                // `status` fails for an answer without a byte, so this walk ends.
                at += self.status(at, len - at, extents_max);
                self.history.pop_back();
            }
        }
    }
}
