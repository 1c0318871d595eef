//! A scheme as a block device: the front of an engine.
//!
//! Owns the division of requests into edits of single blocks, range checks, the lock, and the two
//! modes of durability: with [`Fua::Yes`] a request is committed before it is answered, else at the
//! next flush, or before if the engine's log fills.
//!
//! One lock is over all of an engine: readers share it, a writer has it alone, as file systems have
//! one running transaction. Rows with two writers, or with a reader, show the cost of the lock.
//!
//! Invariants: an engine gets edits that lie in the device and are not empty, at most `edits_max`
//! of them in one call. A longer write is divided, and is then not atomic. An engine fences its
//! streams before `apply` returns, because another thread may come next. If the medium fails amid
//! several edits, DRAM may hold some of them. After that, nothing is written or committed until the
//! device is opened again, so a crash or the opening leaves all or none.

use std::sync::atomic::{AtomicBool, Ordering};

use everbyte_device::{
    AtomicWriteError, AtomicWrites, BlockDevice, DeviceError, Extent, Fua, Geometry, Hole,
    WriteRequest, check_range,
};
use everbyte_media::{BLOCK, BLOCK_U64, MediaError, Medium};
use parking_lot::RwLock;
use smallvec::SmallVec;

use super::Scheme;
use super::space::{HOLE, Space, SpaceError, index};
use crate::subject::Counts;
use crate::subjects::floor::medium_counts;

static ZEROES: [u8; BLOCK] = [0; BLOCK];

/// A change of one block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Edit<'a> {
    /// `data`, which is not empty, goes to bytes `start ..` of `block`.
    Write { block: usize, start: usize, data: &'a [u8] },
    /// `block` becomes a hole.
    Unmap { block: usize },
}

/// Errors of edits. No edit was made. After `Failed`, some edits may have been made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// No block is free.
    #[error("no block is free")]
    NoSpace,
    /// The medium failed.
    #[error(transparent)]
    Failed(#[from] SpaceError),
}

impl From<MediaError> for Refused {
    fn from(error: MediaError) -> Self {
        Self::Failed(error.into())
    }
}

/// A consistency scheme.
pub(crate) trait Engine: Send + Sync + 'static {
    /// The medium that it works on.
    type Medium: Medium;

    /// Its name in results.
    fn name(&self) -> &'static str;

    /// The space that its blocks lie in.
    fn space(&self) -> &Space<Self::Medium>;

    /// The place of each block of the device.
    fn places(&self) -> &[u64];

    /// The medium.
    fn medium(&self) -> &Self::Medium {
        self.space().medium()
    }

    /// Returns the largest number of edits of one `apply`, for edits of any kind; at least 1.
    fn edits_max(&self) -> usize;

    /// Returns true if a block has contents.
    fn is_mapped(&self, block: usize) -> bool {
        self.places()[block] != HOLE
    }

    /// Fills `out` from byte `start` of a block.
    ///
    /// # Errors
    /// A media error.
    fn read(&self, block: usize, start: usize, out: &mut [u8]) -> Result<(), MediaError> {
        self.space().load(self.places()[block], start, out)
    }

    /// Makes all edits, in this order, or none. They need not be durable.
    ///
    /// # Errors
    /// See [`Refused`].
    fn apply(&mut self, edits: &[Edit<'_>]) -> Result<(), Refused>;

    /// Makes all edits so far durable.
    ///
    /// # Errors
    /// The medium's.
    fn commit(&mut self) -> Result<(), SpaceError>;

    /// Makes all edits so far durable and empties the log.
    ///
    /// # Errors
    /// The medium's.
    fn checkpoint(&mut self) -> Result<(), SpaceError>;

    /// Bytes written to the log since it was opened.
    fn log_bytes(&self) -> u64;
}

/// The edits of a request. A short request needs no memory for them.
type Edits<'a> = SmallVec<[Edit<'a>; 4]>;

