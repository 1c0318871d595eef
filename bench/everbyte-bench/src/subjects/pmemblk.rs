//! libpmemblk, the userspace block translation table: durable per request, atomic per block.
//!
//! A request smaller than a block reads the block, changes it and writes it whole, under a lock
//! per block as its users must; a larger one is several writes. What it stores follows from the
//! format (a block, four words of log entry, a map entry of four bytes), because it does not tell.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use everbyte_device::Fua;
use parking_lot::Mutex;

use super::pmemblk_library::PmemblkPool;
use crate::subject::{Counts, Session, Subject};
use crate::workload::{Payload, Workload};

/// Bytes that a write stores beside its block: a log entry of 16 and a map entry of 4.
const BESIDE_BYTES: u64 = 20;
/// Stores of a write: the block, the two halves of the log entry, the map entry; each is fenced.
const STORES: u64 = 4;
/// Lines that the three small stores flush.
const BESIDE_LINES: u64 = 3;
/// Locks over blocks for requests smaller than a block.
const STRIPES: u64 = 256;

/// A pool of blocks of one size.
pub(crate) struct Pmemblk {
    name: String,
    pool: PmemblkPool,
    block_bytes: usize,
    locks: Vec<Mutex<()>>,
    writes: AtomicU64,
}

impl Pmemblk {
    /// Makes a pool for `size_bytes` in a new file in `folder`, and writes all of it.
    ///
    /// # Errors
    /// The library is not installed, or refuses.
    pub(crate) fn new(folder: &Path, size_bytes: u64, block_bytes: usize) -> Result<Self> {
        let name = format!("pmemblk-{block_bytes}");
        let path = folder.join(&name);
        // Room for its map, logs and information blocks.
        let pool_bytes = usize::try_from(size_bytes + size_bytes / 16 + (32 << 20))?;
        let pool = PmemblkPool::create(&path, block_bytes, pool_bytes);
        // The pool stays mapped; without a name it ends with the process.
        let _absent_if_refused = fs::remove_file(&path);
        let pool = pool?;
        if pool.blocks() * (block_bytes as u64) < size_bytes {
            bail!("libpmemblk made only {} blocks of {block_bytes} bytes", pool.blocks());
        }
        let locks = (0..STRIPES).map(|_| Mutex::new(())).collect();
        let subject = Self { name, pool, block_bytes, locks, writes: AtomicU64::new(0) };
        let payload = Payload::unedited();
        for block in 0..size_bytes / block_bytes as u64 {
            subject.pool.write(block, payload.first(block_bytes)).context("filling")?;
        }
        Ok(subject)
    }

    /// Writes any range of whole sectors; `scratch` has room for a block. Returns the blocks
    /// written.
    ///
    /// # Errors
    /// The library's.
    pub(crate) fn write_range(&self, offset: u64, data: &[u8], scratch: &mut [u8]) -> Result<u64> {
        let size = self.block_bytes as u64;
        let (mut done, mut blocks) = (0, 0);
        while done < data.len() {
            let at = offset + done as u64;
            let within = usize::try_from(at % size)?;
            let part = &data[done..data.len().min(done + self.block_bytes - within)];
            let block = at / size;
            if part.len() == self.block_bytes {
                self.pool.write(block, part)?;
            } else {
                let stripe = usize::try_from(block % STRIPES)?;
                let _block = self.locks[stripe].lock();
                self.pool.read(block, scratch)?;
                scratch[within..within + part.len()].copy_from_slice(part);
                self.pool.write(block, scratch)?;
            }
            done += part.len();
            blocks += 1;
        }
        Ok(blocks)
    }

    /// Returns the counts of `writes` writes of a block, by the format.
    pub(crate) fn stored_by(&self, writes: u64) -> Counts {
        let size = self.block_bytes as u64;
        Counts {
            bytes_stored: writes * (size + BESIDE_BYTES),
            lines_stored: writes * (size / 64 + BESIDE_LINES),
            lines_flushed: writes * BESIDE_LINES,
            fences: writes * STORES,
            log_bytes: writes * BESIDE_BYTES,
            modelled_ns: 0,
            modelled: true,
        }
    }

    /// Room for a block.
    pub(crate) fn scratch(&self) -> Vec<u8> {
        vec![0; self.block_bytes]
    }
}

impl Subject for Pmemblk {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, _workload: &Workload) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(PmemblkSession { subject: self, scratch: self.scratch(), writes: 0 }))
    }

    fn counts(&self) -> Option<Counts> {
        Some(self.stored_by(self.writes.load(Ordering::Relaxed)))
    }
}

struct PmemblkSession<'a> {
    subject: &'a Pmemblk,
    scratch: Vec<u8>,
    writes: u64,
}

impl Session for PmemblkSession<'_> {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let size = self.subject.block_bytes;
        if out.len() < size {
            let within = usize::try_from(offset % size as u64)?;
            self.subject.pool.read(offset / size as u64, &mut self.scratch)?;
            out.copy_from_slice(&self.scratch[within..within + out.len()]);
            return Ok(());
        }
        for (block, part) in (offset / size as u64..).zip(out.chunks_exact_mut(size)) {
            self.subject.pool.read(block, part)?;
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8], _fua: Fua) -> Result<()> {
        self.writes += self.subject.write_range(offset, data, &mut self.scratch)?;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.subject.writes.fetch_add(self.writes, Ordering::Relaxed);
        self.writes = 0;
        Ok(())
    }
}
