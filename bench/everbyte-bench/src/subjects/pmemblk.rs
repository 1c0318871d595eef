//! libpmemblk, the userspace block translation table: durable per request, atomic per block.
//!
//! A request smaller than a block reads the block, changes it and writes the whole block, under a lock per block. The
//! library requires this of its users. A larger request is several writes. The library has no counters, so the counts
//! follow from its format: a block, a log entry of four words, and a map entry of four bytes.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use everbyte_device::Fua;
use parking_lot::Mutex;

use super::pmemblk_library::PmemblkPool;
use crate::subject::{Counts, Session, Subject, fill};
use crate::workload::Workload;

/// Stored bytes of a write in addition to its block: a log entry of 16 and a map entry of 4.
const EXTRA_BYTES: u64 = 20;
/// Fenced stores of a write: the block, the two halves of the log entry, the map entry.
const STORES: u64 = 4;
/// Flushed lines of the three small stores.
const EXTRA_LINES: u64 = 3;
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
        // The pool also needs space for its map, logs and information blocks.
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
        fill(&mut subject.session(), size_bytes, block_bytes).context("filling")?;
        Ok(subject)
    }

    fn session(&self) -> PmemblkSession<'_> {
        PmemblkSession { subject: self, scratch: vec![0; self.block_bytes], writes: 0 }
    }
}

impl Subject for Pmemblk {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, _workload: &Workload) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(self.session()))
    }

    fn counts(&self) -> Option<Counts> {
        let (size, writes) = (self.block_bytes as u64, self.writes.load(Ordering::Relaxed));
        Some(Counts {
            bytes_stored: writes * (size + EXTRA_BYTES),
            lines_stored: writes * (size / 64 + EXTRA_LINES),
            lines_flushed: writes * EXTRA_LINES,
            fences: writes * STORES,
            log_bytes: writes * EXTRA_BYTES,
            modelled_ns: 0,
            modelled: true,
        })
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
        let Pmemblk { pool, block_bytes, locks, .. } = self.subject;
        let (size, mut done) = (*block_bytes as u64, 0);
        while done < data.len() {
            let at = offset + done as u64;
            let (block, within) = (at / size, usize::try_from(at % size)?);
            let part = &data[done..data.len().min(done + block_bytes - within)];
            if part.len() == *block_bytes {
                pool.write(block, part)?;
            } else {
                // Two threads with parts of one block would lose one part without the lock.
                let _block = locks[usize::try_from(block % STRIPES)?].lock();
                pool.read(block, &mut self.scratch)?;
                self.scratch[within..within + part.len()].copy_from_slice(part);
                pool.write(block, &self.scratch)?;
            }
            done += part.len();
            self.writes += 1;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.subject.writes.fetch_add(self.writes, Ordering::Relaxed);
        self.writes = 0;
        Ok(())
    }
}