/// A block device over an engine.
pub(crate) struct Front<E> {
    engine: RwLock<E>,
    /// True if the medium failed amid several edits.
    stopped: AtomicBool,
    size_bytes: u64,
    edits_max: usize,
}

impl<E: Engine> Front<E> {
    pub(crate) fn new(engine: E) -> Self {
        let size_bytes = engine.places().len() as u64 * BLOCK_U64;
        let edits_max = engine.edits_max();
        let stopped = AtomicBool::new(false);
        Self { engine: RwLock::new(engine), stopped, size_bytes, edits_max }
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(offset, len, self.size_bytes)
    }

    fn check_going(&self) -> Result<(), SpaceError> {
        match self.stopped.load(Ordering::Acquire) {
            true => Err(SpaceError::Stopped),
            false => Ok(()),
        }
    }

    /// Makes `edits`, divided if there are too many, and commits with [`Fua::Yes`].
    fn edit(&self, edits: &[Edit<'_>], fua: Fua) -> Result<(), Refused> {
        let mut engine = self.engine.write();
        self.check_going()?;
        for part in edits.chunks(self.edits_max) {
            let done = engine.apply(part);
            if part.len() > 1 && matches!(done, Err(Refused::Failed(_))) {
                // Some edits may be made in DRAM: a later commit would make part of a request
                // durable.
                self.stopped.store(true, Ordering::Release);
            }
            done?;
        }
        if fua == Fua::Yes {
            engine.commit()?;
        }
        Ok(engine.medium().check()?)
    }

    fn edit_range(
        &self,
        offset: u64,
        len: u64,
        edits: &[Edit<'_>],
        fua: Fua,
    ) -> Result<(), DeviceError> {
        match edits.is_empty() {
            true => Ok(()),
            false => self.edit(edits, fua).map_err(|error| device_error(offset, len, &error)),
        }
    }

    /// The edits that make a checked range read as zeroes, and leave holes if they may.
    fn zeroing(&self, offset: u64, len: u64, hole: Hole) -> Edits<'static> {
        let engine = self.engine.read();
        let mut edits = Edits::new();
        let mut at = offset;
        while at < offset + len {
            let (block, start) = (index(at / BLOCK_U64), index(at % BLOCK_U64));
            let part = (BLOCK - start).min(index(offset + len - at));
            if hole == Hole::Forbidden || (part < BLOCK && engine.is_mapped(block)) {
                edits.push(Edit::Write { block, start, data: &ZEROES[..part] });
            } else if part == BLOCK && engine.is_mapped(block) {
                edits.push(Edit::Unmap { block });
            }
            at += part as u64;
        }
        edits
    }

    fn zero(&self, offset: u64, len: u64, hole: Hole, fua: Fua) -> Result<(), DeviceError> {
        self.check(offset, len)?;
        let edits = self.zeroing(offset, len, hole);
        self.edit_range(offset, len, &edits, fua)
    }
}

/// Adds the edits that write `data` at `offset`.
fn push_write<'a>(edits: &mut Edits<'a>, offset: u64, mut data: &'a [u8]) {
    let mut at = offset;
    while !data.is_empty() {
        let (block, start) = (index(at / BLOCK_U64), index(at % BLOCK_U64));
        let (part, rest) = data.split_at((BLOCK - start).min(data.len()));
        edits.push(Edit::Write { block, start, data: part });
        at += part.len() as u64;
        data = rest;
    }
}

fn device_error(offset: u64, len: u64, error: &Refused) -> DeviceError {
    match error {
        Refused::NoSpace => {
            let reason = "the medium is full".to_owned();
            DeviceError::NoSpace { offset, len, reason }
        }
        Refused::Failed(error) => media_error(offset, len, error),
    }
}

fn media_error(offset: u64, len: u64, error: &dyn std::error::Error) -> DeviceError {
    DeviceError::Media { offset, len, reason: error.to_string() }
}

