//! The floor: raw memory, and the medium over the same kind of memory.
//!
//! Both write every request durably, also without FUA: a non-temporal copy needs its fence.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use everbyte_device::Fua;
use everbyte_media::{Mapped, MediaOptions, Medium, PoolOffset, allocate_file};

use super::raw_memory::RawMemory;
use crate::subject::{Counts, Session, Subject};
use crate::workload::Workload;

/// A file in `folder` without a name: it ends with the process.
///
/// # Errors
/// The system's.
pub(crate) fn nameless_file(folder: &Path, size_bytes: u64) -> Result<File> {
    let file = tempfile::tempfile_in(folder)
        .with_context(|| format!("cannot make a file in {}", folder.display()))?;
    allocate_file(&file, size_bytes)?;
    Ok(file)
}

/// Raw memory.
pub(crate) struct Floor(RawMemory);

impl Floor {
    /// Maps `size_bytes` of a new file in `folder`.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(folder: &Path, size_bytes: u64) -> Result<Self> {
        let memory = RawMemory::map(&nameless_file(folder, size_bytes)?);
        Ok(Self(memory.context("cannot map the floor's memory")?))
    }
}

impl Subject for Floor {
    fn name(&self) -> &str {
        "floor"
    }

    fn open(&self, _workload: &Workload) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(&self.0))
    }
}

impl Session for &RawMemory {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.load(offset, out);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8], _fua: Fua) -> Result<()> {
        self.store_durably(offset, data);
        Ok(())
    }
}

/// The medium, without a pool.
pub(crate) struct MediumFloor(Mapped);

impl MediumFloor {
    /// Maps `size_bytes` of a new file in `folder`, with flushes.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(folder: &Path, size_bytes: u64) -> Result<Self> {
        let file = nameless_file(folder, size_bytes)?;
        let medium = Mapped::from_file(&file, &MediaOptions::new().force_flush(true))?;
        touch(&medium, 0, size_bytes)?;
        Ok(Self(medium))
    }
}

/// Writes zeroes to a range. Measurements then have no page faults.
///
/// # Errors
/// The medium's.
pub(crate) fn touch(medium: &Mapped, from: u64, to: u64) -> Result<()> {
    let zeroes = vec![0; 1 << 20];
    let mut at = from;
    while at < to {
        let len = usize::try_from(to - at).unwrap_or(usize::MAX).min(zeroes.len());
        medium.stream(PoolOffset(at), &zeroes[..len]);
        at += len as u64;
    }
    medium.fence()?;
    Ok(())
}

/// Returns a medium's counts.
pub(crate) fn medium_counts<M: Medium>(medium: &M, log_bytes: u64) -> Counts {
    let sums = medium.counters();
    Counts {
        bytes_stored: sums.bytes_stored,
        lines_stored: sums.lines_stored,
        lines_flushed: sums.lines_flushed,
        fences: sums.fences,
        log_bytes,
        modelled_ns: sums.modelled_ns,
        modelled: false,
    }
}

impl Subject for MediumFloor {
    fn name(&self) -> &str {
        "medium"
    }

    fn open(&self, _workload: &Workload) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(self))
    }

    fn counts(&self) -> Option<Counts> {
        Some(medium_counts(&self.0, 0))
    }
}

impl Session for &MediumFloor {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.read(PoolOffset(offset), out);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8], _fua: Fua) -> Result<()> {
        self.0.stream(PoolOffset(offset), data);
        self.0.fence()?;
        Ok(())
    }
}