impl<E: Engine> BlockDevice for Front<E> {
    fn geometry(&self) -> Geometry {
        let preferred_bytes = u32::try_from(BLOCK).unwrap_or(u32::MAX);
        let size_bytes = self.size_bytes;
        Geometry { size_bytes, minimum_bytes: 1, preferred_bytes, read_only: false }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let len = out.len() as u64;
        self.check(offset, len)?;
        let engine = self.engine.read();
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let (block, start) = (index(at / BLOCK_U64), index(at % BLOCK_U64));
            let (part, more) = rest.split_at_mut((BLOCK - start).min(rest.len()));
            at += part.len() as u64;
            engine.read(block, start, part).map_err(|error| media_error(offset, len, &error))?;
            rest = more;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.check(offset, data.len() as u64)?;
        let mut edits = Edits::new();
        push_write(&mut edits, offset, data);
        self.edit_range(offset, data.len() as u64, &edits, fua)
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        let write = |r: &WriteRequest<'_>| self.write(r.offset, r.data, Fua::No);
        let mut results: Vec<_> = requests.iter().map(write).collect();
        let durable = |r: &WriteRequest<'_>| r.fua == Fua::Yes && !r.data.is_empty();
        // One commit covers the batch, instead of a commit for each durable request.
        if requests.iter().any(durable)
            && let Err(error) = self.flush()
        {
            let unsure = results.iter_mut().zip(requests).filter(|(_, r)| durable(r));
            unsure.for_each(|(result, _)| *result = Err(error.clone()));
        }
        results
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let mut engine = self.engine.write();
        let done = self.check_going().and_then(|()| engine.commit());
        let done = done.and_then(|()| Ok(engine.medium().check()?));
        done.map_err(|error| media_error(0, self.size_bytes, &error))
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.zero(offset, len, Hole::Allowed, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.check(offset, len)?;
        if fast && hole == Hole::Forbidden {
            return Err(DeviceError::NotFast);
        }
        self.zero(offset, len, hole, fua)
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        self.check(offset, len)?;
        if len == 0 {
            return Err(DeviceError::OutOfRange { offset, len, size_bytes: self.size_bytes });
        }
        let engine = self.engine.read();
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = offset;
        while at < offset + len {
            let part = (BLOCK_U64 - at % BLOCK_U64).min(offset + len - at);
            let hole = !engine.is_mapped(index(at / BLOCK_U64));
            let full = extents.len() >= extents_max.max(1);
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.len += part,
                _ if full => break,
                _ => extents.push(Extent { len: part, hole, zero: hole }),
            }
            at += part;
        }
        Ok(extents)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.check(offset, len)
    }
}

impl<E: Engine> AtomicWrites for Front<E> {
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        let mut edits = Edits::new();
        for request in requests {
            self.check(request.offset, request.data.len() as u64)?;
            push_write(&mut edits, request.offset, request.data);
        }
        if edits.len() > self.edits_max {
            return Err(AtomicWriteError::TooLarge { what: "one commit of the scheme" });
        }
        let durable = requests.iter().any(|request| request.fua == Fua::Yes);
        let fua = if durable { Fua::Yes } else { Fua::No };
        let first = requests.first().map_or(0, |request| request.offset);
        let len = requests.iter().map(|request| request.data.len() as u64).sum();
        Ok(self.edit_range(first, len, &edits, fua)?)
    }
}

impl<E: Engine> Scheme for Front<E> {
    fn name(&self) -> &'static str {
        self.engine.read().name()
    }

    fn checkpoint(&self) -> Result<(), DeviceError> {
        let mut engine = self.engine.write();
        let done = self.check_going().and_then(|()| engine.checkpoint());
        done.map_err(|error| media_error(0, self.size_bytes, &error))
    }

    fn counts(&self) -> Counts {
        let engine = self.engine.read();
        medium_counts(engine.medium(), engine.log_bytes())
    }
}
